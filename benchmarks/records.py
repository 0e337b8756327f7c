"""Append and read records of benchmarks: JSON lines, each with the machine that it was measured on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timing import last_level_cache

from ropewalk.comparison import record as machine

Record = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"


def environment(device: str = "cpu") -> Record:
    """Return the date, commit, device, threads, load, cache and versions of a run."""
    return {**machine.environment(device), "last_level_cache_bytes": last_level_cache()}


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to a file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def last_run(path: Path) -> list[Record]:
    """Return the records of the last run in a file of `rotation.py`."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [record for record in records if record["run"] == records[-1]["run"]]
