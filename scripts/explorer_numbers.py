"""Write src/ropewalk/figures/numbers: numbers of the explorer that take too long to compute when it opens.

    python scripts/explorer_numbers.py [NAME ...]

Names: presets (a minute), heads, pairings (with SmolLM2 if ROPEWALK_SMOLLM2 is set: two minutes).
Defaults to all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import finite, write_whole
from ropewalk.figures.explorer import head_entries, pairing_entries, published_presets

FOLDER = Path(__file__).resolve().parents[1] / "src" / "ropewalk" / "figures" / "numbers"
MADE: dict[str, Callable[[], Any]] = {
    "presets": published_presets,
    "heads": head_entries,
    "pairings": pairing_entries,
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
