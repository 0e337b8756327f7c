"""Report the progress of long work: on a terminal, in a notebook, to the caller's object, or nowhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console

EVERY_SECONDS = 10.0  # between two lines of `LinesProgress`


@runtime_checkable
class Progress(Protocol):
    """Receive the progress of long work, in calls from one thread at a time."""

    def begin(self, description: str, tokens: int) -> None:
        """Begin a piece of work in which the model processes `tokens` tokens."""

    def advance(self, tokens: int) -> None:
        """Count `tokens` more tokens as processed."""


@runtime_checkable
class Display(Progress, Protocol):
    """Receive the size of stages and lines of text, too."""

    def expect(self, tokens: int) -> None:
        """Begin a stage of several pieces with `tokens` tokens in total."""

    def line(self, text: str) -> None:
        """Print a line above the bar."""


class SilentProgress:
    """Show nothing."""

    def begin(self, description: str, tokens: int) -> None:
        """Do nothing."""

    def advance(self, tokens: int) -> None:
        """Do nothing."""


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints every text, cell and title as it is: a path may contain rich's markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


class ProgressBar:
    """Show rich's bar on standard error, a terminal's or a notebook's; use it in a `with` block.

    `name` is the bar's description before work begins. The bar disappears at the end of the block.
    """

    def __init__(self, name: str) -> None:
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        self.name, self._in_stage = name, False
        self.console = plain_console(stderr=True)
        _, *bar, left = Progress.get_default_columns()
        self._bar = Progress(
            *(TextColumn("{task.description}", markup=False), *bar, TimeElapsedColumn(), left),
            console=self.console,
            transient=True,
            redirect_stdout=False,  # rich would send it to standard error
        )
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, tokens: int) -> None:
        """Begin a stage of several pieces, which share one bar with this total."""
        self._in_stage = True
        self._bar.reset(self._task, description=self.name, total=tokens)

    def begin(self, description: str, tokens: int) -> None:
        """Begin a piece of work of `tokens` tokens; 0 if the number is unknown."""
        if self._in_stage:
            self._bar.update(self._task, description=description)
        else:
            self._bar.reset(self._task, description=description, total=tokens or None)

    def advance(self, tokens: int) -> None:
        """Count `tokens` more as done."""
        self._bar.advance(self._task, tokens)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, soft_wrap=True)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and "IPKernelApp" in shell.config


class LinesProgress:
    """Print a line on standard error at most every ten seconds, while work advances; use it in a `with` block.

    - `name`: the command, which begins each line. `every`: seconds. `clock`: returns seconds.

    A line has the newest piece's description, and the tokens of the stage, or of the piece if there is none. Lines that
    are passed to `line` are printed with the next one, so that shorter work prints nothing.
    """

    def __init__(self, name: str, *, every: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.every, self.clock = name, every, clock
        self._description, self._in_stage = "", False
        self._tokens, self._done = 0, 0
        self._began = self._since = self._printed = clock()
        self._waiting: list[str] = []

    def __enter__(self) -> LinesProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.clock() - self._began >= self.every:
            self._print(None)

    def expect(self, tokens: int) -> None:
        """Begin a stage of several pieces, which share this total."""
        self._description, self._in_stage = "", tokens > 0
        self._tokens, self._done, self._since = tokens, 0, self.clock()

    def begin(self, description: str, tokens: int) -> None:
        """Begin a piece of work; 0 tokens if their number is unknown."""
        self._description = description
        if not self._in_stage:
            self._tokens, self._done, self._since = tokens, 0, self.clock()
        self.advance(0)

    def advance(self, tokens: int) -> None:
        """Count `tokens` more tokens as done, and print a line if the last one is ten seconds old."""
        self._done += tokens
        if self.clock() - self._printed >= self.every:
            self._print(self.state())

    def line(self, text: str) -> None:
        """Print a line together with the next report."""
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


@contextmanager
def shown(name: str, given: Progress | bool | None = None, *, lines: bool = False) -> Iterator[Progress]:
    """Yield the progress of a call: `given` if it is an object, a silent one if it is False, otherwise a display.

    The display is rich's bar if standard error is a terminal, or in a notebook with ipywidgets. Otherwise, or if rich
    is missing, it is a line every ten seconds in a notebook and with `lines=True`, and nothing without. `name` begins
    each line. Raises `RopeError` if `given` is no progress.

    >>> with shown("doctor", False) as progress:
    ...     progress.advance(10)
    """
    if not isinstance(given, bool | None):
        if not isinstance(given, Progress):
            raise RopeError(
                f"{name}: `progress` must be True, False, None, or an object with `begin` and `advance`.",
                facts={"progress": type(given).__name__},
                cure="Leave it out for a bar on a terminal and in a notebook, or pass False for none.",
            )
        yield given
        return
    notebook = given is not False and in_notebook()
    if given is not False and find_spec("rich") and (sys.stderr.isatty() or (notebook and find_spec("ipywidgets"))):
        with ProgressBar(name) as bar:
            yield bar
    elif given is not False and (lines or notebook):
        with LinesProgress(name) as on_lines:
            yield on_lines
    else:
        yield SilentProgress()


def expect(progress: Progress, tokens: int) -> None:
    """Begin a stage of `tokens` tokens if progress shows stages."""
    if isinstance(progress, Display):
        progress.expect(tokens)


def say(progress: Progress, text: str) -> None:
    """Print a line if progress is displayed."""
    if isinstance(progress, Display):
        progress.line(text)


def duration(seconds: float) -> str:
    """Return a time in one unit, rounded for an estimate.

    >>> [duration(seconds) for seconds in (0.4, 52, 100, 3000, 8000)]
    ['1 s', '52 s', '2 min', '50 min', '2 h']
    """
    units = ((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds >= 1.5 * size)
    unit, size = next(units, ("s", 1))
    return f"{max(1, round(seconds / size))} {unit}"
