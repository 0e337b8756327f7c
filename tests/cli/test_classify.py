"""`ropewalk classify`: train, score, predict; errors; a process that is stopped."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from ropewalk.cli import app
from ropewalk.cli.classify import ClassifierProgress, train
from ropewalk.cli.options import with_options
from ropewalk.training import Event
from ropewalk.training.classification import ClassifySettings
from tests.training.classification.material import texts, write

SHAPE = ["--vocab-size=300", "--layers=1", "--hidden-size=16", "--heads=2", "--intermediate-size=32", "--lr=0.01"]
SHAPE += ["--batch-size=16", "--precision=float32", "--device=cpu", "--validation-fraction=0.2", "--dropout=0.1"]


@pytest.fixture(autouse=True)
def _one_thread():
    """What a small model needs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A training and a test file, with columns of other names."""
    header = ("question", "intent")
    return write(tmp_path / "train.csv", texts(120), header), write(tmp_path / "test.csv", texts(60, seed=1), header)


COLUMNS = ["--text-column", "question", "--label-column", "intent"]


def run(*arguments: str) -> int:
    """The command line in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        app.main(["classify", *arguments])
    return int(end.value.code or 0)


def test_train_then_predict(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores on standard output, the rest on standard error; predictions as a file and on standard output."""
    out = str(tmp_path / "run")
    arguments = ["train", "--data", files[0], "--test", files[1], "--out", out, *COLUMNS, *SHAPE, "--epochs", "6"]
    assert run(*arguments) == 0
    printed = capsys.readouterr()
    assert "classify begins: 96 rows to train on, 24 to validate on, 3 classes" in printed.err
    assert "epoch   6" in printed.err
    assert "60 test rows, 3 classes" in printed.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for key in ("test", "baseline"):
        assert f"{result[key]['accuracy']['value']:.3f} (" in printed.out
    assert {"confusion.png", "confusion.svg", "model.safetensors", "config.json"} <= set(os.listdir(out))
    assert "classify: wrote" in printed.err
    assert run(*arguments) == 0
    again = capsys.readouterr().err  # trained before
    assert "epoch" not in again
    assert "wrote" not in again
    assert "held this finished run already" in again
    assert run("predict", out, files[1], "--text-column", "question", "--out", str(tmp_path / "p.csv")) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"wrote 60 rows to {tmp_path / 'p.csv'}" in said.err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert [row["text"] for row in rows] == [text for text, _ in texts(60, seed=1)]
    right = [row["label"] == label for row, (_, label) in zip(rows, texts(60, seed=1), strict=True)]
    assert sum(right) / 60 == pytest.approx(result["test"]["accuracy"]["value"])
    assert all(1 / 3 <= float(row["probability"]) <= 1 for row in rows)
    assert run("predict", out, files[1], "--text-column", "question") == 0
    assert list(csv.DictReader(io.StringIO(capsys.readouterr().out))) == rows


def test_every_setting_is_an_option_with_the_same_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library has, the command line has, with the same defaults."""
    assert set(ClassifySettings.names()) <= set(inspect.signature(with_options(train)).parameters)
    calls: list[ClassifySettings] = []
    monkeypatch.setattr(
        "ropewalk.training.classification.train_classifier", lambda settings, *_, **__: calls.append(settings)
    )
    assert run("train", "--data", "a.csv", "--out", "run") == 0
    assert calls == [ClassifySettings("a.csv")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "nowhere.csv", "--out", "run"], "cannot be read"),
        (["train", "--data", "TRAIN", "--out", "run"], "no such column"),
        (
            ["train", "--data", "TRAIN", "--out", "run", *COLUMNS, "--encoding", "xpos"],
            "XPos: attention must be causal",
        ),
        (["train", "--data", "TRAIN", "--out", "run", *COLUMNS, "--epochs", "0"], "--epochs 1 or more"),
        (["train", "--data", "TRAIN", "--out", "run", *COLUMNS, "--resume"], "classify: there is no run to resume"),
        (["train", "--data", "TRAIN", "--out", "run", *COLUMNS, "--against", "MODEL"], "cannot be compared"),
        (["predict", "nowhere", "TRAIN"], "no such folder"),
        (["predict", "MODEL", "nowhere.csv"], "cannot be read"),
        (["predict", "MODEL", "TRAIN"], "no such column"),
        (["predict", "MODEL", "TRAIN", "--text-column", "question", "--out", "."], "folder where the file"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str,
) -> None:  # fmt: skip
    """Never a traceback, and no folder is left."""
    from ropewalk import TextClassifier, TextClassifierConfig
    from ropewalk.checkpoints.load import save

    monkeypatch.chdir(tmp_path)
    config = TextClassifierConfig(
        vocab_size=9, labels="ab", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    save(TextClassifier(config), "model")
    named = {"TRAIN": files[0], "MODEL": "model"}
    assert run(*[named.get(argument, argument) for argument in arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert not Path("run").exists()


@pytest.mark.parametrize("more", [[], ["--no-baseline"]])
def test_missing_scikit_learn_is_reported_before_the_training(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:  # fmt: skip
    """The extra's name, and no folder: scores need it, and the baseline."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    arguments = ["train", "--data", files[0], "--test", files[1], "--out", str(tmp_path / "run"), *COLUMNS, *SHAPE]
    assert run(*arguments, *more) == 2
    assert "[classify]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_classifier_instead_of_the_baseline(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--no-baseline` leaves TF-IDF out of table and result.json; `--against` scores another folder's classifier."""
    arguments = ["train", "--data", files[0], "--test", files[1], *COLUMNS, *SHAPE, "--epochs", "1", "--no-baseline"]
    assert run(*arguments, "--out", str(tmp_path / "first")) == 0
    assert "TF-IDF" not in capsys.readouterr().out
    first = json.loads((tmp_path / "first" / "result.json").read_text())
    assert {"baseline", "against"}.isdisjoint(first)
    assert run(*arguments, "--out", str(tmp_path / "second"), "--against", str(tmp_path / "first")) == 0
    assert "other classifier" in capsys.readouterr().out
    second = json.loads((tmp_path / "second" / "result.json").read_text())
    assert second["against"]["accuracy"] == first["test"]["accuracy"]


def test_ctrl_c_without_a_reason_is_stopped(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception is always true, also without a message."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropewalk.training.classification.train_classifier", stop)
    assert run("train", "--data", files[0], "--out", str(tmp_path / "out"), *COLUMNS, *SHAPE) == 130
    assert "classify: stopped. The same command continues." in capsys.readouterr().err


def test_ctrl_c_checkpoints_and_the_same_command_continues(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal within the second epoch; what it ends with is what a run never stopped ends with."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    arguments = ["train", "--data", files[0], *COLUMNS, *SHAPE, "--epochs", "4", "--patience", "4"]

    def stop(_: ClassifierProgress, event: Event) -> None:
        if event.kind == "step" and event.step == 8:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierProgress, "__call__", stop)
        assert run(*arguments, "--out", str(out)) == 130
    assert "The same command continues" in capsys.readouterr().err
    assert not (out / "config.json").exists()
    assert run(*arguments, "--out", str(out), "--resume") == 0
    assert run(*arguments, "--out", str(whole)) == 0
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
