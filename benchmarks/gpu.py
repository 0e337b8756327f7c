"""Check and time everything that needs a GPU, in order of value; each result is saved as soon as it is there.

    python benchmarks/gpu.py --minutes 9 --model FILE.gguf --texts FOLDER   # or: make gpu
    python benchmarks/gpu.py --small                                        # Triton's interpreter, tiny sizes, no GPU

The steps are tests, rotation, decode and doctor. It needs a checkout, torch, Triton and transformers, and no network.
Every timing follows a comparison with float64; a wrong result is recorded with its reason, and the next job runs.
Records go to benchmarks/results/gpu-STEP.jsonl (with --small to build/gpu), and a copy to $OUT if that is set. Each has
a `status`: "done", "wrong" (the check before the timing failed), "failed" (an exception), "crashed" (its process
ended), "skipped" (something is missing) or "stopped" (out of time). On SIGINT and SIGTERM finished results stay.

To resume, rerun the command: what has a result is left out, and all else runs again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(ROOT)]
if "--small" in sys.argv:
    sys.modules["ropewalk._kernels"] = None  # type: ignore[assignment]  # so that Triton's kernels serve the CPU

import gpu_jobs  # noqa: E402
import torch  # noqa: E402
from gpu_jobs import GRACE, Job, Place, Stopped, ended  # noqa: E402
from peers import Skip  # noqa: E402
from records import RESULTS, Record, append, environment  # noqa: E402

BUILD = ROOT / "build" / "gpu"
STEPS = {"tests": (70, gpu_jobs.tests), "rotation": (110, gpu_jobs.rotations), "decode": (45, gpu_jobs.decoding),
         "doctor": (120, gpu_jobs.doctor)}  # fmt: skip
"""Each step's share of the time, and its jobs."""
MOST_CRASHES = 4  # of a step
BROKEN = 3  # status of a process whose GPU context is broken
SIGNS = ("CUDA error", "device-side assert", "illegal memory access")  # after these a process cannot go on


