"""The one progress bar: a bar on a terminal, lines elsewhere; both on standard error."""

from __future__ import annotations

from types import TracebackType

_FIRST_LINES = 10


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
