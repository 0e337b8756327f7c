"""Report the progress of long work: on a terminal, in a notebook, to the caller's object, or nowhere."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from ropewalk.errors import RopeError

_FIRST_LINES = 10


@runtime_checkable
class Progress(Protocol):
    """What long work calls while it runs: never from two threads at the same time."""

    def begin(self, description: str, tokens: int) -> None:
        """A piece of work begins, for which so many tokens will go through the model."""

    def advance(self, tokens: int) -> None:
        """So many more tokens have gone through the model."""


@runtime_checkable
class Display(Progress, Protocol):
    """A progress that is looked at: it also takes the size of a stage, and lines of text."""

    def expect(self, tokens: int) -> None:
        """A stage of several pieces begins, of so many tokens in all."""

    def line(self, text: str) -> None:
        """A line that stays."""


class SilentProgress:
    """Shows nothing."""

    def begin(self, description: str, tokens: int) -> None:
        """Nothing."""

    def advance(self, tokens: int) -> None:
        """Nothing."""


class ProgressBar:
    """Shows work as it is done: a `ropewalk.progress.Progress`, to be used in a `with` block.

    - `name`: the command, which begins each line.
    - `total`: of all pieces of work together, in the unit of `begin` and `advance`; None: each piece has a bar of its
      own, from its beginning to its end.
    - `every`: elsewhere than on a terminal, after ten lines only each `every`-th piece has one.
    - `lines`: False where the command prints lines of its own, so that a piece has none elsewhere than on a terminal.

    Work that runs in several processes names its pieces by `key`: each has a bar until `end(key)`.
    """

    def __init__(self, name: str, *, total: int | None = None, every: int = 1, lines: bool = True) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskID,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.name, self.total, self.every, self.lines = name, total, every, lines
        self.console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
            redirect_stdout=False,  # rich would send it to standard error
        )
        self._tasks: dict[str | None, TaskID] = {None: self._bar.add_task(name, total=total, note="")}
        self._line, self._pieces = "", 0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, description: str, tokens: int, key: str | None = None) -> None:
        """A piece of work begins, of so many tokens (or steps, files, rows); 0 where nobody knows."""
        if key is not None and key not in self._tasks:
            self._tasks[key] = self._bar.add_task(description, total=tokens or None, note="")
        elif key is None and self.total is not None:
            self._bar.update(self._tasks[None], description=description)
        else:
            self._bar.reset(self._tasks[key], description=description, total=tokens or None)
        if description != self._line and self.lines and not self.console.is_terminal:
            self._pieces += 1
            if self._pieces <= _FIRST_LINES or self._pieces % self.every == 0:
                self.line(f"{self.name}: {description}")
        self._line = description

    def expect(self, tokens: int) -> None:
        """A stage of several pieces begins: the bar is theirs together, of so many in all."""
        self.total = tokens
        self._bar.reset(self._tasks[None], description=self.name, total=tokens)

    def advance(self, tokens: int, key: str | None = None) -> None:
        """So many more are done."""
        self._bar.advance(self._tasks[key], tokens)

    def advance_to(self, tokens: int, key: str | None = None) -> None:
        """So many are done in all."""
        self._bar.update(self._tasks[key], completed=tokens)

    def note(self, text: str, key: str | None = None) -> None:
        """A word beside the bar: the loss, the speed. Elsewhere than on a terminal it is not shown."""
        self._bar.update(self._tasks[key], note=text)

    def end(self, key: str) -> None:
        """Take the bar of a piece away."""
        self._bar.remove_task(self._tasks.pop(key))

    def line(self, text: str) -> None:
        """A line of its own, above the bar, which stays."""
        self.console.print(text, soft_wrap=True, markup=False)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel; asks IPython only where it is loaded."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and "IPKernelApp" in shell.config


class NotebookBar:
    """Shows work in a notebook: a `ropewalk.progress.Display`, to be used in a `with` block. `name` begins each line.

    It is taken away at the end: what stays in the notebook is the result.
    """

    def __init__(self, name: str) -> None:
        with warnings.catch_warnings():  # without ipywidgets tqdm warns, and draws the bar as text
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm

            self._bar: Any = tqdm(desc=name, total=0, unit="tokens", unit_scale=True, leave=False)

    def __enter__(self) -> NotebookBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def expect(self, tokens: int) -> None:
        """A stage begins."""
        self._bar.reset(total=tokens)

    def begin(self, description: str, tokens: int) -> None:
        """A piece of work begins."""
        self._bar.set_description(description)

    def advance(self, tokens: int) -> None:
        """So many more are done."""
        self._bar.update(tokens)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._bar.write(text)


@contextmanager
def shown(name: str, given: Progress | bool | None = None) -> Iterator[Progress]:
    """The progress of a call: `given` if it is an object; False: nothing; None or True: a bar where somebody looks.

    A notebook gets tqdm's bar, and standard error rich's if it is a terminal; where there is neither, or the package is
    missing, nothing is shown. `name` stands at the beginning.

    >>> with shown("doctor", False) as progress:
    ...     progress.advance(10)
    """
    if not isinstance(given, bool | None):
        if not isinstance(given, Progress):
            raise RopeError(
                f"{name}: `progress` is True, False, None, or an object with `begin` and `advance`.",
                facts={"progress": type(given).__name__},
                cure="Leave it out for a bar on a terminal and in a notebook, or pass False for none.",
            )
        yield given
    elif given is not False and in_notebook() and find_spec("tqdm"):
        with NotebookBar(name) as bar:
            yield bar
    elif given is not False and sys.stderr.isatty() and find_spec("rich"):
        with ProgressBar(name, total=0, lines=False) as on_terminal:
            yield on_terminal
    else:
        yield SilentProgress()


def expect(progress: Progress, tokens: int) -> None:
    """A stage of so many tokens begins; a progress that does not show stages is left alone."""
    if isinstance(progress, Display):
        progress.expect(tokens)


def say(progress: Progress, text: str) -> None:
    """A line for one who looks."""
    if isinstance(progress, Display):
        progress.line(text)