class Records:
    """The records of one step, `gpu-STEP.jsonl`, of which a copy goes to $OUT after each line."""

    def __init__(self, folder: Path, step: str) -> None:
        self.path, self.running = folder / f"gpu-{step}.jsonl", folder / f"gpu-{step}.running"

    def all(self) -> list[Record]:
        """Return every record, the oldest first."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        return [json.loads(line) for line in lines if line.strip()]

    def begin(self, key: str, place: Place) -> None:
        """Note the job that runs, for the case that its process ends."""
        self.running.parent.mkdir(parents=True, exist_ok=True)
        self.running.write_text(json.dumps({"key": key, "place": place.name}))

    def end(self, record: Mapping[str, Any]) -> None:
        """Append a record, and copy the file."""
        append(self.path, record)
        self.running.unlink(missing_ok=True)
        if os.environ.get("OUT"):
            shutil.copy(self.path, os.environ["OUT"])

    def unfinished(self) -> Record | None:
        """Return key and place of the job whose process has ended."""
        return json.loads(self.running.read_text()) if self.running.is_file() else None

    def pending(self, jobs: Iterable[Job], device: str, run: str) -> list[Job]:
        """Return the jobs that have no result: none yet, or a bad one of another run."""
        here = (one for one in self.all() if one["place"] == device)
        done = {one["key"] for one in here if one["status"] == "done" or one["run"] == run}
        return [job for job in jobs if job.key not in done]


def main() -> int:
    """Run the steps, each in its own process; return 0 if every result is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--small", action="store_true", help="Triton's interpreter with tiny sizes, without a GPU")
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2"), help="SmolLM2's GGUF")
    parser.add_argument("--texts", default=os.environ.get("ROPEWALK_DATA"), help="a folder of long texts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, help="folder of the records")
    parser.add_argument("--child", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--run", default=uuid.uuid4().hex[:12], help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.results = options.results or (BUILD if options.small else RESULTS)
    signal.signal(signal.SIGTERM, _interrupt)
    return run_steps(options) if options.child is None else run_step(options)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# -- the whole run ----------------------------------------------------------------------------------------------------


def run_steps(options: argparse.Namespace) -> int:
    """Divide the time among the steps; what one leaves goes to the next ones."""
    if not options.small and not torch.cuda.is_available():
        sys.exit("No CUDA device here. `make gpu SMALL=1` runs every step in Triton's interpreter with tiny sizes.")
    end, interrupted, bad = time.monotonic() + 60.0 * options.minutes, False, 0
    try:
        for number, step in enumerate(options.steps):
            left = end - time.monotonic()
            if left < 10.0:
                print(f"out of time before {step}", flush=True)
                break
            seconds = left * STEPS[step][0] / sum(STEPS[name][0] for name in options.steps[number:])
            print(f"== {step}, {seconds:.0f} s", flush=True)
            bad += supervise(step, options, seconds, end)
    except KeyboardInterrupt:
        interrupted = True
    return 130 if interrupted else min(bad, 1)


def supervise(step: str, options: argparse.Namespace, seconds: float, end: float) -> int:
    """Run one step in a process, again after a crash; record crashes. Return how many jobs of this run went wrong."""
    records, until = Records(options.results, step), time.monotonic() + seconds
    records.running.unlink(missing_ok=True)
    for _ in range(MOST_CRASHES):
        left = until - time.monotonic()
        status = run_child(step, options, left, min(left + GRACE, end - time.monotonic()))
        late, job = until - time.monotonic() < 1.0, records.unfinished()
        if job is not None:
            reason = "out of time" if late else f"the process ended with status {status}"
            records.end({**job, "interpreter": options.small, "run": options.run,
                         "status": "stopped" if late else "crashed", "reason": reason, **environment()})  # fmt: skip
            print(f"     {reason}", flush=True)
        elif status not in (0, BROKEN):
            return 1
        if late or status == 0:
            break
    bad = [one["key"] for one in records.all()
           if one["run"] == options.run and one["status"] in ("wrong", "failed", "crashed")]  # fmt: skip
    print(f"{step}: {len(bad)} results are bad: {bad}" if bad else f"{step}: no bad result", flush=True)
    return len(bad)


def run_child(step: str, options: argparse.Namespace, seconds: float, most: float) -> int | None:
    """Run one process for at most `most` seconds; return its status."""
    command = [sys.executable, "-u", __file__, "--child", step, "--seconds", str(seconds), "--run", options.run,
               "--results", str(options.results), "--device", options.device]  # fmt: skip
    for name in ("model", "texts"):
        value = getattr(options, name)
        command += [f"--{name}", str(value)] if value else []
    more = {**os.environ, "HF_HUB_OFFLINE": "1"}
    more.pop("TRITON_INTERPRET", None)
    if options.small:
        command.append("--small")
        more |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    try:
        return ended(subprocess.Popen(command, env=more), most)
    except Stopped:
        return None


# -- one step ---------------------------------------------------------------------------------------------------------


def run_step(options: argparse.Namespace) -> int:
    """Run the pending jobs of one step in this process; return 0, or `BROKEN` if the GPU's context is broken."""
    if options.small:
        torch.set_num_threads(1)
    work = BUILD / ("small" if options.small else "work")
    place = Place(options.device, options.small, work, options.model, options.texts)
    records = Records(options.results, options.child)
    pending = records.pending(STEPS[options.child][1](place), place.name, options.run)
    try:
        whole = run_jobs(pending, records, place, run=options.run, seconds=options.seconds)
    except KeyboardInterrupt:
        return 130
    return 0 if whole else BROKEN


def run_jobs(jobs: Sequence[Job], records: Records, place: Place, *, run: str, seconds: float) -> bool:
    """Run jobs in order until the time is up; each record is written as soon as it is there.

    Returns False if the process is of no further use, because the GPU's context is broken.
    """
    began = time.monotonic()
    for number, job in enumerate(jobs):
        left = seconds - (time.monotonic() - began)
        if left < job.least and number:
            print(f"{len(jobs) - number} jobs are left: rerun the command", flush=True)
            return True
        print(f"job {job.key}", flush=True)
        started = time.monotonic()
        records.begin(job.key, place)
        try:
            record = {"status": "done", **job.run(left)}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            kinds = ((Stopped, "stopped"), (Skip, "skipped"), (AssertionError, "wrong"))
            status = next((name for kind, name in kinds if isinstance(error, kind)), "failed")
            record = {"status": status, "reason": f"{type(error).__name__}: {error}"[:2000]}
        machine = environment("cpu" if place.interpreter else place.device)
        records.end({"key": job.key, "place": place.name, "interpreter": place.interpreter, "run": run,
                     **machine, **record, "took": round(time.monotonic() - started, 2)})  # fmt: skip
        print(f"     {record['status']} {record.get('reason', '')}".rstrip()[:300], flush=True)
        if any(sign in record.get("reason", "") for sign in SIGNS):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
