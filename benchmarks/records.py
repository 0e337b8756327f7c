"""Append and read records of benchmarks: JSON lines, each with the machine that it was measured on."""

from __future__ import annotations

import argparse
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
from timing import last_level_cache

from ropewalk.layers.precision import half_instructions, is_slow, slow_dtype
from ropewalk.rope import dispatch as compiled

Record = dict[str, Any]

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"
PACKAGES = ("ropewalk", "torch", "transformers", "numpy", "onnxruntime", "openvino", "jax", "rotary-embedding-torch",
            "triton", "liger-kernel", "flash-attn")  # fmt: skip


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


def last_run(path: Path) -> list[Record]:
    """Return the records of the last run in a file of `rotation.py`."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [record for record in records if record["run"] == records[-1]["run"]]
