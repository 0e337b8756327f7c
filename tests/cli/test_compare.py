"""`ropewalk compare` as a user types it: tables, record, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.cli.app import main
from ropewalk.cli.compare import RunProgress
from ropewalk.progress import ProgressBar
from tests.comparison.pools import in_process  # noqa: F401
from tests.training.material import prose

SMALL = ["--settings=settings.toml", "--seq-len=16", "--multiples=1,2", "--tokens=128", "--seeds=0", "--workers=1"]


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a text and the settings of small models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text("vocab_size = 270\nbatch_size = 2\n")
    (tmp_path / "words.txt").write_text(prose(3000))


def compare(*arguments: str | Path) -> int:
    """Run the command; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("in_process")
def test_tables_and_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every encoding has its row, and a learned table has no value beyond its end."""
    given = ["--text=words.txt", "--out=out", "--encodings=rope,learned", "--scalings=pi", "--steps=2", *SMALL]
    assert compare(*given) == 0
    printed = capsys.readouterr().out
    assert "rope, pi" in printed
    assert "no value" in printed
    first, *lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert first["settings"]["text"] == ["words.txt"]
    assert f"{lines[0]['loss']:.3f}" in printed
    assert compare(*given) == 0  # again: nothing is trained, the tables are shown
    assert "rope, pi" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--full"], "mutually exclusive"),
        (["--encodings=rotary"], "`encodings` must be"),
        (["--seeds=a"], "--seeds must be a whole number"),
        (["--workers=0"], "--workers must be"),
        (["--text=missing.txt"], "the text cannot be read"),
    ],
)
def test_errors(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and what to do, before anything is trained."""
    assert compare("--out", tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


def report_two_runs(progress: RunProgress) -> None:
    """One run that is trained here to its end, one that is in hand, and one that another process has finished."""
    progress("rope", 0, 0, 20, {})
    progress("rope", 0, 10, 20, {"loss": 2.5})
    progress("alibi", 0, 5, 20, {"loss": 3.25})
    progress("rope", 0, 20, 20, {"measuring": True})
    progress("rope", 0, 20, 20, {"done": True})
    progress("t5", 0, 20, 20, {"done": True})


def test_progress_has_a_bar_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal: the runs that are finished, and each run in hand with its loss."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBar("compare", total=3) as bar:
        report_two_runs(RunProgress(bar))
        shown = [(task.description, task.completed, task.total, task.fields["note"]) for task in bar._bar.tasks]
    assert shown == [("compare", 2, 3, ""), ("alibi, seed 0", 5, 20, "loss 3.25")]


def test_progress_has_lines_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line where a run begins, and one where it ends."""
    with ProgressBar("compare", total=3) as bar:
        report_two_runs(RunProgress(bar))
    assert capsys.readouterr().err.splitlines() == [
        "compare: rope, seed 0",
        "compare: alibi, seed 0",
        "compare: rope, seed 0 is done",
        "compare: t5, seed 0 is done",
    ]


def begun(tmp_path: Path) -> subprocess.Popen[str]:
    """The command in a process group of its own, one worker, two runs, the first of them past an update."""
    given = ["--text=words.txt", "--out=out", "--encodings=rope,learned", "--steps=100000", *SMALL]
    process = subprocess.Popen(
        [sys.executable, "-c", "from ropewalk.cli.app import main; main()", "compare", *given],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    log = tmp_path / "out" / "runs" / "rope-0" / "training-log.jsonl"
    for _ in range(24_000):
        if process.poll() is not None or (log.exists() and log.stat().st_size):
            break
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_a_stop_begins_no_other_run(number: signal.Signals, tmp_path: Path) -> None:
    """A checkpoint of the run in hand, none begun after it, status 130, no process left, and no traceback."""
    process = begun(tmp_path)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=120)  # ends when the last process with this standard error has ended
    assert process.returncode == 130, said
    assert "To resume from the last checkpoints" in said
    assert "Traceback" not in said
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["rope-0"]
    assert list((tmp_path / "out" / "runs" / "rope-0").glob("checkpoint*/*"))


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """Also where it is killed without a word: the run in hand checkpoints, and nothing goes on."""
    process = begun(tmp_path)
    process.kill()
    process.communicate(timeout=120)
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["rope-0"]
    assert list((tmp_path / "out" / "runs" / "rope-0").glob("checkpoint*/*"))
