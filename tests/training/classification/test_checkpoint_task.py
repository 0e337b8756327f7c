"""A classifier on a checkpoint: features kept and taken up again, a head that is scikit-learn's, layers tuned."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import ropewalk as rw
from ropewalk.checkpoints.load import load_classifier, load_decoder, save
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint_classifier import CheckpointClassifier
from ropewalk.readers.classifier import open_classifier
from ropewalk.training import Event
from ropewalk.training.classification import ClassifySettings, features, train_classifier
from ropewalk.training.classification.checkpoint_task import feature_layers
from ropewalk.training.classification.dataset import read_rows
from ropewalk.training.classification.head import fit_head
from ropewalk.training.classification.metrics import mcnemar
from ropewalk.training.classification.predict import logits_of, predict
from tests.readers.random_models import folder_of
from tests.training.classification.material import small, texts, write

FAST: dict[str, Any] = {
    "init": "tiny", "pooling": "mean", "feature_layers": (2,), "batch_size": 16, "device": "cpu",
    "precision": "float32", "validation_fraction": 0.2,
}  # fmt: skip
TUNED: dict[str, Any] = {**FAST, "tune": "layers", "tuned_layers": 1, "epochs": 2}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built-in model's first two layers, as a checkpoint of its own."""
    from ropewalk.models.checkpoint_classifier import DecoderBody

    place = tmp_path_factory.mktemp("checkpoints") / "short"
    save(DecoderBody(load_decoder("tiny")).cut(2).decoder, place)
    return str(place)


def settings(data: str, checkpoint: str, **changes: Any) -> ClassifySettings:
    """Settings of a run that takes a second."""
    return ClassifySettings(data, **{**FAST, "init": checkpoint} | changes)


def timeless(out: Path) -> dict[str, Any]:
    """run.json without its times."""
    record = json.loads((out / "run.json").read_text())
    head = {key: value for key, value in record["head"].items() if not key.endswith("seconds")}
    return {key: value for key, value in record.items() if not key.endswith("seconds")} | {"head": head}


def test_the_head_is_scikit_learns_on_the_models_states(data: str, test_file: str, tmp_path: Path) -> None:
    """Features by a loop over texts, a regression of our own: the same labels and probabilities; it loads again."""
    result = train_classifier(ClassifySettings(data, **FAST), tmp_path / "run", test=test_file, baseline=False)
    assert result is not None
    head = result["training"]["head"]
    assert (head["layer"], head["pooling"], head["fitted_on_rows"]) == (2, "mean", 120)
    assert max(head["by_C"].values()) == head["by_C"][f"{head['C']:g}"]
    model = load_decoder("tiny")
    assert model.tokenizer is not None
    found: list[torch.Tensor] = []
    model.layers[1].register_forward_hook(lambda _, __, out: found.append(out))
    means = []
    train, test = read_rows(data), read_rows(test_file)
    with torch.no_grad():
        for text in train.texts + test.texts:
            model(torch.tensor([model.tokenizer.encode(text)]))
            x = found[-1][0].double()
            means.append((x / x.pow(2).mean(-1, keepdim=True).sqrt()).mean(0).numpy())
    scaler = StandardScaler().fit(np.array(means[:120]))
    regression = LogisticRegression(C=head["C"], max_iter=2000, tol=1e-8)
    regression.fit(scaler.transform(np.array(means[:120])), train.labels)
    wanted = regression.predict_proba(scaler.transform(np.array(means[120:])))
    loaded = rw.load(tmp_path / "run")
    assert isinstance(loaded, CheckpointClassifier)
    logits = logits_of(loaded, [loaded.encode(text) for text in test.texts])
    np.testing.assert_allclose(logits.softmax(-1).numpy(), wanted, atol=2e-2)  # lbfgs stops early
    predicted = [label for label, _ in predict(loaded, test.texts)]
    right = [mine == true for mine, true in zip(predicted, test.labels, strict=True)]
    assert result["test"]["accuracy"]["value"] == pytest.approx(np.mean(right))
    assert result["test"]["accuracy"]["value"] > 0.8
    assert len(load_decoder(tmp_path / "run" / "checkpoint").layers) == 2
    assert not (tmp_path / "run" / "features").exists()
    with pytest.raises(RopeError, match="holds a text classifier"):
        load_decoder(tmp_path / "run")


