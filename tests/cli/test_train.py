"""`ropewalk train`: arguments, what it prints, errors, and real processes that are stopped."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.cli import app
from ropewalk.cli.options import with_options
from ropewalk.cli.train import train
from ropewalk.cli.training_progress import TrainingProgress
from ropewalk.training import Event, Housekeeping, TrainSettings
from tests.training.material import prose

SHAPE = ["--tokenizer=bytes", "--layers=1", "--hidden-size=16", "--heads=2", "--seq-len=16", "--batch-size=4"]
SHAPE += ["--precision=float32"]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A test that sets the number of threads does not set it for others."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Two text files."""
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for seed, path in enumerate(paths):
        path.write_text(prose(600, seed))
    return [str(path) for path in paths]


def run(*arguments: str) -> int:
    """The command line in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        app.main(["train", *arguments])
    return int(end.value.code or 0)


def test_both_ways_to_name_several_texts(texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--text A B` and `--text A --text B` are the same run; the second finds it finished."""
    out = str(tmp_path / "run")
    assert run("--text", *texts, "--out", out, *SHAPE, "--steps", "4", "--log-every", "2") == 0
    printed = capsys.readouterr().err
    assert "train begins: " in printed
    assert "tokens/s" in printed
    assert "validation" in printed
    assert f"wrote {out}" in printed
    assert run("--text", texts[0], "--text", texts[1], "--out", out, *SHAPE, "--steps", "4") == 0
    assert "finished before" in capsys.readouterr().err
    assert load(out).config.num_hidden_layers == 1


def test_every_setting_is_an_option_with_the_same_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library has, the command line has, with the same defaults; housekeeping likewise."""
    options = inspect.signature(with_options(train)).parameters
    assert {*TrainSettings.names(), *(each.name for each in fields(Housekeeping))} <= set(options)
    calls: list[tuple[TrainSettings, Housekeeping]] = []

    def record(settings: TrainSettings, out: Path, *, housekeeping: Housekeeping, **_: object) -> None:
        calls.append((settings, housekeeping))

    monkeypatch.setattr("ropewalk.training.train", record)
    assert run("--text", "a.txt", "--out", "run") == 0
    assert calls == [(TrainSettings(text=("a.txt",)), Housekeeping())]


def test_lengths_may_have_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--seq-len 1k` is 1,024 tokens."""
    lengths = []
    monkeypatch.setattr("ropewalk.training.train", lambda settings, *_, **__: lengths.append(settings.seq_len))
    assert run("--text", "a.txt", "--out", "run", "--seq-len", "1k") == 0
    assert lengths == [1024]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "nowhere.txt"], "cannot be read"),
        (["--seq-len", "1"], "`seq_len` must be at least 2"),
        (["--resume"], "no run to resume"),
    ],
)
def test_bad_input_is_a_message_and_status_2(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Never a traceback."""
    assert run("--text", texts[0], "--out", str(tmp_path / "run"), *arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_ctrl_c_without_a_reason_is_stopped(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception is always true, also without a message."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropewalk.training.train", stop)
    assert run("--text", texts[0], "--out", str(tmp_path / "out"), *SHAPE, "--steps=1") == 130
    assert "train: stopped. The same command continues" in capsys.readouterr().err


def test_ctrl_c_checkpoints_and_the_same_command_continues(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal between two checkpoints: status 130; the second start ends like a run never stopped, bit for bit."""
    out = tmp_path / "run"
    command = ["--text", *texts, *SHAPE, "--steps", "20", "--checkpoint-every", "8"]

    def stop(_: TrainingProgress, event: Event) -> None:
        if event.kind == "step" and event.step == 11:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "__call__", stop)
        assert run(*command, "--out", str(out)) == 130
    assert "The same command continues" in capsys.readouterr().err
    assert not (out / "config.json").exists()
    assert [path.name for path in out.glob("checkpoints/step-*")]
    assert run(*command, "--out", str(out), "--resume") == 0
    assert run(*command, "--out", str(tmp_path / "whole")) == 0
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
