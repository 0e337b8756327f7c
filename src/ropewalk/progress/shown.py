"""Where a library call shows its progress: the caller's object, a bar on a terminal or in a notebook, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ropewalk.errors import RopeError
from ropewalk.progress import Display, Progress, SilentProgress


@contextmanager
def shown(name: str, given: Progress | bool | None = None) -> Iterator[Progress]:
    """The progress of a call: `given` if it is an object; False: nothing; None or True: a bar where somebody looks.

    A notebook gets tqdm's bar, and standard error rich's if it is a terminal; where there is neither, or the package is
    missing, nothing is shown. `name` stands at the beginning.

    >>> with shown("doctor", False) as progress:
    ...     progress.advance(10)
    """
    from ropewalk.progress.notebook import NotebookBar, in_notebook

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
        from ropewalk.progress.bar import ProgressBar

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