def test_two_classes_have_a_logit_each() -> None:
    """What scikit-learn keeps as one row of weights; probabilities are its own."""
    generator = np.random.default_rng(0)
    states = torch.tensor(generator.normal(3.0, 2.0, (80, 1, 6))).half()
    labels = [
        "no" if noise + row[0] > 3.0 else "yes"
        for row, noise in zip(states[:, 0], generator.normal(size=80), strict=True)
    ]
    found = fit_head(
        features.Features((4,), {"mean": states, "last": states}, 0.0, 0.0), labels, ("no", "yes"), ("mean",),
        class_weights="none", select="loss", report=lambda done, fits: None,
    )  # fmt: skip
    x = StandardScaler().fit_transform(states[:, 0].double().numpy())
    regression = LogisticRegression(C=found.facts["C"], max_iter=2000, tol=1e-8).fit(x, labels)
    logits = x @ found.arrays["weight"].T + found.arrays["bias"]
    np.testing.assert_allclose(torch.tensor(logits).softmax(-1), regression.predict_proba(x), atol=1e-3)


def test_layer_and_pooling_are_the_best_of_those_tried(data: str, short: str, tmp_path: Path) -> None:
    """All six are compared, and the choice is the first of the best; no test text has any part in it."""
    train_classifier(settings(data, short, pooling=None, feature_layers=(1, 2)), tmp_path / "run")
    head = json.loads((tmp_path / "run" / "run.json").read_text())["head"]
    tried = head["by_layer_and_pooling"]
    assert [each[:2] for each in tried] == [[la, po] for la in (1, 2) for po in ("mean", "last", "mean+last")]
    best = max(tried, key=lambda each: each[2])
    assert [head["layer"], head["pooling"]] == best[:2]
    assert best[2] > min(tried, key=lambda each: each[2])[2]


