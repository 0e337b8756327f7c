"""What the steps of `scripts/gpu.py` share: where they run, jobs, and the file to which each result goes at once.

A job is one measurement with a key. Its record has a `status`: "done", "wrong" (the check before the timing failed),
"failed" (an exception), "crashed" (the process ended), "skipped" (something is missing) or "stopped" (out of time).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers import Skip
from records import CHECKOUT, Record, append, environment
from timing import Clock, CudaClock, cpu_clock

STEPS = ("tests", "rotation", "decode", "doctor")
PREFIX = "gpu-"
GRACE = 20.0  # seconds between asking a process to end and ending it
BROKEN = ("CUDA error", "device-side assert", "illegal memory access")  # after these a process cannot go on


@dataclass(frozen=True)
class Place:
    """A GPU; or, with `interpreter`, this processor with Triton's interpreter and tiny sizes.

    `model`: a GGUF file or a folder of SmolLM2 for the steps from `decode` on; None if there is none.
    `texts`: a folder of long texts, or None for those in the package. `work`: for files that a step needs meanwhile.
    """

    device: str
    interpreter: bool
    work: Path
    model: str | None = None
    texts: Path | None = None

    @property
    def name(self) -> str:
        """Return the name of the device, which tells records of different machines apart."""
        return "interpreter" if self.interpreter else torch.cuda.get_device_name(self.device)

    def clock(self) -> Clock:
        """Return CUDA events around each call, or wall time."""
        return cpu_clock if self.interpreter else CudaClock(self.device)


@dataclass(frozen=True)
class Job:
    """One measurement. `run` takes the seconds that it may use, and returns what its record contains.

    `least`: seconds without which it is not worth starting. `again`: also run it if there is a result.
    """

    key: str
    run: Callable[[float], Record]
    least: float = 5.0
    again: bool = False


class Stopped(Exception):
    """A job ran out of time; the same command resumes it if its files are still there."""


class Records:
    """The records of one step, `gpu-STEP.jsonl`, of which a copy goes to `copy` after each line."""

    def __init__(self, folder: Path, step: str, copy: Path | None = None) -> None:
        self.path, self.copy = folder / f"{PREFIX}{step}.jsonl", copy

    def all(self) -> list[Record]:
        """Return every record, the oldest first."""
        if not self.path.is_file():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines() if line.strip()]

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record, and copy the file."""
        append(self.path, record)
        if self.copy is not None and self.copy.is_dir():
            shutil.copyfile(self.path, self.copy / self.path.name)

    def latest(self, device: str) -> dict[str, Record]:
        """Return the last record of each key on a device."""
        return {one["key"]: one for one in self.all() if one["place"] == device}

    def pending(self, jobs: Iterable[Job], device: str, run: str, source: str) -> list[Job]:
        """Return the jobs that have no result: none yet, or a bad one of another run and another source.

        A job that was skipped, or stopped for want of time, is pending in every other run.
        """
        last = self.latest(device)

        def is_pending(job: Job) -> bool:
            one = last.get(job.key)
            if one is None or (job.again and one["run"] != run):
                return True
            if one["status"] == "done" or one["run"] == run:
                return False
            return one["status"] in ("stopped", "skipped") or one["source"] != source

        return [job for job in jobs if is_pending(job)]


def source_digest() -> str:
    """Return a digest of the package and the benchmarks: a bad result counts until they change."""
    digest = hashlib.sha256()
    for folder in ("src/ropewalk", "benchmarks", "tests/gpu", "tests/rotation/backends"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def run_jobs(jobs: Sequence[Job], records: Records, place: Place, *, run: str, seconds: float) -> bool:
    """Run jobs in order until the time is up; each record is written as soon as it is there.

    Returns False if the process is of no further use, because the GPU's context is broken.
    """
    source, began = source_digest(), time.monotonic()
    for number, job in enumerate(jobs):
        left = seconds - (time.monotonic() - began)
        if left < job.least and number:
            print(f"{len(jobs) - number} jobs are left: rerun the command", flush=True)
            return True
        print(f"job {job.key}", flush=True)
        started = time.monotonic()
        try:
            record = {"status": "done", **job.run(left)}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            kinds = ((Stopped, "stopped"), (Skip, "skipped"), (AssertionError, "wrong"))
            status = next((name for kind, name in kinds if isinstance(error, kind)), "failed")
            record = {"status": status, "reason": f"{type(error).__name__}: {error}"[:2000]}
        records.add({**shared(job.key, place, run, source), **record, "took": round(time.monotonic() - started, 2)})
        print(f"     {record['status']} {record.get('reason', '')}".rstrip()[:300], flush=True)
        if any(sign in record.get("reason", "") for sign in BROKEN):
            return False
    return True


def shared(key: str, place: Place, run: str, source: str) -> Record:
    """Return what every record contains: its key, machine, versions, run and source."""
    machine = environment("cpu" if place.interpreter else place.device)
    return {"key": key, "place": place.name, "interpreter": place.interpreter, "run": run, "source": source, **machine}


def over(microseconds: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    """Return the ratio of each contender's median to that of `name`; empty if that was not timed."""
    if name not in microseconds:
        return {}
    base = microseconds[name]["p50"]
    return {other: round(times["p50"] / base, 3) for other, times in microseconds.items() if other != name}


def started(command: Sequence[str], place: Place, seconds: float, log: Path) -> str:
    """Run a process of this checkout, its output in `log`, and return the output.

    Raises `Stopped` when the time is up: the process is asked to end first, so that it can save its state; RuntimeError
    with the end of its output if it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=CHECKOUT,
                                   env=environment_of(place))  # fmt: skip
        try:
            process.wait(timeout=max(seconds, 1.0))
        except BaseException as error:
            process.terminate()
            try:
                process.wait(timeout=GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise Stopped(f"stopped after {seconds:.0f} seconds") from None
            raise
    said = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}: {said[-1500:]}")
    return said


def environment_of(place: Place) -> dict[str, str]:
    """Return the environment of a process that a job starts: this checkout, no network, the interpreter if asked.

    For the interpreter the compiled extension is hidden, so that Triton's kernels serve the processor's tensors.
    """
    paths = [entry for entry in sys.path if entry.startswith(str(CHECKOUT)) and "site-packages" not in entry]
    more = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if place.interpreter:
        hidden = place.work / "without_kernels"
        hidden.mkdir(parents=True, exist_ok=True)
        (hidden / "sitecustomize.py").write_text('import sys\n\nsys.modules["ropewalk._kernels"] = None\n')
        paths = [str(hidden.resolve()), *paths]
        more |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(paths)}
