"""The progress bar of a notebook, by tqdm: a widget where ipywidgets is installed, else a line of text."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any


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
