"""`make parity`: compare every rotary class and causal family of transformers with ropewalk; write record and page.

    python -m tests.parity [--only NAME ...] [--page]

Started several times at once, the processes share the work; started again after a kill, it goes on where it was. The
results are kept under build/parity until something that they depend on changes. `--page` only makes the page anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk.atomic_io import write_whole
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.progress import ProgressBar
from tests.parity.causal import causal_families, check_causal
from tests.parity.check import check
from tests.parity.classes import Part, all_parts
from tests.parity.page import page

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "benchmarks" / "results" / "parity.json", ROOT / "docs" / "models.md"
_ROOMS = ("families", "rope", "rotation", "backends")
ROOMS = {"classes": _ROOMS, "causal": (*_ROOMS, "attachment")}
MODULES = {"classes": ("classes", "own", "check", "record"), "causal": ("causal", "check", "record")}


def main() -> None:
    """Measure what is not measured yet; when all is there, write the record and the page."""
    parser = argparse.ArgumentParser(prog="make parity")
    parser.add_argument("--only", nargs="*", default=[], help="classes and families of this name; writes nothing")
    parser.add_argument("--page", action="store_true", help="make the page from the record that is there")
    arguments = parser.parse_args()
    if not arguments.page:
        parts = [part for part in all_parts() if not arguments.only or _named(part, arguments.only)]
        families = [name for name in causal_families() if not arguments.only or name in arguments.only]
        rows = {
            "classes": measure("classes", {part.job: partial(check, part) for part in parts}),
            "causal": measure("causal", {name: partial(check_causal, name) for name in families}),
        }
        if arguments.only:
            print("\n".join(json.dumps(row) for kind in rows.values() for row in kind))
            return
        measured, wanted = sum(map(len, rows.values())), len(parts) + len(families)
        if measured < wanted:
            print(f"parity: {measured} of {wanted} are measured; other processes have the rest", file=sys.stderr)
            return
        rows["classes"] = [{**row, "config": part.config} for part, row in zip(parts, rows["classes"], strict=True)]
        write_record({"transformers": version("transformers"), "torch": version("torch"), **rows})
    write_whole(PAGE, page(RECORD))


def write_record(content: dict[str, Any]) -> None:
    """The record, one row on a line."""
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key not in lists]
    between = ",\n"
    tables = [f"{json.dumps(key)}: [\n{between.join(map(json.dumps, rows))}\n]" for key, rows in lists.items()]
    write_whole(RECORD, "{" + between.join(head + tables) + "}\n")


def measure(kind: str, jobs: dict[str, Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of these jobs: those that are kept already, and those that this process measures now."""
    key = _fingerprint(kind)
    ledger = Ledger(ROOT / "build" / "parity" / key, kind="parity", key=key)
    ledger.resume()
    with ProgressBar(f"parity, {kind}", total=len(jobs), every=50) as bar:
        for job, compute in jobs.items():
            bar.begin(job, 1)
            with ledger.lease(job) as ours:
                ledger.refresh()
                if ours and job not in ledger:
                    ledger.add(job, compute())
            bar.advance(1)
    ledger.refresh()
    return [ledger[job] for job in jobs if job in ledger]


def _fingerprint(kind: str) -> str:
    """What the rows depend on: the versions, the rooms below, and the modules that measure."""
    rooms = [Path(ropewalk.__file__).parent / room for room in ROOMS[kind]]
    sources = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    sources += [Path(__file__).with_name(f"{name}.py") for name in MODULES[kind]]
    return fingerprint(version("transformers"), version("torch"), *(path.read_bytes() for path in sources))


def _named(part: Part, words: list[str]) -> bool:
    return any(word.lower() in f"{part.name} {part.config}".lower() for word in words)


if __name__ == "__main__":
    main()
