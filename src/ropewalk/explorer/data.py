"""The numbers that the explorer shows, in the form that web/src/data.ts describes.

What takes a moment is computed here; what takes longer, or comes from a record, is read from the folder `numbers`,
which scripts/explorer_numbers.py writes.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from ropewalk.audit.sources import Source
from ropewalk.explorer.methods import method_entries
from ropewalk.explorer.presets import preset_entries
from ropewalk.version import __version__


def explorer_data(source: Source | None = None, *, site: str | None = None) -> dict[str, Any]:
    """Everything that the page reads, as what JSON can hold.

    **Arguments:**
    - `source`: a model whose ropes stand first among the presets, as `read_source` returns it.
    - `site`: the folder of the documentation's pages relative to the page; None where there is none.

    >>> sorted(explorer_data())[:2]
    ['methods', 'opened']
    """
    own = [] if source is None else preset_entries(source, f"{source.name} (opened)", "opened")
    return {
        "version": __version__,
        "site": site,
        "presets": [*own, *numbers("presets")],
        "methods": method_entries(),
        "opened": {"preset": own[0]["id"] if own else None, "record": None},
    }


def numbers(name: str) -> Any:
    """What stands in one file of the folder `numbers`."""
    return json.loads(resources.files("ropewalk.explorer").joinpath("numbers", f"{name}.json").read_text("utf-8"))
