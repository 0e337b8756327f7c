"""Write and read records of benchmarks, with the machine, the texts, and what the doctor's rule needs of a reading."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from timing import last_level_cache

from ropewalk import compiled
from ropewalk.diagnosis.evidence import Evidence, choice, gather
from ropewalk.diagnosis.facts import GROUP, PlacedFact, Window
from ropewalk.diagnosis.plan import Design, WindowReading
from ropewalk.diagnosis.rules import Decision, decide
from ropewalk.precision import half_instructions, is_slow, slow_dtype

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


def add_instructions(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits our kernels and torch's to an instruction set, as on a machine without better ones."""
    names = [] if compiled.kernels is None else compiled.kernels.instruction_sets()
    parser.add_argument("--instructions", choices=names, help="of our kernels, and of torch's; default: the best")


def use_instructions(name: str | None) -> None:
    """Run our kernels with an instruction set; for avx2, torch's must be limited by the environment.

    **Raises:** SystemExit with the variables that limit torch, which it reads when it starts.
    """
    if name is None or compiled.kernels is None:
        return
    compiled.kernels.use_instruction_set(name)
    wanted = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    if name == "avx2" and any(os.environ.get(key) != value for key, value in wanted.items()):
        raise SystemExit(f"set {' '.join(f'{key}={value}' for key, value in wanted.items())} before Python starts")


def slow_products(dtype: torch.dtype) -> str | None:
    """Return why a matrix product in a dtype is not measured: torch multiplies it slowly here, up to 55 s a product."""
    return is_slow(dtype) if slow_dtype(dtype, "cpu") and half_instructions(dtype, "cpu") is None else None


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to a file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def add_again(parser: argparse.ArgumentParser, record: Path) -> None:
    """Add the options of a record that is measured part by part."""
    parser.add_argument("--record", type=Path, default=record)
    parser.add_argument("--again", action="store_true", help="measure everything again, not only what the record lacks")


def started(given: argparse.Namespace, *parts: str) -> Record:
    """Return the record to go on with: what is saved; under --again without these parts, or nothing."""
    if not given.record.exists() or (given.again and not parts):
        return {}
    saved: Record = json.loads(given.record.read_text(encoding="utf-8"))
    return {name: part for name, part in saved.items() if not (given.again and name in parts)}


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


def concluded(run: Record, count: int) -> tuple[Decision, Evidence]:
    """Return the decision after the first windows of `essentials`, and the evidence."""
    windows, readings = restored_essentials(run)
    design = Design(trained_length=run["trained_length"], target=run["target"], windows=1)
    evidence = gather(windows[:count], {name: of[:count] for name, of in readings.items()}, design)
    return decide(evidence), evidence


def verified(
    model: Path, url: str, expect: str | None, state: Path, spent: Callable[[], float], threads: int = 1
) -> dict[str, Any]:
    """Run `ropewalk verify` against a server, as a user does; return its verdict, and what it and the server cost.

    `state`: the folder of saved predictions. `spent`: returns processor seconds so far.
    """
    result = state / "verify.json"
    state.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ropewalk", "verify", model, "--engine", url, "--state", state, "--json", result]
    command += [] if expect is None else ["--expect", expect]
    begun, before = time.monotonic(), spent()
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=False)
    seconds, cost = time.monotonic() - begun, spent() - before
    content = json.loads(result.read_text())
    verdict = content["verdict"]
    if verdict["kind"] == "failed":
        raise SystemExit(verdict["sentence"])
    return {
        "exit_status": done.returncode, **{key: verdict[key] for key in ("kind", "sentence", "up_to", "decoding")},
        "named": verdict["applied"], "not_excluded": verdict["not_excluded"],
        **{key: content[key] for key in ("noise", "residual", "requests")},
        "seconds": round(seconds, 1), "cpu_seconds": round(cost, 1),
    }  # fmt: skip
