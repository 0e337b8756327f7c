"""Write src/ropewalk/explorer/numbers: what the explorer shows and takes too long to compute when it is opened.

    python scripts/explorer_numbers.py [NAME ...]

Names: presets (two minutes). Without one, all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import finite, write_whole
from ropewalk.explorer.presets import published_presets

FOLDER = Path(__file__).resolve().parents[1] / "src" / "ropewalk" / "explorer" / "numbers"
MADE: dict[str, Callable[[], Any]] = {"presets": published_presets}


def as_text(found: Any) -> str:
    """JSON, a list's entry to a line: a change shows what changed."""
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
