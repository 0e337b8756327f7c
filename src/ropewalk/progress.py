"""Report the progress of long work: on a terminal, in a notebook, to the caller's object, or nowhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console

EVERY_SECONDS = 10.0  # between two lines of `LinesProgress`


@runtime_checkable
class Progress(Protocol):
    """Receive the progress of long work, in calls from one thread at a time."""

    def begin(self, description: str, tokens: int) -> None:
        """Begin a piece of work in which the model processes `tokens` tokens; 0 if their number is unknown."""

    def advance(self, tokens: int) -> None:
        """Count `tokens` more tokens as processed."""


class SilentProgress:
    """Show nothing; the base of the displays, which receive the size of stages and lines of text, too.

    `name`: the command. A display is used in a `with` block.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the display."""

    def expect(self, tokens: int) -> None:
        """Begin a stage of several pieces, which share one total."""

    def begin(self, description: str, tokens: int) -> None:
        """Begin a piece of work."""

    def advance(self, tokens: int) -> None:
        """Count `tokens` more as done."""

    def line(self, text: str) -> None:
        """Print a line of text."""


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints every text, cell and title as it is: a path may contain rich's markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and "IPKernelApp" in shell.config


class LinesProgress(SilentProgress):
    """Print a line on standard error at most every ten seconds, while work advances.

    - `name`: the command, which begins each line. `every`: seconds. `clock`: returns seconds.

    A line has the newest piece's description, and the tokens of the stage, or of the piece if there is none. Lines that
    are passed to `line` are printed with the next one, so that shorter work prints nothing.
    """

    def __init__(self, name: str, *, every: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name)
        self.every, self.clock = every, clock
        self._description, self._in_stage = "", False
        self._tokens, self._done = 0, 0
        self._began = self._since = self._printed = clock()
        self._waiting: list[str] = []

    def __exit__(self, *_: object) -> None:
        if self.clock() - self._began >= self.every:
            self._print(None)

    def expect(self, tokens: int) -> None:
        self._description, self._in_stage = "", tokens > 0
        self._tokens, self._done, self._since = tokens, 0, self.clock()

    def begin(self, description: str, tokens: int) -> None:
        self._description = description
        if not self._in_stage:
            self._tokens, self._done, self._since = tokens, 0, self.clock()
        self.advance(0)

    def advance(self, tokens: int) -> None:
        self._done += tokens
        if self.clock() - self._printed >= self.every:
            self._print(self.state())

    def line(self, text: str) -> None:
        self._waiting.append(text)

    def state(self) -> str | None:
        """Return a line with the finished work and the time left at the mean speed; None if nothing is unfinished."""
        if not self._description or 0 < self._tokens <= self._done:
            return None
        line = f"{self.name}: {self._description}"
        if self._tokens:
            line += f": {self._done:,} of {self._tokens:,}"
        if 0 < self._done < self._tokens:
            seconds = (self.clock() - self._since) * (self._tokens - self._done) / self._done
            line += f", about {duration(seconds)} left"
        return line

    def _print(self, state: str | None) -> None:
        """Print the waiting lines and this one, without control characters; a closed standard error is no error."""
        start, self._printed = f"{self.name}: ", self.clock()
        lines = [text if text.startswith(start) else start + text for text in self._waiting]
        self._waiting = []
        for line in lines + ([] if state is None else [state]):
            plain = "".join(letter if letter.isprintable() else " " for letter in line)
            with suppress(OSError, ValueError):
                print(plain, file=sys.stderr, flush=True)


class TerminalProgress(LinesProgress):
    """Show the newest state next to rich's spinner, on a terminal's or a notebook's standard error, until the end."""

    def __init__(self, name: str) -> None:
        from rich.live import Live
        from rich.spinner import Spinner

        super().__init__(name, every=0.0)
        self.console, self._spinner = plain_console(stderr=True), Spinner("dots")
        # rich would send standard output to standard error
        self._live = Live(self._spinner, console=self.console, transient=True, redirect_stdout=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def _print(self, state: str | None) -> None:
        from rich.text import Text

        self._spinner.update(text=Text(state or self.name))


@contextmanager
def shown(name: str, given: Progress | bool | None = None, *, lines: bool = False) -> Iterator[Progress]:
    """Yield the progress of a call: `given` if it is an object, a silent one if it is False, otherwise a display.

    The display is rich's if standard error is a terminal, or in a notebook with ipywidgets. Otherwise, or if rich is
    missing, it is a line every ten seconds in a notebook and with `lines=True`, and nothing without. `name` begins each
    line. Raises `RopeError` if `given` is no progress.

    >>> with shown("doctor", False) as progress:
    ...     progress.advance(10)
    """
    if not isinstance(given, bool | None):
        if not isinstance(given, Progress):
            raise RopeError(
                f"{name}: `progress` must be True, False, None, or an object with `begin` and `advance`.",
                facts={"progress": type(given).__name__},
                cure="Leave it out to see it on a terminal and in a notebook, or pass False.",
            )
        yield given
        return
    notebook = in_notebook()
    kind: type[SilentProgress] = SilentProgress
    if given is not False and find_spec("rich") and (sys.stderr.isatty() or (notebook and find_spec("ipywidgets"))):
        kind = TerminalProgress
    elif given is not False and (lines or notebook):
        kind = LinesProgress
    with kind(name) as display:
        yield display


def expect(progress: Progress, tokens: int) -> None:
    """Begin a stage of `tokens` tokens if progress shows stages."""
    if hasattr(progress, "expect"):
        progress.expect(tokens)


def say(progress: Progress, text: str) -> None:
    """Print a line if progress is displayed."""
    if hasattr(progress, "line"):
        progress.line(text)


def duration(seconds: float) -> str:
    """Return a time in one unit, rounded for an estimate.

    >>> [duration(seconds) for seconds in (0.4, 52, 100, 3000, 8000)]
    ['1 s', '52 s', '2 min', '50 min', '2 h']
    """
    units = ((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds >= 1.5 * size)
    unit, size = next(units, ("s", 1))
    return f"{max(1, round(seconds / size))} {unit}"
