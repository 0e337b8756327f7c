"""Append and read records of benchmarks: JSON lines, each with the machine that it was measured on."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timing import last_level_cache

from ropewalk import dispatch as compiled
from ropewalk.comparison import record as machine
from ropewalk.models.precision import half_instructions, is_slow, slow_dtype

Record = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"


def environment(device: str = "cpu") -> Record:
    """Return the date, commit, device, threads, load, cache, instructions of our kernels, and versions of a run."""
    ours = None if compiled.kernels is None else compiled.kernels.instruction_set()
    return {**machine.environment(device), "last_level_cache_bytes": last_level_cache(), "instructions": ours}


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


def last_run(path: Path) -> list[Record]:
    """Return the records of the last run in a file of `rotation.py`."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [record for record in records if record["run"] == records[-1]["run"]]
