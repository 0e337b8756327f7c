"""The explorer: one HTML page of interactive pictures about rotary position embeddings."""

from __future__ import annotations

import re
import tempfile
import webbrowser
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json, write_whole
from ropewalk.audit.sources import read_source
from ropewalk.report.explorer_data import explorer_data
from ropewalk.report.explorer_model import packed_model
from ropewalk.report.interactive import embedded
from ropewalk.report.record import read_record, understood

_MARKS = re.compile(r"@@(DATA|MODEL)@@")


def explorer_page(data: Mapping[str, Any], model: str = "") -> str:
    """The page as one text; it asks for nothing outside itself.

    **Arguments:**
    - `data`: what `ropewalk.report.explorer_data.explorer_data` returns. NaN and infinities become null.
    - `model`: what the picture of the built-in model decodes when it is asked for; base64 text.

    >>> "@@DATA@@" in explorer_page({})
    False
    """
    parts = {"DATA": embedded(data), "MODEL": model}
    return _MARKS.sub(lambda found: parts[found[1]], built_page())


def built_page() -> str:
    """The page as `make web` built it, without numbers."""
    return resources.files("ropewalk.report").joinpath("explorer.html").read_text(encoding="utf-8")


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
