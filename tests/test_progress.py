"""Progress: the caller's object, a bar on a terminal or in a notebook, lines on standard error, or nothing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.errors import RopeError
from ropewalk.progress import NotebookBar, Progress, ProgressBar, SilentProgress, expect, say, shown


class Listed:
    """What a caller may pass: no more than the two calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def begin(self, description: str, tokens: int) -> None:
        self.calls.append((description, tokens))

    def advance(self, tokens: int) -> None:
        self.calls.append((tokens,))


def work(progress: Progress) -> None:
    """A stage of one piece."""
    say(progress, "about 3 min")
    expect(progress, 100)
    progress.begin("[1/1] yarn", 100)
    progress.advance(60)


def kernel(config: dict[str, Any]) -> Any:
    """The module IPython as a shell of this config loads it."""
    return SimpleNamespace(get_ipython=lambda: SimpleNamespace(config=config))


def test_an_object_is_called() -> None:
    """As it is, without what it does not know."""
    mine = Listed()
    with shown("doctor", mine) as progress:
        work(progress)
    assert progress is mine
    assert mine.calls == [("[1/1] yarn", 100), (60,)]


def test_what_is_no_progress_is_refused() -> None:
    """With what may be passed."""
    with pytest.raises(RopeError, match="`begin` and `advance`"), shown("doctor", "yes"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("given", [None, False, True])
def test_nothing_where_nobody_looks(given: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error is a file or a pipe."""
    with shown("doctor", given) as progress:
        work(progress)
    assert isinstance(progress, SilentProgress)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error; False silences it there as well."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shown("doctor") as progress:
        assert isinstance(progress, ProgressBar)
        work(progress)
        task = progress._bar.tasks[0]
        assert (task.description, task.completed, task.total) == ("[1/1] yarn", 60, 100)
        expect(progress, 50)
        assert (task.completed, task.total) == (0, 50)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "about 3 min" in printed.err
    with shown("doctor", False) as silent:
        work(silent)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """tqdm's, also without ipywidgets; a shell of IPython in a pipe is no notebook."""
    monkeypatch.setitem(sys.modules, "IPython", kernel({"IPKernelApp": {}}))
    with shown("doctor") as progress:
        assert isinstance(progress, NotebookBar)
        work(progress)
        assert (progress._bar.n, progress._bar.total) == (60, 100)
        assert "[1/1] yarn" in str(progress._bar)
    printed = capsys.readouterr()
    assert "about 3 min" in printed.out + printed.err
    monkeypatch.setitem(sys.modules, "IPython", kernel({}))
    with shown("doctor") as progress:
        assert isinstance(progress, SilentProgress)


def work_in_pieces(progress: Progress, pieces: int = 2) -> None:
    """What a library's long work does with a progress."""
    for number in range(1, pieces + 1):
        progress.begin(f"[{number}/{pieces}] yarn", 100)
        progress.advance(60)
        progress.advance(40)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich takes standard error for a terminal of 100 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_a_line_for_each_piece_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's name begins each; the same description is not repeated; nothing goes to standard output."""
    with ProgressBar("doctor", total=200) as bar:
        work_in_pieces(bar)
        bar.begin("[2/2] yarn", 100)
        bar.note("loss 2.00")
        bar.line("doctor: half way")
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["doctor: [1/2] yarn", "doctor: [2/2] yarn", "doctor: half way"]
    assert printed.out == ""


def test_many_pieces_have_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The first ten, then each twentieth; none where the command prints its own."""
    with ProgressBar("extend", every=20) as bar:
        work_in_pieces(bar, pieces=60)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [f"[{n}/60]" for n in (*range(1, 11), 20, 40, 60)]
    with ProgressBar("train", lines=False) as bar:
        work_in_pieces(bar)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("total", [None, 200])
def test_a_bar_on_a_terminal(total: int | None, terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A share of each piece, or of the whole; a line stays above it; standard output is left alone."""
    with ProgressBar("doctor", total=total) as bar:
        work_in_pieces(bar, pieces=1)
        bar.note("loss 2.00")
        task = bar._bar.tasks[0]
        assert (task.completed, task.total) == (100, total or 100)
        bar.line("doctor: half way")
        sys.stdout.write("a result\n")
        bar._bar.refresh()
    printed = capsys.readouterr()
    assert printed.out == "a result\n"
    for part in ("[1/1] yarn", "100%" if total is None else "50%", "loss 2.00", "doctor: half way"):
        assert part in printed.err


def test_several_pieces_at_one_time(terminal: None) -> None:
    """Each key has a bar of its own until its end; the whole's counts beside them."""
    with ProgressBar("compare", total=8) as bar:
        for key in ("rope", "alibi"):
            bar.begin(f"{key}, seed 0", 100, key=key)
        bar.advance(30, key="alibi")
        bar.advance(1)
        state: dict[str, Any] = {task.description: (task.completed, task.total) for task in bar._bar.tasks}
        assert state == {"compare": (1, 8), "rope, seed 0": (0, 100), "alibi, seed 0": (30, 100)}
        bar.end("rope")
        assert [task.description for task in bar._bar.tasks] == ["compare", "alibi, seed 0"]


def test_an_error_ends_the_bar(terminal: None) -> None:
    """The terminal's cursor comes back, whatever happens."""
    with pytest.raises(KeyboardInterrupt), ProgressBar("doctor") as bar:
        raise KeyboardInterrupt
    assert not bar._bar.live.is_started
