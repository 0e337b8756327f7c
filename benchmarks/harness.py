"""What every benchmark shares: interleaved timing, the environment of a run, and the record on disk."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timed:
    """Something to time, and its name."""

    name: str
    call: Callable[[], object]


def interleave(contenders: list[Timed], *, seconds: float, least: int = 5) -> dict[str, dict[str, float]]:
    """Call the contenders in turn until the time is up; p20, p50 and p80 of each, in microseconds.

    Taking turns, they meet the same noise of a shared machine, so that ratios of medians hold where times do not.
    """
    taken: dict[str, list[float]] = {timed.name: [] for timed in contenders}
    for timed in contenders:
        timed.call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[contenders[0].name]) < least:
        for timed in contenders:
            start = time.perf_counter()
            timed.call()
            taken[timed.name].append((time.perf_counter() - start) * 1e6)
    return {
        name: {f"p{p}": round(float(np.percentile(times, p)), 2) for p in (20, 50, 80)} for name, times in taken.items()
    }


def environment() -> dict[str, object]:
    """Versions, device, threads, commit and date of a run."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "device": _cpu(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("ropewalk", "torch", "transformers", "numpy")},
    }


def append(name: str, record: dict[str, object]) -> None:
    """Add one line to `results/NAME`."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / name).open("a") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    models = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
