"""`ropewalk classify`: train, score, predict; errors; a process that is stopped."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ropewalk.cli import app
from ropewalk.cli.classify import ClassifierProgress
from ropewalk.training import Event
from ropewalk.training.classification import ClassifySettings
from tests.training.classification.material import texts, write

SETTINGS = """
vocab_size = 300
layers = 1
hidden_size = 16
heads = 2
intermediate_size = 32
precision = "float32"
validation_fraction = 0.2
dropout = 0.1
"""
SHAPE = ["--settings", "settings.toml", "--lr=0.01", "--batch-size=16", "--device=cpu"]


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and a folder with the settings of a small model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text(SETTINGS)
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
    assert "is already finished" in again
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


def test_every_setting_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line has the library's defaults."""
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
        (["train", "--data", "TRAIN", "--out", "run", *COLUMNS, "--epochs", "0"], "`epochs` must be at least 1"),
        (["predict", "nowhere", "TRAIN"], "no such folder"),
        (["predict", "MODEL", "nowhere.csv"], "cannot be read"),
        (["predict", "MODEL", "TRAIN"], "no such column"),
        (["predict", "MODEL", "TRAIN", "--text-column", "question", "--out", "."], "path of the file is a folder"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str,
) -> None:  # fmt: skip
    """Never a traceback, and no folder is left."""
    from ropewalk.checkpoints.load import save
    from ropewalk.models import TextClassifier, TextClassifierConfig

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


def test_missing_scikit_learn_is_reported_before_the_training(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra's name, and no folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert run("train", "--data", files[0], "--test", files[1], "--out", str(tmp_path / "run"), *COLUMNS, *SHAPE) == 2
    assert "[classify]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_without_a_reason_is_stopped(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception is always true, also without a message."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropewalk.training.classification.train_classifier", stop)
    assert run("train", "--data", files[0], "--out", str(tmp_path / "out"), *COLUMNS, *SHAPE) == 130
    assert "classify: stopped. To resume, rerun the command." in capsys.readouterr().err


def test_ctrl_c_checkpoints_and_the_same_command_continues(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal within the second epoch; the second start ends whole."""
    out = tmp_path / "run"
    arguments = ["train", "--data", files[0], *COLUMNS, *SHAPE, "--epochs", "2", "--out", str(out)]

    def stop(_: ClassifierProgress, event: Event) -> None:
        if event.kind == "step" and event.step == 8:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierProgress, "__call__", stop)
        assert run(*arguments) == 130
    assert "To resume, rerun the command." in capsys.readouterr().err
    assert not (out / "config.json").exists()
    assert run(*arguments) == 0
    assert "classify continues after step 8" in capsys.readouterr().err
