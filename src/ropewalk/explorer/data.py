"""The numbers that the explorer shows, in the form that web/src/data.ts describes.

What takes a moment is computed here; what takes longer, or comes from a record, is read from the folder `numbers`,
which scripts/explorer_numbers.py writes.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from ropewalk.audit.sources import Source
from ropewalk.explorer.biases import encoding_entries
from ropewalk.explorer.family_ropes import family_entries
from ropewalk.explorer.methods import method_entries
from ropewalk.explorer.presets import preset_entries
from ropewalk.report.interactive import record_entry
from ropewalk.report.record import Document, short_name
from ropewalk.version import __version__


def explorer_data(
    source: Source | None = None, record: Document | None = None, *, site: str | None = None
) -> dict[str, Any]:
    """Everything that the page reads, as what JSON can hold.

    **Arguments:**
    - `source`: a model whose ropes stand first among the presets, as `read_source` returns it.
    - `record`: a document of the doctor that stands first among the records.
    - `site`: the folder of the documentation's pages relative to the page; None where there is none.

    >>> sorted(explorer_data())[:2]
    ['encodings', 'families']
    """
    own = [] if source is None else preset_entries(source, f"{source.name} (opened)", "opened")
    records = [] if record is None else [{"title": f"{short_name(record)} (opened)", **record_entry(record)}]
    return {
        "version": __version__,
        "site": site,
        "presets": [*own, *numbers("presets")],
        "families": family_entries(),
        "methods": method_entries(),
        "encodings": encoding_entries(),
        "heads": numbers("heads"),
        "pairings": numbers("pairings"),
        "records": [*records, *numbers("records")],
        "opened": {"preset": own[0]["id"] if own else None, "record": 0 if records else None},
    }


def numbers(name: str) -> Any:
    """What stands in one file of the folder `numbers`."""
    return json.loads(resources.files("ropewalk.explorer").joinpath("numbers", f"{name}.json").read_text("utf-8"))
