"""The record of a comparison, and its means and intervals over seeds."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ropewalk.atomic_io import write_whole
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.statistics import mean_and_interval

RECORD = "results.jsonl"
LEDGER = "ledger"
CHECKOUT = Path(__file__).resolve().parents[3]
PACKAGES = ("ropewalk", "torch", "transformers", "numpy", "onnxruntime", "openvino", "jax", "rotary-embedding-torch",
            "triton", "liger-kernel", "flash-attn")  # fmt: skip


def job_name(encoding: str, seed: int) -> str:
    """The ledger's name of one run."""
    return f"{encoding}/{seed}"


def open_ledger(out: Path, key: str) -> Ledger:
    """The ledger of the finished runs in a comparison's folder, with all that it holds; `key` is its fingerprint.

    A result is {"lines": [...]}, the run's lines of the record.
    """
    ledger = Ledger(out / LEDGER, kind="compare", key=key)
    ledger.resume()
    return ledger


def read_record(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a comparison's record, and the others. Raises `RopeError` for another file."""
    path = Path(path)
    path = path / RECORD if path.is_dir() else path
    try:
        first, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if first["kind"] != "comparison" or any(line["kind"] not in ("run", "loss") for line in lines):
            raise _no_record(path, "its lines are of another kind")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RopeError):
            raise
        raise _no_record(path, str(error)) from error
    return first, lines


def begin_record(path: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The record's first line: the one that is there, or a new one, of this machine.

    `asked` holds the settings and the digests of the texts. Raises `RopeError` for a record of another comparison.
    """
    if not path.exists():
        return {"kind": "comparison", **asked, **environment()}
    try:  # the first line alone: the ledger knows the others
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
        if first["kind"] != "comparison":
            raise _no_record(path, "its lines are of another kind")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RopeError):
            raise
        raise _no_record(path, str(error)) from error
    if {name: first.get(name) for name in asked} != dict(asked):
        raise RopeError(
            "compare: the folder holds another comparison.",
            facts={"out": str(path.parent), "its settings": first.get("settings"), "asked": asked["settings"]},
            cure="Name another --out, or ask for the same settings.",
        )
    return dict(first)


def write_record(path: Path, first: Mapping[str, Any], runs: Iterable[Iterable[Mapping[str, Any]]]) -> None:
    """Write the record whole: the first line, then the lines of each run."""
    lines = [first, *(line for run in runs for line in run)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        write_whole(path, content)


def _no_record(path: Path, error: str) -> RopeError:
    return RopeError(
        "compare: there is no comparison to read.",
        facts={"file": str(path), "error": error},
        cure="Name the --out folder of `ropewalk compare`, or its results.jsonl.",
    )


Interval = tuple[float, float] | None


class Row(NamedTuple):
    """One encoding (under one scaling) at one length: nats per token, mean and 95 % t interval over seeds.

    `rise` is the loss there less the loss at the trained length, paired by seed. All None where there is no value.
    """

    encoding: str
    scaling: str | None
    length: int
    seeds: int
    loss: float | None
    interval: Interval
    rise: float | None
    rise_interval: Interval


class Curve(NamedTuple):
    """Validation loss (nats per token) at the trained length by tokens trained on: mean and interval over seeds."""

    encoding: str
    tokens: tuple[int, ...]
    loss: tuple[float, ...]
    intervals: tuple[Interval, ...]


def summarise(lines: Sequence[dict[str, Any]], trained_length: int) -> list[Row]:
    """A row for each encoding, scaling and length in a record, in the record's order."""
    losses: dict[tuple[str, str | None, int], dict[int, float | None]] = {}
    for line in lines:
        if line["kind"] == "loss":
            key = (line["encoding"], line["scaling"], line["length"])
            losses.setdefault(key, {})[line["seed"]] = line["loss"]
    rows = []
    for (encoding, scaling, length), by_seed in losses.items():
        measured = {seed: loss for seed, loss in by_seed.items() if loss is not None}
        if not measured:
            rows.append(Row(encoding, scaling, length, len(by_seed), None, None, None, None))
            continue
        within = losses.get((encoding, None, trained_length), {})
        rises = [loss - base for seed, loss in measured.items() if (base := within.get(seed)) is not None]
        mean, interval = mean_and_interval(list(measured.values()))
        rise, rise_interval = mean_and_interval(rises) if rises else (None, None)
        rows.append(Row(encoding, scaling, length, len(measured), mean, interval, rise, rise_interval))
    return rows


def convergence(lines: Sequence[dict[str, Any]]) -> list[Curve]:
    """The training of each encoding, over the seeds that are in a record."""
    runs: dict[str, list[list[list[float]]]] = {}
    for line in lines:
        if line["kind"] == "run":
            runs.setdefault(line["encoding"], []).append(line["curve"])
    curves = []
    for encoding, each in runs.items():
        points = [mean_and_interval([run[i][1] for run in each]) for i in range(min(map(len, each)))]
        tokens = tuple(int(point[0]) for point in each[0][: len(points)])
        curves.append(Curve(encoding, tokens, tuple(mean for mean, _ in points), tuple(band for _, band in points)))
    return curves


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return the date, commit, device, threads, load and versions of a run."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "device": _cpu() if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: number for name in PACKAGES if (number := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout; None for an installed package or without git."""
    if not (CHECKOUT / "src" / "ropewalk").is_dir():
        return None
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"
