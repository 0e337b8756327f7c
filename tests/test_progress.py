"""Progress: the caller's object, a state on a terminal or in a notebook, lines on standard error, or nothing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk import progress as module
from ropewalk.errors import RopeError
from ropewalk.progress import LinesProgress, Progress, SilentProgress, TerminalProgress, expect, say, shown


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


@pytest.mark.parametrize("lines", [False, True])
def test_an_object_is_called(lines: bool) -> None:
    """As it is, without what it does not know; what is no progress is refused with what may be passed."""
    mine = Listed()
    with shown("doctor", mine, lines=lines) as progress:
        work(progress)
    assert progress is mine
    assert mine.calls == [("[1/1] yarn", 100), (60,)]
    with pytest.raises(RopeError, match="`begin` and `advance`"), shown("doctor", "yes", lines=lines):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("given", "lines", "kind"),
    [(None, False, SilentProgress), (True, False, SilentProgress), (False, False, SilentProgress),
     (False, True, SilentProgress), (None, True, LinesProgress)],
)  # fmt: skip
def test_nothing_where_nobody_looks(
    given: bool | None, lines: bool, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard error is a file or a pipe; a caller who asks has lines, and none of less than ten seconds of work."""
    with shown("doctor", given, lines=lines) as progress:
        work(progress)
    assert type(progress) is kind
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_state(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error; False silences it there as well."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shown("doctor") as progress:
        assert isinstance(progress, TerminalProgress)
        work(progress)
        assert str(progress._spinner.text).startswith("doctor: [1/1] yarn: 60 of 100, about ")
        expect(progress, 50)
        progress.advance(50)
        assert str(progress._spinner.text) == "doctor"
        print("an answer")
    printed = capsys.readouterr()
    assert printed.out == "an answer\n"
    assert "about 3 min" in printed.err
    with shown("doctor", lines=True) as progress:  # lines are for files and pipes
        assert isinstance(progress, TerminalProgress)
    capsys.readouterr()
    with shown("doctor", False) as silent:
        work(silent)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_has_a_state_or_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich needs ipywidgets there; a shell of IPython in a pipe is no notebook."""
    monkeypatch.setitem(sys.modules, "IPython", kernel({"IPKernelApp": {}}))
    for widgets, kind in ((True, TerminalProgress), (False, LinesProgress)):
        monkeypatch.setattr(module, "find_spec", lambda name, found=widgets: name == "rich" or found)
        with shown("doctor") as progress:
            assert isinstance(progress, kind)
    monkeypatch.setitem(sys.modules, "IPython", kernel({}))
    with shown("doctor") as progress:
        assert isinstance(progress, SilentProgress)


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_has_the_tokens_and_the_time_left() -> None:
    """Of the whole stage; nothing before work begins, and of unknown sizes what is known."""
    clock = Clock()
    lines = LinesProgress("doctor", clock=clock)
    assert lines.state() is None
    lines.begin("a short trial", 0)
    assert lines.state() == "doctor: a short trial"
    lines.expect(4 * 16_384)
    assert lines.state() is None
    lines.begin("yarn, window 2 of 8", 16_384)
    assert lines.state() == "doctor: yarn, window 2 of 8: 0 of 65,536"
    clock.now = 60.0
    lines.advance(2_048)
    lines.advance(10_240)
    expected = "doctor: yarn, window 2 of 8: 12,288 of 65,536, about"
    assert lines.state() == f"{expected} 4 min left"  # 60 s for 12,288, so 260 s for the other 53,248
    clock.now = 3_600.0
    assert lines.state() == f"{expected} 4 h left"
    clock.now = 6.0
    assert lines.state() == f"{expected} 26 s left"
    lines.begin("of unknown size", 0)
    assert lines.state() == "doctor: of unknown size: 12,288 of 65,536, about 26 s left"
    lines.advance(53_248)
    assert lines.state() is None
    lines = LinesProgress("verify", clock=clock)  # a call that announces no stage
    lines.begin("request 2", 100)
    clock.now = 9.0
    lines.advance(75)
    assert lines.state() == "verify: request 2: 75 of 100, about 1 s left"


def test_a_line_comes_at_most_at_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """While work advances; what was said before comes first, and the rest at the end; no control characters."""
    clock = Clock()
    with LinesProgress("doctor", clock=clock) as lines:
        say(lines, "about 3\x1b[31m min")
        expect(lines, 100)
        lines.begin("[1/1] yarn", 100)
        for seconds in (6.0, 12.0, 18.0, 24.0):
            clock.now = seconds
            lines.advance(20)
        say(lines, "done")
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "doctor: about 3 [31m min", "doctor: [1/1] yarn: 40 of 100, about 18 s left",
        "doctor: [1/1] yarn: 80 of 100, about 6 s left", "doctor: done",
    ]  # fmt: skip
    assert printed.out == ""
