"""The page for what the command was given, and showing it in a browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path

from ropewalk.atomic_io import write_whole
from ropewalk.audit.sources import read_source
from ropewalk.explorer.data import explorer_data
from ropewalk.explorer.model_data import packed_model
from ropewalk.explorer.page import explorer_page


def page_of(source: str | None = None) -> str:
    """The page, with a model first in it where one is named. Raises `RopeError` for what cannot be read."""
    return explorer_page(explorer_data(None if source is None else read_source(source)), packed_model())


def show(page: str) -> str:
    """Write the page into a new temporary folder, open it in a browser, and return what to print.

    The file stays: the browser reads it after this process has ended.
    """
    path = Path(tempfile.mkdtemp(prefix="ropewalk-")) / "explorer.html"
    write_whole(path, page)
    opened = webbrowser.open(path.as_uri())
    return str(path) if opened else f"No browser could be opened. The page is here: {path}"
