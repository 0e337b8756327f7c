"""`make parity`: compare every rotary class and causal family of transformers with ropewalk, and random configs.

    python -m tests.parity [--seed N] [--configs N] [--random] [--page]

The random configs are drawn anew each day (`--seed` is the date); the records say from which seed. Results are kept
under build/parity until something that they depend on changes: the same command resumes. `--random` leaves the
classes and families out, as `make parity OLDEST=1` does with the oldest transformers that is supported; `--page` only
makes the page anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk.atomic_io import write_whole
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.progress import expect, shown
from tests.parity.causal import causal_families, check_causal
from tests.parity.check import check
from tests.parity.classes import all_parts
from tests.parity.page import page
from tests.parity.random_configs import drawn_families, run, summary

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "benchmarks" / "results" / "parity.json", ROOT / "docs" / "models.md"
RANDOM = RECORD.with_name("parity_random.json")
PACKAGES = ("families", "rope", "rotation", "attachment")  # the rows depend on these, and on the modules that measure


def main() -> None:
    """Measure what is not measured yet; when all is there, write the record and the page."""
    parser = argparse.ArgumentParser(prog="make parity")
    parser.add_argument("--seed", type=int, default=int(datetime.now(UTC).strftime("%Y%m%d")))
    parser.add_argument("--configs", type=int, default=25, help="random configs of each family [25]")
    parser.add_argument("--random", action="store_true", help="random configs only")
    parser.add_argument("--page", action="store_true", help="make the page from the records that are there")
    arguments = parser.parse_args()
    parts = all_parts()
    jobs: dict[str, dict[str, Callable[[], dict[str, Any]]]] = {
        "classes": {part.job: partial(check, part) for part in parts},
        "causal": {name: partial(check_causal, name) for name in causal_families()},
    }
    seed, count = arguments.seed, arguments.configs
    random = {f"{name} {seed} {count}": partial(run, name, seed, count) for name in drawn_families()}
    jobs = {} if arguments.page else {"random": random} if arguments.random else {"random": random, **jobs}
    rows = {kind: measure(kind, of_kind) for kind, of_kind in jobs.items()}
    versions = {name: version(name) for name in ("transformers", "torch", "hypothesis")}
    if "random" in rows:
        runs = json.loads(RANDOM.read_text(encoding="utf-8"))["runs"] if RANDOM.exists() else []
        found = {**versions, "seed": seed, "configs": count, **summary(rows.pop("random"))}
        runs = [found, *(other for other in runs if other["transformers"] != versions["transformers"])]
        runs.sort(key=lambda of_version: of_version["transformers"], reverse=True)
        write_whole(RANDOM, json.dumps({"runs": runs}, indent=1) + "\n")
        print("\n".join(json.dumps(difference) for difference in found["differs"]))
    if rows:
        rows["classes"] = [{**row, "config": part.config} for part, row in zip(parts, rows["classes"], strict=True)]
        write_record({"transformers": versions["transformers"], "torch": versions["torch"], **rows})
    write_whole(PAGE, page(RECORD, RANDOM))


def write_record(content: dict[str, Any]) -> None:
    """The record, one row on a line."""
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key not in lists]
    between = ",\n"
    tables = [f"{json.dumps(key)}: [\n{between.join(map(json.dumps, rows))}\n]" for key, rows in lists.items()]
    write_whole(RECORD, "{" + between.join(head + tables) + "}\n")


def measure(kind: str, jobs: dict[str, Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of these jobs: those that are kept already, and those that are measured now."""
    folders = [Path(ropewalk.__file__).parent / package for package in PACKAGES]
    sources = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    sources += [path for path in sorted(Path(__file__).parent.glob("*.py")) if path.stem != "page"]
    key = fingerprint(kind, version("transformers"), version("torch"), *(path.read_bytes() for path in sources))
    ledger = Ledger(ROOT / "build" / "parity" / key, kind="parity", key=key)
    ledger.open()
    with shown(f"parity, {kind}", lines=True) as bar:
        expect(bar, len(jobs))
        for job, compute in jobs.items():
            bar.begin(job, 1)
            if job not in ledger:
                ledger.add(job, compute())
            bar.advance(1)
    return [ledger[job] for job in jobs if job in ledger]


if __name__ == "__main__":
    main()
