"""Functions that make Markdown tables from records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
Record = dict[str, Any]


def document(name: str) -> Any:
    """Read a record of one JSON document."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def lines(name: str) -> list[Record]:
    """Read a record of one JSON document per line."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines() if line.strip()]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns of numbers are right-aligned."""
    numbers = [all(re.match(r"[+-]?\d|$", row[column]) for row in rows) for column in range(len(heads))]
    rule = ["--:" if number and column else "---" for column, number in enumerate(numbers)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def where(record: Record) -> str:
    """Return the machine and the versions of a record in one line."""
    known = record.get("versions", {})
    versions = ", ".join(f"{name} {known[name]}" for name in ("torch", "transformers") if name in known)
    threads = f"{record['threads']} thread{'s' * (record['threads'] != 1)}"
    return f"{record['device']}, {threads}, {versions or 'versions not recorded'}, {record['date'][:10]}"


def milliseconds(microseconds: float) -> str:
    """Return a median in milliseconds with three digits."""
    value = microseconds / 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
