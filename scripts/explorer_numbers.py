"""Write src/ropewalk/report/numbers: numbers of the explorer that take too long to compute when it opens.

    python scripts/explorer_numbers.py [NAME ...]

Names: presets (a minute), heads, pairings (with SmolLM2 if ROPEWALK_SMOLLM2 is set: two minutes), records.
Defaults to all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import finite, write_whole
from ropewalk.report.explorer import head_entries, pairing_entries, published_presets
from ropewalk.report.inline import record_entry

FOLDER = Path(__file__).resolve().parents[1] / "src" / "ropewalk" / "report" / "numbers"
RESULTS = FOLDER.parents[3] / "benchmarks" / "results"
RECORDS = {
    "SmolLM2 135M to 16,384 tokens": "doctor-smollm2-16k",
    "SmolLM2 135M to 16,384 tokens, more methods": "doctor-smollm2-135m",
    "SmolLM2 135M to 32,768 tokens, one window": "doctor-smollm2-135m-32k",
    "tiny to 1,024 tokens": "doctor-tiny",
}


def records() -> list[dict[str, Any]]:
    """Return the repository's records, each with a title."""
    return [
        {"title": title, **record_entry(json.loads((RESULTS / f"{name}.json").read_text("utf-8")))}
        for title, name in RECORDS.items()
    ]


MADE: dict[str, Callable[[], Any]] = {
    "presets": published_presets,
    "heads": head_entries,
    "pairings": pairing_entries,
    "records": records,
}


def as_text(found: Any) -> str:
    """Return JSON with one line for each entry of a list, for readable diffs."""
    if not isinstance(found, list):
        return json.dumps(finite(found), separators=(",", ":"), allow_nan=False) + "\n"
    return (
        "[\n"
        + ",\n".join(as_text(entry).rstrip("\n") if isinstance(entry, dict) else json.dumps(entry) for entry in found)
        + "\n]\n"
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or MADE:
        write_whole(FOLDER / f"{name}.json", as_text(MADE[name]()))
        print(FOLDER / f"{name}.json")
