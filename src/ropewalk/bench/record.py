"""Records of a run: one JSON line after another, each with the environment that it was measured in."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ropewalk.bench.timing import last_level_cache
from ropewalk.errors import RopeError

Record = dict[str, Any]

PACKAGES = ("ropewalk", "torch", "transformers", "numpy", "onnxruntime", "openvino", "jax", "rotary-embedding-torch",
            "triton", "liger-kernel", "flash-attn")  # fmt: skip
EVERY = ("run", "kind", "preset", "place", "device", "threads", "load", "commit", "date", "versions")
GROUP = ("case", "tokens", "dtype", "bytes", "microseconds", "skipped")
CHECKOUT = Path(__file__).resolve().parents[3]


def in_checkout() -> bool:
    """Whether this package runs from a checkout of its repository."""
    return (CHECKOUT / "benchmarks" / "run.py").is_file() and (CHECKOUT / "src" / "ropewalk").is_dir()


def results_file(name: str) -> Path:
    """Where a benchmark appends its records: `benchmarks/results/NAME` of a checkout, else ./ropewalk-bench.jsonl."""
    return CHECKOUT / "benchmarks" / "results" / name if in_checkout() else Path("ropewalk-bench.jsonl")


def environment(device: str = "cpu") -> Record:
    """Versions, device, threads, load, cache, commit and date of a run."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "device": _cpu() if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "last_level_cache_bytes": last_level_cache(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to a file of records."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
    except OSError as error:
        raise RopeError(
            "bench: the record cannot be written.",
            facts={"file": str(path), "error": str(error)},
            cure="Choose a file that you may write to: --out FILE.",
        ) from error


def last_run(path: Path) -> list[Record]:
    """The records of the last run in a file of `ropewalk bench`."""
    try:
        found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        run = found[-1]["run"]
        last = [record for record in found if record["run"] == run]
        missing = {field for record in last for field in _fields(record) - set(record)}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _unreadable(path, str(error)) from error
    if missing:
        raise _unreadable(path, f"a record lacks {', '.join(sorted(missing))}")
    return last


def _fields(record: Record) -> set[str]:
    return {*EVERY, *(() if record["kind"] == "gate" else GROUP)}


def _unreadable(path: Path, error: str) -> RopeError:
    return RopeError(
        "bench: there are no records of a run to read.",
        facts={"file": str(path), "error": error},
        cure="Name a file that `ropewalk bench` wrote.",
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout; None for an installed package, or without git."""
    if not in_checkout():
        return None
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"
