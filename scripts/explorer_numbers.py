"""Write src/ropewalk/report/numbers: what the explorer shows and takes too long to compute when it is opened.

    python scripts/explorer_numbers.py [NAME ...]

Names: presets (a minute), heads, pairings (with ROPEWALK_SMOLLM2 set also SmolLM2: two minutes), records.
Without one, all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import finite, write_whole
from ropewalk.report.explorer import head_entries, pairing_entries, published_presets
from ropewalk.report.interactive import record_entry

FOLDER = Path(__file__).resolve().parents[1] / "src" / "ropewalk" / "report" / "numbers"
RESULTS = FOLDER.parents[3] / "benchmarks" / "results"
RECORDS = {
    "SmolLM2 135M to 16,384 tokens, four windows": "doctor-smollm2-135m-first",
    "SmolLM2 135M to 16,384 tokens, more methods": "doctor-smollm2-135m",
    "SmolLM2 135M to 32,768 tokens, one window": "doctor-smollm2-135m-32k",
    "tiny to 1,024 tokens": "doctor-tiny",
}


def records() -> list[dict[str, Any]]:
    """The records that the repository holds, with a title each."""
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
