"""`ropewalk train`: arguments, what it prints, errors, and real processes that are stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.cli import app
from ropewalk.cli.training_progress import TrainingProgress
from ropewalk.training import Event, Housekeeping, TrainSettings
from tests.training.material import prose

SETTINGS = """
tokenizer = "bytes"
layers = 1
hidden_size = 16
heads = 2
precision = "float32"
log_every = 2
checkpoint_every = 8
"""


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


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Options of a small model."""
    (tmp_path / "settings.toml").write_text(SETTINGS)
    return ["--settings", str(tmp_path / "settings.toml"), "--seq-len=16", "--batch-size=4"]


def run(*arguments: str) -> int:
    """Run the command line in this process; return its exit status."""
    with pytest.raises(SystemExit) as end:
        app.main(["train", *arguments])
    return int(end.value.code or 0)


def test_both_ways_to_name_several_texts(
    texts: list[str], small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--text A B` and `--text A --text B` are the same run; the second finds it finished."""
    out = str(tmp_path / "run")
    assert run("--text", *texts, "--out", out, *small, "--steps", "4") == 0
    printed = capsys.readouterr().err
    assert "train begins: " in printed
    assert "tokens/s" in printed
    assert "validation" in printed
    assert f"wrote {out}" in printed
    assert run("--text", texts[0], "--text", texts[1], "--out", out, *small, "--steps", "4") == 0
    assert "finished before" in capsys.readouterr().err
    assert load(out).config.num_hidden_layers == 1


def test_every_setting_has_its_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command line has the library's defaults; a file changes settings, housekeeping and the dtype of weights."""
    calls: list[tuple[object, ...]] = []

    def record(settings: TrainSettings, out: Path, *, housekeeping: Housekeeping, dtype: str, **_: object) -> None:
        calls.append((settings, housekeeping, dtype))

    monkeypatch.setattr("ropewalk.training.train", record)
    assert run("--text", "a.txt", "--out", "run") == 0
    (tmp_path / "settings.toml").write_text('dtype = "float32"\nkeep = 3\nheads = 6\n')
    assert run("--text", "a.txt", "--out", "run", "--settings", str(tmp_path / "settings.toml")) == 0
    assert calls == [
        (TrainSettings(text=("a.txt",)), Housekeeping(), "bfloat16"),
        (TrainSettings(text=("a.txt",), heads=6), Housekeeping(keep=3), "float32"),
    ]


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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception is always true, also without a message."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropewalk.training.train", stop)
    assert run("--text", "a.txt", "--out", "out") == 130
    assert "train: stopped. To resume, rerun the command." in capsys.readouterr().err


def test_ctrl_c_checkpoints_and_the_same_command_continues(
    texts: list[str], small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The signal between two checkpoints: status 130; the second start ends at the last step."""
    out = tmp_path / "run"
    command = ["--text", *texts, *small, "--steps", "13", "--out", str(out)]

    def stop(_: TrainingProgress, event: Event) -> None:
        if event.kind == "step" and event.step == 11:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "__call__", stop)
        assert run(*command) == 130
    assert "train: stopped at step 11 of 13; the checkpoint is written. To resume" in capsys.readouterr().err
    assert not (out / "config.json").exists()
    assert run(*command) == 0
    assert "train continues after step 11" in capsys.readouterr().err
    assert (out / "config.json").exists()
