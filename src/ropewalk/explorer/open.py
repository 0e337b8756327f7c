"""The page for what the command was given, and showing it in a browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path

from ropewalk.atomic_io import read_json, write_whole
from ropewalk.audit.sources import read_source
from ropewalk.explorer.data import explorer_data
from ropewalk.explorer.model_data import packed_model
from ropewalk.explorer.page import explorer_page
from ropewalk.report.record import read_record, understood


def page_of(source: str | None = None) -> str:
    """The page, with a record of the doctor or a model first in it where one is named.

    Raises `RopeError` for what cannot be read.
    """
    if source is not None and _is_record(Path(source)):
        record = read_record(Path(source))
        with understood(record):
            return explorer_page(explorer_data(record=record), packed_model())
    return explorer_page(explorer_data(None if source is None else read_source(source)), packed_model())


def _is_record(path: Path) -> bool:
    """Whether a file is JSON of the doctor, and no config of a model."""
    if path.suffix != ".json" or not path.is_file():
        return False
    return {"protocol", "methods"} <= set(read_json(path))


def show(page: str) -> str:
    """Write the page into a new temporary folder, open it in a browser, and return what to print.

    The file stays: the browser reads it after this process has ended.
    """
    path = Path(tempfile.mkdtemp(prefix="ropewalk-")) / "explorer.html"
    write_whole(path, page)
    opened = webbrowser.open(path.as_uri())
    return str(path) if opened else f"No browser could be opened. The page is here: {path}"
