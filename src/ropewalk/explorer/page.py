"""The explorer's page: the built HTML with its numbers put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ropewalk.report.interactive import embedded

_MARKS = re.compile(r"@@(DATA|MODEL)@@")


def explorer_page(data: Mapping[str, Any], model: str = "") -> str:
    """The page as one text; it asks for nothing outside itself.

    **Arguments:**
    - `data`: what `ropewalk.explorer.data.explorer_data` returns. NaN and infinities become null.
    - `model`: what the picture of the built-in model decodes when it is asked for; base64 text.

    >>> "@@DATA@@" in explorer_page({})
    False
    """
    parts = {"DATA": embedded(data), "MODEL": model}
    return _MARKS.sub(lambda found: parts[found[1]], built_page())


def built_page() -> str:
    """The page as `make web` built it, without numbers."""
    return resources.files("ropewalk.explorer").joinpath("page.html").read_text(encoding="utf-8")
