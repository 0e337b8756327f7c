"""The events of a run as a bar and as lines."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.cli.classify import ClassifierProgress
from ropewalk.cli.training_progress import TrainingProgress
from ropewalk.progress import ProgressBar
from ropewalk.training import Event

START = {
    "parameters": 1000, "vocab_size": 300, "train_tokens": 5000, "precision": "float32", "device": "cpu", "threads": 1,
    "began_with_threads": 2,
}  # fmt: skip
LOG = {"loss": 2.5, "tokens_per_second": 1234.5, "lr": 0.001}
VALIDATION = {"validation_loss": 2.25, "validation_by_position": [(0, 8, 3.0), (8, 16, 1.5)]}
CLASSES = {"train_rows": 90, "validation_rows": 10, "classes": 3, "cut": 2, "already": False, "rows": 20}


def test_a_continued_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal each entry of the log is a line; another number of threads is mentioned."""
    with ProgressBar("train", lines=False) as bar:
        progress = TrainingProgress("train", bar)
        progress(Event("start", 4, 10, START))
        progress(Event("log", 6, 10, LOG))
        progress(Event("log", 8, 10, LOG | VALIDATION))
        progress(Event("done", 10, 10, {"already": False, "out": "run"}))
    first, threads, plain, validated, last = capsys.readouterr().err.splitlines()
    assert first.startswith("train continues after step 4: 1,000 parameters, a vocabulary of 300, 5,000 tokens of text")
    assert "the run began with 2 threads" in threads
    assert plain == "step      6  loss 2.5000  lr 1.00e-03  1,234 tokens/s"
    assert validated == plain.replace("6", "8", 1) + "  validation 2.2500  (0-8: 3.000  8-16: 1.500)"
    assert last == "train: wrote run"


@pytest.mark.parametrize("kind", ["train", "classify"])
def test_the_bar_counts_updates(kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal: from the step that the run continues at; a log without validation has no line."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar(kind, lines=False) as bar:
        progress: Any = TrainingProgress("train", bar) if kind == "train" else ClassifierProgress(bar)
        progress(Event("start", 4, 10, START | CLASSES))
        progress(Event("step", 5, 10, {"loss": 2.5}))
        progress(Event("step", 6, 10, {"loss": 2.5}))
        (task,) = bar._bar.tasks
        assert (task.completed, task.total) == (6, 10)
        if kind == "train":
            progress(Event("log", 6, 10, LOG))
            assert task.fields["note"] == "loss 2.500  1,234 tokens/s"
    assert "lr 1.00e-03" not in capsys.readouterr().err


def test_a_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each epoch, for texts that were cut, and for the scores; whether the run was finished before."""
    epoch = {"epoch": 1, "loss": 0.5, "seconds": 3.2, "best": True, "validation_loss": 0.25}
    epoch |= {"validation_accuracy": 0.75, "validation_macro_f1": 0.5}
    with ProgressBar("classify", lines=False) as bar:
        progress = ClassifierProgress(bar)
        progress(Event("start", 0, 10, START | CLASSES))
        progress(Event("log", 5, 10, epoch))
        progress(Event("score", 10, 10, CLASSES))
        progress(Event("done", 10, 10, {"already": True}))
    begins, cut, line, scores = capsys.readouterr().err.splitlines()
    assert begins.startswith("classify begins: 90 rows to train on, 10 to validate on, 3 classes, 1,000 parameters")
    assert cut.startswith("classify: 2 texts have at least --max-length tokens")
    assert line == "epoch   1  loss 0.5000  validation 0.2500, accuracy 0.7500, macro-F1 0.5000  best  3 s"
    assert scores == "classify: scores 20 test rows"
    assert progress.already
