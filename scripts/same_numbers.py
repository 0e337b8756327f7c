"""Whether two records hold the same numbers: `python scripts/same_numbers.py OLD NEW`.

For JSON and JSON-lines files that ropewalk writes. Losses (keys that begin with "loss") must be the same to the bit,
other numbers within the relative tolerance. Times, machines and memory are not compared, nor are texts. Exit status 1
where something differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOT_COMPARED = {
    "seconds", "environment", "peak_rss_bytes", "tokens_per_second", "cpu_seconds", "command", "threads", "out", "when",
}  # fmt: skip


def differences(old: Any, new: Any, tolerance: float, ignore: set[str], place: str = "") -> Iterator[str]:
    """Each place at which two documents differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted((old.keys() | new.keys()) - ignore, key=str):
            where = f"{place}.{key}" if place else str(key)
            if key not in old or key not in new:
                yield f"{where}: only in the {'new' if key in new else 'old'} one"
            else:
                exact = key.startswith("loss") or place.rpartition(".")[2].startswith("loss")
                yield from differences(old[key], new[key], 0.0 if exact else tolerance, ignore, where)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}: {len(old)} entries, {len(new)} in the new one"
        for index, pair in enumerate(zip(old, new, strict=False)):
            yield from differences(*pair, tolerance, ignore, f"{place}[{index}]")
    elif isinstance(old, float | int) and isinstance(new, float | int) and not isinstance(old, bool):
        if not (old == new or math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)):
            yield f"{place}: {old!r} and {new!r}"
    elif type(old) is not type(new) or (not isinstance(old, str) and old != new):
        yield f"{place}: {old!r} and {new!r}"


def read(path: Path) -> Any:
    """A JSON document, or the list of a file of JSON lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


def main() -> int:
    """Print the differences; 1 where there are some."""
    parser = argparse.ArgumentParser(description="Whether two records hold the same numbers.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-12)
    parser.add_argument("--ignore", action="append", default=[], help="a key that is not compared; repeatable")
    given = parser.parse_args()
    lines = list(differences(read(given.old), read(given.new), given.tolerance, {*NOT_COMPARED, *given.ignore}))
    print("\n".join(lines[:40]) if lines else f"the same numbers: {given.old.name}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
