"""Where progress is shown: the caller's object, a terminal, a notebook, or nowhere."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.errors import RopeError
from ropewalk.progress import Progress, SilentProgress
from ropewalk.progress.bar import ProgressBar
from ropewalk.progress.notebook import NotebookBar
from ropewalk.progress.shown import expect, say, shown


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
