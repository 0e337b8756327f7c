"""Write and read records of benchmarks, with the machine, the texts, and what the doctor's rule needs of a reading."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ropewalk import compiled
from ropewalk.diagnosis.evidence import Evidence, Half, choice, gather
from ropewalk.diagnosis.facts import GROUP, PlacedFact, Window
from ropewalk.diagnosis.rules import Decision, decide
from ropewalk.diagnosis.schedule import Design, WindowReading

Record = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"
PACKAGES = ("ropewalk", "torch", "transformers", "numpy", "triton")


def environment(device: str = "cpu") -> Record:
    """Return the date, commit, device, threads, load, cache, instructions of our kernels, and versions of a run."""
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        commit = None
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "device": _cpu() if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: number for name in PACKAGES if (number := _version(name)) is not None},
        "last_level_cache_bytes": last_level_cache(),
        "instructions": None if compiled.kernels is None else compiled.kernels.instruction_set(),
    }


def last_level_cache() -> int:
    """Return the bytes of the largest cache of a core on Linux; elsewhere 32 MiB."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=32 * 2**20)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to a file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with a script's docstring, for a model that reads texts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    return parser


def parsed(parser: argparse.ArgumentParser, name: str) -> tuple[argparse.Namespace, Record]:
    """Return the arguments of a record that is measured part by part, and what it has: under --again nothing."""
    parser.add_argument("--record", type=Path, default=RESULTS / name)
    parser.add_argument("--again", action="store_true", help="measure everything again, not only what the record lacks")
    given = parser.parse_args()
    saved = given.record.exists() and not given.again
    return given, json.loads(given.record.read_text(encoding="utf-8")) if saved else {}


def excerpt(folder: Path, name: str, first: int, characters: int | None = None) -> tuple[str, Record]:
    """Return characters of a text in `folder`, and their source with a digest."""
    text = (folder / f"{name}.txt").read_text(encoding="utf-8")[first:][:characters]
    return text, source_of(text, f"{name}.txt", first)


def source_of(text: str, file: str, first: int = 0) -> Record:
    """Return where a text is from: its file, first character, length and digest."""
    return {"file": file, "first": first, "characters": len(text),
            "sha256": hashlib.sha256(text.encode()).hexdigest()}  # fmt: skip


def essentials(windows: Sequence[Window], readings: Mapping[str, Sequence[WindowReading]], design: Any) -> Record:
    """Return what the doctor's rule needs of some windows, as JSON; `concluded` applies it."""

    def digits(answers: Sequence[Sequence[float]]) -> str:
        return "".join(str(choice(row)) for row in answers)

    return {
        "trained_length": design.trained_length, "target": design.target,
        "windows": [
            {"text": one.text, "start": one.start, "counted": list(one.counted),
             "frequencies": round(one.frequencies, 5), "spans": [[fact.start, fact.end] for fact in one.facts],
             "far": sum(fact.far for fact in one.facts)}
            for one in windows
        ],
        "readings": {
            method: [{"loss": list(one.loss), "choices": digits(one.answers), "stopped": one.stopped,
                      "control": {str(number): choice(row) for number, row in one.control.items()},
                      "seconds": one.seconds} for one in of]
            for method, of in readings.items()
        },
    }  # fmt: skip


def restored_essentials(run: Record) -> tuple[list[Window], dict[str, list[WindowReading]]]:
    """Return the windows and the readings of `essentials`."""
    windows = [
        Window(text=one["text"], start=one["start"], counted=tuple(one["counted"]),
                       frequencies=one["frequencies"], facts=tuple(
            PlacedFact(name="", value="", start=start, end=end, group=number // GROUP,
                           right=number % GROUP, choices=("",) * GROUP, far=number < one["far"])
            for number, (start, end) in enumerate(one["spans"])))
        for one in run["windows"]
    ]  # fmt: skip

    def row(chosen: int) -> tuple[float, ...]:
        return tuple(-float(place != chosen) for place in range(GROUP))

    readings = {
        method: [
            WindowReading(loss=tuple(one["loss"]), answers=tuple(row(int(digit)) for digit in one["choices"]),
                          control={int(number): row(chosen) for number, chosen in one["control"].items()},
                          stopped=one["stopped"], seconds=one.get("seconds", 0.0))
            for one in of]
        for method, of in run["readings"].items()
    }  # fmt: skip
    return windows, readings


def look_of(decision: Decision, half: Half | None) -> Record:
    """Return what a look at some windows concludes, with the estimate of a method's reach."""
    return {"action": decision.action, "method": decision.method, "length": decision.length,
            **{key: getattr(half, key, None) for key in ("tokens", "low", "high")}}  # fmt: skip


def tallied(looks: Sequence[tuple[float, Record]], pairs: Sequence[tuple[Record, Record]], step: int) -> Record:
    """Return counts, each with that of the cases: of looks with the true reach, and of pairs of looks.

    The interval contains the reach, the promise exceeds it; the answers are the same, and their lengths within a step.
    """
    same = [(a["length"], b["length"]) for a, b in pairs if (a["action"], a["method"]) == (b["action"], b["method"])]
    return {
        "covered": share(look["low"] <= reach and (look["high"] is None or reach <= look["high"])
                         for reach, look in looks if look["low"] is not None),
        "promised_more": share(look["length"] > reach for reach, look in looks if look["length"] is not None),
        "same_answer": [len(same), len(pairs)],
        "same_length": share(abs(a - b) <= step for a, b in same if None not in (a, b)),
    }  # fmt: skip


def share(values: Iterable[bool]) -> list[int]:
    """Return how many are true, and of how many."""
    of = list(values)
    return [sum(of), len(of)]


def concluded(run: Record, count: int) -> tuple[Decision, Evidence]:
    """Return the decision after the first windows of `essentials`, and the evidence."""
    windows, readings = restored_essentials(run)
    design = Design(trained_length=run["trained_length"], target=run["target"], windows=1)
    evidence = gather(windows[:count], {name: of[:count] for name, of in readings.items()}, design)
    return decide(evidence), evidence
