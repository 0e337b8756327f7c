"""Training: it learns, stops early, keeps the best, goes on where it was stopped, and scores once."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.checkpoints.load import load_classifier
from ropewalk.errors import RopeError
from ropewalk.training import Event
from ropewalk.training.classification import ClassifySettings, train_classifier
from ropewalk.training.classification.dataset import read_rows, split
from ropewalk.training.classification.score import counts_of, logits_of, predict
from tests.training.classification.material import small, texts, write


class Stop(Exception):
    """What a test raises to break a run off."""


def stop_at(step: int, kind: str = "step"):
    """A reporter that raises at a step."""

    def report(event: Event) -> None:
        if event.kind == kind and event.step == step:
            raise Stop

    return report


def digest(out: Path) -> dict[str, str]:
    """SHA-256 of all that a run leaves but its times: weights, optimizer, log, scores."""
    found = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        raw = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            lines = raw.splitlines() if path.suffix == ".jsonl" else [raw]
            raw = json.dumps([_timeless(json.loads(line)) for line in lines]).encode()
        found[str(path.relative_to(out))] = hashlib.sha256(raw).hexdigest()
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if not key.endswith("seconds")}
    return value


def test_it_learns_and_its_scores_are_true(data: str, test_file: str, tmp_path: Path) -> None:
    """Nearly all right where words tell the class; result.json is what predictions give, counted anew."""
    result = train_classifier(small(data), tmp_path / "run", test=test_file)
    assert result is not None
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    rows = read_rows(test_file)
    found = [label for label, _ in predict(load_classifier(tmp_path / "run"), rows.texts)]
    right = [mine == true for mine, true in zip(found, rows.labels, strict=True)]
    assert result["test"]["accuracy"]["value"] == pytest.approx(np.mean(right))
    assert result["test"]["accuracy"]["value"] > 0.9
    assert result["baseline"]["accuracy"]["value"] > 0.9
    low, high = result["test"]["accuracy"]["interval"]
    assert low <= np.mean(right) <= high
    counts = np.array(counts_of(result))
    assert counts.sum() == len(rows)
    assert np.trace(counts) == sum(right)
    assert [entry["rows"] for entry in result["per_class"]] == counts.sum(1).tolist() == [20, 20, 20]
    assert result["data"] | {"train_rows": 96, "validation_rows": 24, "test_rows": 60} == result["data"]


def test_early_stopping_keeps_the_best_epoch(data: str, tmp_path: Path) -> None:
    """With patience 2 it ends two epochs after the best, and the weights are that epoch's."""
    settings = small(data, epochs=30, patience=2, lr=3e-2)
    train_classifier(settings, tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run" / "training-log.jsonl").read_text().splitlines()]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    ranks = [(line["validation_accuracy"], -line["validation_loss"]) for line in log]
    best = ranks.index(max(ranks))
    assert run["best"]["epoch"] == best + 1 == log[-1]["epoch"] - 2
    assert log[-1]["epoch"] < 30
    assert [line["best"] for line in log].count(True) == sum(
        r > max(ranks[:i], default=(-1.0, 0.0)) for i, r in enumerate(ranks)
    )
    model = load_classifier(tmp_path / "run")
    _, held = split(read_rows(data), settings.validation_fraction, settings.seed)
    logits = logits_of(model, [model.encode(text) for text in held.texts])
    targets = torch.tensor([model.config.labels.index(label) for label in held.labels])
    assert float(torch.nn.functional.cross_entropy(logits, targets)) == pytest.approx(-ranks[best][1], abs=1e-6)
    assert log[-1]["validation_loss"] != pytest.approx(-ranks[best][1], abs=1e-4)


def test_without_validation_the_last_weights_stay(data: str, tmp_path: Path) -> None:
    """No split, all epochs, no best."""
    train_classifier(small(data, validation_fraction=0.0, epochs=2), tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["train_rows"], run["validation_rows"], run["epochs_run"], run["best"]) == (120, 0, 2, None)


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize("step", [pytest.param(4, marks=THOROUGH), pytest.param(12, marks=THOROUGH), 13, 36])
def test_a_stopped_run_is_the_same_bit_for_bit(data: str, test_file: str, tmp_path: Path, step: int) -> None:
    """Ctrl-C in an epoch, at its end, after it, at the last step: weights, optimizer, log and scores all equal."""
    whole = train_classifier(small(data), tmp_path / "whole", test=test_file, baseline=False)

    def interrupt(event: Event) -> None:
        if event.kind == "step" and event.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = step < 36
    if stopped:
        with pytest.raises(KeyboardInterrupt, match=f"stopped at step {step} of 36"):
            train_classifier(small(data), tmp_path / "run", test=test_file, baseline=False, report=interrupt)
        assert not (tmp_path / "run" / "config.json").exists()
    starts: list[int] = []
    again = train_classifier(
        small(data), tmp_path / "run", test=test_file, baseline=False,
        report=lambda event: starts.append(event.step) if event.kind == "start" else None,
    )  # fmt: skip
    assert starts == [step if stopped else 0]
    assert _timeless(again) == _timeless(whole)
    left, right = digest(tmp_path / "run"), digest(tmp_path / "whole")
    same = [name for name in right if not name.startswith("checkpoints/step") or "00000036" in name]
    assert {name: left[name] for name in same} == {name: right[name] for name in same}


def test_broken_off_without_a_checkpoint_it_begins_again(data: str, tmp_path: Path) -> None:
    """A failure before the first checkpoint; the same command ends as if nothing had been."""
    with pytest.raises(Stop):
        train_classifier(small(data), tmp_path / "run", report=stop_at(8))
    train_classifier(small(data), tmp_path / "run")
    train_classifier(small(data), tmp_path / "whole")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_a_finished_run_is_scored_once_for_each_file(data: str, test_file: str, tmp_path: Path) -> None:
    """Trained without --test, scored later without training; the same file again computes nothing; another does."""
    kinds: list[str] = []
    run: dict[str, Any] = {"baseline": False, "report": lambda event: kinds.append(event.kind)}
    assert train_classifier(small(data), tmp_path / "run", **run) is None
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    kinds.clear()
    first = train_classifier(small(data), tmp_path / "run", test=test_file, **run)
    assert kinds == ["score", "done"]
    kinds.clear()
    assert train_classifier(small(data), tmp_path / "run", test=test_file, **run) == first
    assert kinds == ["done"]
    other = write(tmp_path / "other.csv", texts(30, seed=2))
    second = train_classifier(small(data), tmp_path / "run", test=other, **run)
    assert second is not None
    assert second["data"]["test_rows"] == 30
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_other_settings_and_other_rows_are_refused(data: str, tmp_path: Path) -> None:
    """By name; --restart begins anew; what is there before stays."""
    with pytest.raises(RopeError, match="no run to resume"):
        train_classifier(small(data), tmp_path / "run", resume=True)
    train_classifier(small(data, epochs=1), tmp_path / "run")
    with pytest.raises(RopeError, match=r"(?s)other settings.*epochs .*'1 -> 2'"):
        train_classifier(small(data, epochs=2), tmp_path / "run")
    train_classifier(small(data, epochs=2), tmp_path / "run", restart=True)
    write(Path(data), texts(90))
    with pytest.raises(RopeError, match=r"text \(contents\)"):
        train_classifier(small(data, epochs=2), tmp_path / "run")


def test_everything_is_refused_before_training(data: str, test_file: str, tmp_path: Path) -> None:
    """An unknown label in the test or validation file, one class, and no folder is left behind."""
    unknown = write(tmp_path / "unknown.csv", [("a jib", "sail"), ("a cloud", "sky")])
    one = write(tmp_path / "one.csv", [("a jib", "sail"), ("a tack", "sail")])
    for settings, test, message in (
        (small(data), unknown, r"(?s)does not occur in the training rows.*'sky'"),
        (small(data, validation=unknown), None, r"(?s)does not occur in the training rows.*'sky'"),
        (small(one), None, "only one class"),
        (small(data, encoding="xpos"), None, "XPos: attention must be causal"),
        (small(data, encoding="nosuch"), None, "unknown encoding"),
        (small(data, tokenizer="nowhere.json"), None, "unknown tokenizer"),
    ):
        with pytest.raises(RopeError, match=message):
            train_classifier(settings, tmp_path / "run", test=test)
        assert not (tmp_path / "run").exists()


def test_class_weights_lift_the_rare_class(tmp_path: Path) -> None:
    """One row in twenty is rare and its words are the others': weighted, more of it is found."""
    generator = np.random.default_rng(0)
    rows = [(f"{'gale' if generator.random() < p else 'calm'} day", label) for label, n, p in
            (("rare", 20, 0.9), ("common", 380, 0.3)) for _ in range(n)]  # fmt: skip
    data, found = write(tmp_path / "rows.csv", rows), {}
    for weights in ("none", "balanced"):
        out = tmp_path / weights
        train_classifier(small(data, class_weights=weights, token_dropout=0.0, validation_fraction=0.0, epochs=10), out)
        model = load_classifier(out)
        found[weights] = dict(zip(("gale", "calm"), predict(model, ["gale day", "calm day"]), strict=True))
    assert found["none"]["gale"][0] == "common"
    assert found["balanced"]["gale"][0] == "rare"
    assert found["balanced"]["calm"][0] == "common"


@pytest.mark.parametrize("encoding", ["none", "learned", "t5", "alibi"])
def test_any_encoding_and_a_given_tokenizer(data: str, tmp_path: Path, encoding: str) -> None:
    """One epoch of each; the tokenizer of an earlier run is used as it is."""
    train_classifier(small(data, epochs=1), tmp_path / "first")
    given = str(tmp_path / "first" / "tokenizer.json")
    train_classifier(small(data, epochs=1, encoding=encoding, tokenizer=given, pooling="first"), tmp_path / "run")
    first, second = (load_classifier(tmp_path / name) for name in ("first", "run"))
    assert first.encode("JIB and Boom") == first.encode("jib and boom") == second.encode("Jib and boom")[1:]


def test_texts_are_predicted_in_their_order_and_one_by_one(data: str, tmp_path: Path) -> None:
    """Sorted by length inside, in order outside; a batch changes nothing."""
    train_classifier(small(data, epochs=1), tmp_path / "run")
    model = load_classifier(tmp_path / "run").double()
    ids = [model.encode(text) for text, _ in texts(40, seed=3)]
    done: list[int] = []
    together = logits_of(model, ids, batch_size=7, report=done.append)
    alone = torch.cat([logits_of(model, [text]) for text in ids])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    assert done[-1] == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout": 1.0}, "at least 0 and less than 1"),
        ({"epochs": 0}, "`epochs` must be at least 1"),
        ({"lr": 0.0}, "above 0"),
        ({"lr": float("nan")}, "above 0"),
        ({"select": "auc"}, "unknown `select`"),
        ({"class_weights": "some"}, "unknown `class_weights`"),
        ({"vocab_size": 100}, "at least 257"),
        ({"validation_fraction": 1.0}, "at least 0 and less than 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Named, with what may be passed."""
    with pytest.raises(RopeError, match=message):
        ClassifySettings("train.csv", **changes)


def test_a_run_that_diverges_stops(data: str, tmp_path: Path) -> None:
    """Before the weights are spoiled."""
    with pytest.raises(RopeError, match="is not finite"):
        train_classifier(small(data, lr=1e38, clip=1e38, warmup=0), tmp_path / "run")
