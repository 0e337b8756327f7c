"""Say which machine ran what, in one sentence of the records, and draw the records of `scripts/gpu.py`.

python scripts/docs_status.py           # prints both
python scripts/docs_status.py --write   # also writes the sentence into README.md, between its markers
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, README = ROOT / "benchmarks" / "results", ROOT / "README.md"
TIMED = ("rotation", "attention", "forward", "decode")  # records of the CPU, NAME.jsonl
STEPS = ("tests", "rotation", "decode", "doctor")  # records of a GPU, gpu-NAME.jsonl
MARKED = re.compile(r"<!-- status -->.*?<!-- /status -->", re.DOTALL)
INSTRUCTIONS = {"avx512_bf16": "AVX-512 with BF16", "avx512": "AVX-512", "avx2": "AVX2", "neon_bf16": "Arm with BF16",
                "neon": "Arm", "portable": "no vector instructions"}  # fmt: skip
Record = dict[str, Any]
DRAWN = runpy.run_path(str(Path(__file__).with_name("docs_drawn.py")))
table, milliseconds = DRAWN["table"], DRAWN["milliseconds"]


def records(name: str, results: Path = RESULTS) -> list[Record]:
    """Return the records of a file; none if there is no such file."""
    path = results / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()] if path.is_file() else []


def on_gpus(step: str, results: Path = RESULTS) -> list[Record]:
    """Return the last result of each key and GPU of a step; none of the interpreter.

    A job that was stopped or skipped later does not hide an earlier result.
    """
    last: dict[tuple[str, str], Record] = {}
    for one in records(f"gpu-{step}", results):
        if not one["interpreter"] and one["status"] not in ("stopped", "skipped"):
            last[one["place"], one["key"]] = one
    return list(last.values())


def status(results: Path = RESULTS) -> str:
    """Return which CPUs and GPUs the times are from, in two sentences."""
    machines: dict[str, tuple[set[str], str]] = {}
    for name in TIMED:
        for one in records(name, results):
            names, newest = machines.setdefault(one["device"], (set(), ""))
            names |= {one["instructions"]} if one.get("instructions") else set()
            machines[one["device"]] = names, max(newest, one["date"][:10])
    cpus = []
    for device, (names, newest) in sorted(machines.items(), key=lambda item: item[1][1], reverse=True):
        known = [label for key, label in INSTRUCTIONS.items() if key in names]
        cpus.append(f"{device} ({', '.join([*known, f'last on {newest}'])})")
    return f"CPU times: {'; '.join(cpus) or 'none'}. {gpus(results)}"


def gpus(results: Path = RESULTS) -> str:
    """Return which GPUs ran the Triton kernels, and how many checks failed there."""
    newest: dict[str, str] = {}
    wrong: dict[str, int] = {}
    for step in STEPS:
        for one in on_gpus(step, results):
            newest[one["place"]] = max(newest.get(one["place"], ""), one["date"][:10])
            bad = 0 if one["status"] == "done" else len(one.get("bad", [])) or 1
            wrong[one["place"]] = wrong.get(one["place"], 0) + bad
    if not newest:
        return "No GPU was at hand: the Triton kernels ran in Triton's interpreter only."
    parts = []
    for place, date in sorted(newest.items(), key=lambda item: item[1], reverse=True):
        parts.append(f"{place} (last on {date}" + (f"; {wrong[place]} checks failed)" if wrong[place] else ")"))
    return f"GPU times: {'; '.join(parts)}."


def gpu(results: Path = RESULTS) -> str:
    """Return the section of the GPU's records; nothing without any."""
    parts = [part for make in (_tests, _rotation, _decode, _models) for part in make(results)]
    return "\n\n".join(["## On a GPU", *parts]) if parts else ""


def _tests(results: Path) -> Iterator[str]:
    for one in (one for one in on_gpus("tests", results) if "outcomes" in one):
        counts = ", ".join(f"{count} {name.lower()}" for name, count in sorted(one["outcomes"].items()))
        failed = f" Failed: {', '.join(f'`{name}`' for name in one['bad'])}." if one["bad"] else ""
        yield f"Tests on {one['place']} ({one['date'][:10]}), `{one['key']}`: {counts}.{failed}"


def _rotation(results: Path) -> Iterator[str]:
    rows = []
    for one in on_gpus("rotation", results):
        if one["status"] != "done":
            rows.append([one["place"], f"{one['key']}: {one['status']}", "", "", ""])
            continue
        for name, ratio in sorted(one["over_copy"].items(), key=lambda item: item[1]):
            rows.append([one["place"], f"{one['kind']}, {one['case']}", name,
                         milliseconds(one["microseconds"][name]["p50"]), f"{ratio:.2f}"])  # fmt: skip
    if rows:
        heads = ["GPU", "rotation", "by", "ms", "over a copy of the same bytes"]
        yield table(heads, rows)


def _decode(results: Path) -> Iterator[str]:
    rows = []
    for one in on_gpus("decode", results):
        if one["status"] == "done":
            times = one["microseconds"]
            rest = [f"{name} {milliseconds(each['p50'])}" for name, each in times.items() if name != "ropewalk"]
            rows.append([one["place"], f"{one['key']}, {one['model']}", milliseconds(times["ropewalk"]["p50"]),
                         ", ".join(rest)])  # fmt: skip
    if rows:
        yield table(["GPU", "one token", "ropewalk, ms", "others, ms"], rows)


def _models(results: Path) -> Iterator[str]:
    for one in on_gpus("doctor", results):
        if one["status"] == "done":
            sentence = one["result"]["verdict"]["sentence"]
            yield f"Doctor on {one['model']} at {one['target']:,} tokens, {one['place']}: {sentence}"


def written(text: str, sentence: str) -> str:
    """Return the README with the sentence between its markers; raise ValueError without them."""
    if len(MARKED.findall(text)) != 1:
        raise ValueError("README.md needs <!-- status --> and <!-- /status --> once")
    return MARKED.sub(lambda _: f"<!-- status -->{sentence}<!-- /status -->", text)


TABLES = {"status": status, "gpu": gpu}


def main() -> int:
    """Print, and with --write change the README."""
    if "--write" in sys.argv[1:]:
        README.write_text(written(README.read_text("utf-8"), status()), encoding="utf-8")
    sys.stdout.write(f"{status()}\n\n{gpu()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