def test_features_are_taken_up_where_they_were_left(
    data: str, short: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the second part of four: that is not computed again, and the result is the same bit for bit."""
    monkeypatch.setattr(features, "PART", 32)
    computed: list[int] = []
    part = features._part
    monkeypatch.setattr(features, "_part", lambda *given: (computed.append(len(given[1])), part(*given))[1])
    train_classifier(settings(data, short), tmp_path / "whole")
    assert computed == [32, 32, 32, 24]
    computed.clear()

    def stop(event: Event) -> None:
        if event.kind == "features" and event.step == 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_classifier(settings(data, short), tmp_path / "run", report=stop)
    assert not (tmp_path / "run" / "config.json").exists()
    with pytest.raises(KeyboardInterrupt):
        train_classifier(settings(data, short), tmp_path / "run", report=stop, restart=True)
    assert computed == [32] * 4  # --restart throws them away
    train_classifier(settings(data, short), tmp_path / "run")
    assert computed == [32] * 5 + [24]
    for name in ("model.safetensors", "checkpoint/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_another_checkpoint_does_not_go_on_with_a_run(data: str, short: str, tmp_path: Path) -> None:
    """One weight differs: a run that is begun refuses it, --restart does not, and its features are new ones."""
    mine = tmp_path / "mine"
    shutil.copytree(short, mine)

    def interrupt(event: Event) -> None:
        if event.kind == "step" and event.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    tuned = settings(data, str(mine), tune="layers", epochs=1)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(tuned, tmp_path / "run", report=interrupt)
    weights = load_file(mine / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][0, 0] += 1.0
    save_file(weights, mine / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RopeError, match="another one than the run began with"):
        train_classifier(tuned, tmp_path / "run")
    train_classifier(settings(data, str(mine)), tmp_path / "run", restart=True)
    found = load_file(tmp_path / "run" / "checkpoint" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(found[name], weights[name].float())
    train_classifier(settings(data, short), tmp_path / "run", restart=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["init"]["checkpoint"] == "short"


@pytest.mark.parametrize("tune", ["layers", "adapters"])
def test_what_is_tuned_and_what_is_not(data: str, short: str, test_file: str, tmp_path: Path, tune: str) -> None:
    """Layers below stay as they are, to the bit; the saved weights give the validation loss of the best epoch."""
    more = {"tuned_layers": 1, "lr": 1e-4} if tune == "layers" else {"rank": 4, "lr": 1e-3}
    asked = settings(data, short, tune=tune, epochs=2, select="loss", **more)
    events: list[Event] = []
    train_classifier(asked, tmp_path / "run", report=events.append)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    log = [event.facts for event in events if event.kind == "log"]
    assert run["best"]["epoch"] > 0
    assert run["best"]["loss"] == min(line["validation_loss"] for line in log)
    assert (run["train_rows"], run["validation_rows"], run["head"]["fitted_on_rows"]) == (96, 24, 96)
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (short, tmp_path / "run/checkpoint"))
    changed = {name for name, weight in before.items() if not torch.equal(weight.float(), after[name].float())}
    if tune == "layers":
        assert changed == {name for name in before if ".layers.1." in name}
    else:
        assert changed == {name for name in before if name.endswith("proj.weight")}
    model = load_classifier(tmp_path / "run")
    from ropewalk.training.classification.dataset import split

    _, held = split(read_rows(data), 0.2, 0)
    logits = logits_of(model, [model.encode(text) for text in held.texts])
    targets = torch.tensor([model.config.labels.index(label) for label in held.labels])
    assert float(torch.nn.functional.cross_entropy(logits, targets)) == pytest.approx(run["best"]["loss"], abs=1e-4)


def test_tuning_that_does_harm_is_not_kept(data: str, short: str, tmp_path: Path) -> None:
    """At a ruinous learning rate the head alone stays the best, and is what is written."""
    asked = settings(data, short, tune="layers", epochs=1, lr=5.0, select="loss", warmup=0)
    train_classifier(asked, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["best"]["epoch"] == 0
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (short, tmp_path / "run/checkpoint"))
    assert all(torch.equal(weight.float(), after[name].float()) for name, weight in before.items())


@pytest.mark.parametrize("tune", ["layers", pytest.param("adapters", marks=pytest.mark.thorough)])
def test_a_stopped_tuning_is_the_same_bit_for_bit(data: str, short: str, tmp_path: Path, tune: str) -> None:
    """Ctrl-C within the first epoch."""
    asked = settings(data, short, tune=tune, epochs=2, lr=1e-3)

    def interrupt(event: Event) -> None:
        if event.kind == "step" and event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    train_classifier(asked, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="stopped at step 4 of 12"):
        train_classifier(asked, tmp_path / "run", report=interrupt)
    train_classifier(asked, tmp_path / "run", resume=True)
    for name in ("model.safetensors", "checkpoint/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("tune", ["none", "layers", "adapters"])
def test_a_model_of_another_family(data: str, test_file: str, tmp_path: Path, tune: str) -> None:
    """By transformers, whole in the folder; rw.load says how to open it, and the scores are its own."""
    checkpoint = folder_of("gpt_neox", tmp_path / "neox", hidden_size=64, initializer_range=0.1)
    more: dict[str, Any] = {} if tune == "none" else {"tune": tune, "epochs": 1}
    asked = settings(data, str(checkpoint), feature_layers=(1,), **more)
    result = train_classifier(asked, tmp_path / "run", test=test_file, baseline=False)
    assert result is not None
    model, rows = open_classifier(tmp_path / "run"), read_rows(test_file)
    right = [mine == true for (mine, _), true in zip(predict(model, rows.texts), rows.labels, strict=True)]
    assert result["test"]["accuracy"]["value"] == pytest.approx(np.mean(right))
    before, after = (load_file(place / "model.safetensors") for place in (checkpoint, tmp_path / "run" / "checkpoint"))
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert all("layers.0." in name for name in changed)
    assert bool(changed) == (
        tune != "none" and json.loads((tmp_path / "run/run.json").read_text())["best"]["epoch"] > 0
    )
    with pytest.raises(RopeError, match="transformers reads"):
        rw.load(tmp_path / "run")


def test_another_classifier_is_scored_beside(data: str, test_file: str, short: str, tmp_path: Path) -> None:
    """The encoder from scratch on the same rows, paired; against itself nothing differs; other labels are refused."""
    train_classifier(small(data, epochs=1), tmp_path / "scratch")
    run = {"test": test_file, "baseline": False}
    result = train_classifier(settings(data, short), tmp_path / "run", against=tmp_path / "scratch", **run)
    assert result is not None
    assert result["against"]["model"] == "encoder from scratch"
    rows, scratch, own = read_rows(test_file), load_classifier(tmp_path / "scratch"), load_classifier(tmp_path / "run")
    right = [np.array([m == t for (m, _), t in zip(predict(model, rows.texts), rows.labels, strict=True)])
             for model in (own, scratch)]  # fmt: skip
    assert result["against"]["accuracy"]["value"] == pytest.approx(right[1].mean())
    difference = result["difference_against"]
    assert difference["accuracy"]["value"] == pytest.approx(right[0].mean() - right[1].mean())
    assert difference["mcnemar"]["ours_alone"] == (right[0] & ~right[1]).sum() > 0
    config = json.loads((tmp_path / "scratch" / "config.json").read_text())
    (tmp_path / "scratch" / "config.json").write_text(json.dumps({**config, "labels": config["labels"][::-1]}))
    weights = load_file(tmp_path / "scratch" / "model.safetensors")
    turned = {name: each.flip(0) if name.startswith("classifier.") else each for name, each in weights.items()}
    save_file(turned, tmp_path / "scratch" / "model.safetensors")
    same = train_classifier(settings(data, short), tmp_path / "run", against=tmp_path / "scratch", **run)
    assert same is not None
    assert same["against"] == result["against"]
    again = train_classifier(settings(data, short), tmp_path / "run", against=tmp_path / "run", **run)
    assert again is not None
    assert again["difference_against"]["accuracy"]["interval"] == [0.0, 0.0]
    assert again["difference_against"]["mcnemar"]["p"] == 1.0
    other = write(tmp_path / "two.csv", [row for row in texts(60) if row[1] != "knot"])
    train_classifier(small(other, epochs=1), tmp_path / "two")
    with pytest.raises(RopeError, match=r"(?s)cannot be compared.*knot"):
        train_classifier(settings(data, short), tmp_path / "new", test=test_file, against=tmp_path / "two")
    assert not (tmp_path / "new").exists()


def test_mcnemars_p_is_the_binomials() -> None:
    """Nine against one of ten rows on which they differ: 2 * (1 + 10) / 1024."""
    ours, theirs = np.array([True] * 9 + [False] + [True] * 5), np.array([False] * 9 + [True] + [True] * 5)
    assert mcnemar(ours, theirs) == {"ours_alone": 9, "theirs_alone": 1, "p": pytest.approx(22 / 1024)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 3}, r"(?s)would say nothing here.*layers *3.*checkpoint brings its own"),
        ({"tokenizer": "bytes"}, "would say nothing here"),
        ({"epochs": 5}, r"(?s)would say nothing here.*--tune"),
        ({"rank": 4}, "would say nothing here"),
        ({"tune": "some"}, "unknown `tune`"),
        ({"pooling": "first"}, "unknown `pooling`"),
        ({"tune": "layers", "tuned_layers": 0}, "`tuned_layers` must be at least 1"),
        ({"init": None, "tune": "layers"}, r"(?s)would say nothing here.*--init"),
        ({"init": None, "feature_layers": (2,)}, "would say nothing here"),
        ({"init": None, "pooling": "last"}, "unknown `pooling`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Nothing that is given is ignored."""
    with pytest.raises(RopeError, match=message):
        ClassifySettings("train.csv", **{"init": "tiny"} | changes)


def test_everything_is_refused_before_the_texts_are_read(data: str, tmp_path: Path) -> None:
    """A checkpoint that is not there, a layer that it has not, one without a tokenizer; no folder is left."""
    bare = tmp_path / "bare"
    shutil.copytree(Path(load_decoder.__code__.co_filename).parents[1] / "builtin" / "tiny", bare)
    for file in bare.glob("tokenizer*"):
        file.unlink()
    for changes, message in (
        ({"init": "nowhere"}, "no such file or folder"),
        ({"feature_layers": (7,)}, "no such layer"),
        ({"init": str(bare)}, "no tokenizer"),
    ):
        with pytest.raises(RopeError, match=message):
            train_classifier(ClassifySettings(data, **FAST | changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    assert feature_layers(6, ()) == (2, 3, 4)


def test_a_damaged_folder_is_said(data: str, short: str, tmp_path: Path) -> None:
    """A head of another shape."""
    train_classifier(settings(data, short), tmp_path / "run")
    head = load_file(tmp_path / "run" / "model.safetensors")
    save_file(
        {**head, "classifier.weight": head["classifier.weight"][:, :5].clone()}, tmp_path / "run/model.safetensors"
    )
    with pytest.raises(RopeError, match=r"(?s)damaged.*not those of the head"):
        load_classifier(tmp_path / "run")
