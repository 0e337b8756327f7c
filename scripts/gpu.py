"""Check and time everything that needs a GPU, in order of value; each result is saved as soon as it is there.

    python scripts/gpu.py --minutes 9 --model FILE.gguf --texts FOLDER   # or: make gpu
    python scripts/gpu.py --small                                        # Triton's interpreter, tiny sizes, no GPU
    python scripts/gpu.py --pack FOLDER --model FILE.gguf --texts FOLDER # parts of 30 MB, for a machine without network

The steps are tests, rotation, decode and doctor. It needs a checkout, torch, Triton and
transformers, and no network. Every timing follows a comparison with float64; a wrong result is recorded with its
reason, and the next job runs. Records go to benchmarks/results/gpu-STEP.jsonl (with --small to build/gpu), and a copy
to $OUT if that is set. On SIGINT and SIGTERM, and when the time is up, finished results stay.

To resume, rerun the command: what has a result is left out, and what failed runs again when the code has changed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, BUILD = ROOT / "benchmarks" / "results", ROOT / "build" / "gpu"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(ROOT)]
SHARES = {"tests": 70, "rotation": 110, "decode": 45, "doctor": 120}
PART = 30 * 2**20  # bytes
MANIFEST = "manifest.json"
PACKAGES = ("gguf",)  # pure Python, which a machine may lack
SLACK = 20.0  # seconds that a step may exceed its time before it is ended
MOST_CRASHES = 4  # of a step
BROKEN = 3  # status of a process whose GPU context is broken


def main() -> int:
    """Run the steps, each in its own process; return 0 if every result is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--steps", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--small", action="store_true", help="Triton's interpreter with tiny sizes, without a GPU")
    parser.add_argument("--model", type=Path, default=_path("ROPEWALK_SMOLLM2"), help="SmolLM2's GGUF, or its parts")
    parser.add_argument("--texts", type=Path, default=_path("ROPEWALK_DATA"), help="a folder of long texts")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="write model and texts there in parts, and end")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, help="folder of the records")
    parser.add_argument("--child", choices=list(SHARES), help=argparse.SUPPRESS)
    parser.add_argument("--run", default=uuid.uuid4().hex[:12], help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.results = options.results or (BUILD if options.small else RESULTS)
    signal.signal(signal.SIGTERM, _interrupt)
    if options.pack is not None:
        return pack(options.pack, options.model, options.texts)
    if options.child is not None:
        return run_step(options)
    return run_steps(options)


def _path(variable: str) -> Path | None:
    return Path(os.environ[variable]) if os.environ.get(variable) else None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# -- the whole run ----------------------------------------------------------------------------------------------------


def run_steps(options: argparse.Namespace) -> int:
    """Divide the time among the steps; what one leaves goes to the next ones."""
    if not options.small and not _has_gpu():
        sys.exit("No CUDA device here. `make gpu SMALL=1` runs every step in Triton's interpreter with tiny sizes.")
    options.model, options.texts = unpack(options.model, options.texts)
    end, interrupted, bad = time.monotonic() + 60.0 * options.minutes, False, 0
    try:
        for number, step in enumerate(options.steps):
            left = end - time.monotonic()
            if left < 10.0:
                print(f"out of time before {step}", flush=True)
                break
            share = SHARES[step] / sum(SHARES[name] for name in options.steps[number:])
            print(f"== {step}, {left * share:.0f} s", flush=True)
            bad += supervise(step, options, left * share, end)
    except KeyboardInterrupt:
        interrupted = True
    print(table(options), flush=True)
    return 130 if interrupted else min(bad, 1)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def supervise(step: str, options: argparse.Namespace, seconds: float, end: float) -> int:
    """Run one step in a process, again after a crash; record crashes. Return how many jobs of this run went wrong."""
    file, until = options.results / f"gpu-{step}.jsonl", time.monotonic() + seconds
    for _ in range(MOST_CRASHES):
        left = until - time.monotonic()
        job, place, status, said = run_child(step, options, left, min(left + SLACK, end - time.monotonic()))
        if status == BROKEN and until - time.monotonic() > 1.0:
            continue  # its failed job has a record, and another process can run the others
        if status == 0 or job is None:
            if status:
                print(f"   {step} ended with status {status}: {said[-1500:]}", flush=True)
                return 1
            break
        late = until - time.monotonic() < 1.0
        reason = "out of time" if late else f"the process ended with status {status}: {said[-1500:]}"
        record = {"key": job, "place": place, "interpreter": options.small, "run": options.run, "source": "",
                  "status": "stopped" if late else "crashed", "reason": reason,
                  "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
        write(file, record)
        print(f"     {record['status']} {reason[:300]}", flush=True)
        if late:
            break
    return sum(one["run"] == options.run and one["status"] in ("wrong", "failed", "crashed") for one in read(file))


def run_child(step: str, options: argparse.Namespace, seconds: float, most: float) -> tuple[str | None, str, int, str]:
    """Run one process; return its unfinished job, its device, its status and the end of its output."""
    command = [sys.executable, "-u", str(Path(__file__).resolve()), "--child", step, "--seconds", str(seconds),
               "--run", options.run, "--results", str(options.results), "--device", options.device,
               *(["--small"] if options.small else [])]  # fmt: skip
    for name in ("model", "texts"):
        value = getattr(options, name)
        command += [] if value is None else [f"--{name}", str(value)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             env=_environment(options.small))  # fmt: skip
    watch = threading.Timer(max(most, 1.0), child.terminate)
    kill = threading.Timer(max(most, 1.0) + 2 * SLACK, child.kill)
    watch.start()
    kill.start()
    job, place, said = None, "", []
    assert child.stdout is not None
    try:
        for line in child.stdout:
            said.append(line)
            if line.startswith("place "):
                place = line[6:].strip()
                continue
            print(line, end="", flush=True)
            if line.startswith("job "):
                job = line[4:].rstrip("\n")
            elif line.startswith("     "):
                job = None
        return job, place, child.wait(), "".join(said[-40:])
    except KeyboardInterrupt:
        child.terminate()
        child.wait(timeout=3 * SLACK)
        raise
    finally:
        watch.cancel()
        kill.cancel()


def _environment(small: bool) -> dict[str, str]:
    """Return the environment of a step: the interpreter, or never the interpreter."""
    more = {**os.environ, "HF_HUB_OFFLINE": "1"}
    more.pop("TRITON_INTERPRET", None)
    return {**more, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if small else more


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]


def write(path: Path, record: dict[str, Any]) -> None:
    """Append a record, and copy the file to $OUT."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    out = _path("OUT")
    if out is not None and out.is_dir():
        shutil.copyfile(path, out / path.name)


def table(options: argparse.Namespace) -> str:
    """Return one line for each step of this run, and its bad jobs."""
    lines = [""]
    for step in options.steps:
        here = [one for one in read(options.results / f"gpu-{step}.jsonl") if one["run"] == options.run]
        counts = Counter(one["status"] for one in here)
        said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing new"
        lines.append(f"{step:10} {said}")
        lines += [f"  {one['status']}: {one['key']}: {one.get('reason', '')[:160]}" for one in here
                  if one["status"] != "done"]  # fmt: skip
    return "\n".join(lines)


# -- one step ---------------------------------------------------------------------------------------------------------


def run_step(options: argparse.Namespace) -> int:
    """Run the pending jobs of one step in this process; return 0, or `BROKEN` if the GPU's context is broken."""
    if options.small:
        sys.modules["ropewalk._kernels"] = None  # type: ignore[assignment]  # so that Triton's kernels serve the CPU
    if not importlib.util.find_spec("gguf") and (BUILD / "packages").is_dir():
        sys.path.append(str(BUILD / "packages"))
    import gpu_models
    import gpu_rotation
    import torch
    from gpu_jobs import Place, Records, run_jobs, source_digest

    if options.small:
        torch.set_num_threads(1)
    place = Place(options.device, options.small, BUILD / ("small" if options.small else "work"),
                  None if options.model is None else str(options.model), options.texts)  # fmt: skip
    print(f"place {place.name}", flush=True)
    records = Records(options.results, options.child, _path("OUT"))
    jobs = {
        "tests": gpu_models.tests, "rotation": gpu_rotation.jobs, "decode": gpu_models.decoding,
        "doctor": gpu_models.doctor,
    }[options.child](place)  # fmt: skip
    pending = records.pending(jobs, place.name, options.run, source_digest())
    try:
        whole = run_jobs(pending, records, place, run=options.run, seconds=options.seconds)
    except KeyboardInterrupt:
        return 130
    return 0 if whole else BROKEN


# -- what travels -----------------------------------------------------------------------------------------------------


def pack(folder: Path, model: Path | None, texts: Path | None) -> int:
    """Write the model in parts with its digest, the texts gzipped, and pure Python packages that it needs."""
    if model is None or not model.is_file():
        sys.exit("--pack needs --model FILE.gguf")
    folder.mkdir(parents=True, exist_ok=True)
    whole, parts = model.read_bytes(), []
    for number, begin in enumerate(range(0, len(whole), PART)):
        parts.append(f"{model.name}.part-{number:02}")
        (folder / parts[-1]).write_bytes(whole[begin : begin + PART])
    facts = {"name": model.name, "sha256": hashlib.sha256(whole).hexdigest(), "bytes": len(whole), "parts": parts}
    (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for path in sorted(texts.glob("*.txt")) if texts is not None else []:
        (folder / "texts").mkdir(exist_ok=True)
        (folder / "texts" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            sys.exit(f"--pack copies the package {name}, which is not installed here")
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(found.origin).parent, folder / "packages" / name, dirs_exist_ok=True, ignore=without)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "packages" not in path.parts:
            print(f"{path.stat().st_size:>12,} {path}")
    return 0


def unpack(model: Path | None, texts: Path | None) -> tuple[Path | None, Path | None]:
    """Join a folder that `pack` wrote; return the model's file and the texts. A plain file stays as it is."""
    if model is None or not (model / MANIFEST).is_file():
        return model, texts
    facts = json.loads((model / MANIFEST).read_text(encoding="utf-8"))
    if (model / "texts").is_dir():
        texts = texts or model / "texts"
    if (model / "packages").is_dir():
        shutil.copytree(model / "packages", BUILD / "packages", dirs_exist_ok=True)
    whole = BUILD / "model" / facts["name"]
    if not whole.is_file() or _sha256(whole) != facts["sha256"]:
        absent = [name for name in facts["parts"] if not (model / name).is_file()]
        if absent:
            print(f"{len(absent)} of {len(facts['parts'])} parts of the model are missing: {', '.join(absent)}")
            return None, texts
        whole.parent.mkdir(parents=True, exist_ok=True)
        with whole.open("wb") as file:
            for name in facts["parts"]:
                file.write((model / name).read_bytes())
        if _sha256(whole) != facts["sha256"]:
            whole.unlink()
            sys.exit(f"The parts in {model} do not give {facts['name']}: its sha256 differs. Pack it again.")
    return whole, texts


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
