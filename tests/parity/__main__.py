"""`make parity`: compare every rotary class of the installed transformers with ropewalk, and write record and page.

    python -m tests.parity [--only NAME ...] [--page]

Started several times at once, the processes share the work; started again after a kill, it goes on where it was. The
results are kept under build/parity until something that they depend on changes. `--page` only makes the page anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk.atomic_io import write_whole
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.progress.bar import ProgressBar
from tests.parity.classes import Part, all_parts
from tests.parity.page import page

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "benchmarks" / "results" / "parity.json", ROOT / "docs" / "models.md"
ROOMS = ("families", "rope", "rotation", "backends")


def main() -> None:
    """Measure what is not measured yet; when all is there, write the record and the page."""
    parser = argparse.ArgumentParser(prog="make parity")
    parser.add_argument("--only", nargs="*", default=[], help="classes whose names hold one of these; writes nothing")
    parser.add_argument("--page", action="store_true", help="make the page from the record that is there")
    arguments = parser.parse_args()
    if not arguments.page:
        parts = [part for part in all_parts() if not arguments.only or _named(part, arguments.only)]
        rows = measure(parts)
        if arguments.only:
            print("\n".join(f"{row['class']} {row['family']}: {row['status']} {row.get('reason', '')}" for row in rows))
            return
        if len(rows) < len(parts):
            print(f"parity: {len(rows)} of {len(parts)} are measured; other processes have the rest", file=sys.stderr)
            return
        write_record({"transformers": version("transformers"), "torch": version("torch"), "classes": rows})
    write_whole(PAGE, page(RECORD))


def write_record(content: dict[str, Any]) -> None:
    """The record, one row on a line."""
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key not in lists]
    between = ",\n"
    tables = [f"{json.dumps(key)}: [\n{between.join(map(json.dumps, rows))}\n]" for key, rows in lists.items()]
    write_whole(RECORD, "{" + between.join(head + tables) + "}\n")


def measure(parts: list[Part]) -> list[dict[str, Any]]:
    """The rows of these classes: those that are kept already, and those that this process measures now."""
    from tests.parity.check import check

    key = _fingerprint()
    ledger = Ledger(ROOT / "build" / "parity" / key, kind="parity", key=key)
    ledger.resume()
    with ProgressBar("parity", total=len(parts), every=50) as bar:
        for part in parts:
            bar.begin(f"{part.name} {part.config}", 1)
            with ledger.lease(part.job) as ours:
                ledger.refresh()
                if ours and part.job not in ledger:
                    ledger.add(part.job, check(part))
            bar.advance(1)
    ledger.refresh()
    return [ledger[part.job] for part in parts if part.job in ledger]


def _fingerprint() -> str:
    """What the rows depend on: the versions, the rooms below, and these modules."""
    folders = [Path(ropewalk.__file__).parent / room for room in ROOMS] + [Path(__file__).parent]
    sources = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))]
    return fingerprint(version("transformers"), version("torch"), *sources)


def _named(part: Part, words: list[str]) -> bool:
    return any(word.lower() in f"{part.name} {part.config}".lower() for word in words)


if __name__ == "__main__":
    main()
