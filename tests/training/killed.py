"""Run by test_run_folder in a process of its own: runs that are killed (SIGKILL) at chosen lines, and what they leave.

Usage: python -m tests.training.killed TEXT FOLDER ATTEMPTS SEED. Each attempt trains into a folder of its own; a tracer
counts the lines that the loop, the checkpoints and the file writers execute, and kills the process at a random one,
twice; the third time it runs to the end. Before them, a run of six steps with a checkpoint at each is stopped at the
fourth, and resumed. Prints one JSON object: lines of a whole run, kills, digests, and what is left of checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import load

from ropewalk.training import Event, Housekeeping, train
from tests.training.material import EVERY, small

_READING = ("checkpoints/load.py", "checkpoints/hugging_face.py")
_WRITING = ("training/loop.py", "training/run_folder.py", "training/language_model.py")
TRACED = (*_WRITING, "atomic_io.py", *_READING)


class Tracer:
    """Counts lines of the traced files; at `kill_at` the process is gone."""

    def __init__(self, kill_at: int) -> None:
        self.lines, self.kill_at = 0, kill_at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(TRACED):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def run_in_child(text: str, out: Path, kill_at: int) -> int:
    """Train in a forked child; the number of lines it executed, or -1 if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        tracer = Tracer(kill_at)
        sys.settrace(tracer)
        train(small(text), out, housekeeping=EVERY)
        sys.settrace(None)
        os.write(writing, str(tracer.lines).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    answer = os.read(reading, 100)
    os.close(reading)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return -1
    if status != 0:
        raise SystemExit(f"a run failed by itself: status {status}, folder {out}")
    return int(answer)


def digest(out: Path) -> dict[str, str]:
    """SHA-256 of all that a run leaves but its times: weights, optimizer, log; of a shard, its tensors."""
    files = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    timed = ("tokens_per_second", "seconds", "cpu_seconds")
    for name, raw in files.items():
        if name.endswith(("state.json", ".jsonl")):
            lines = [json.loads(line) for line in raw.splitlines()] if name.endswith("l") else [json.loads(raw)]
            kept = [{key: value for key, value in line.items() if key not in timed} for line in lines]
            files[name] = json.dumps(kept).encode()
        if "/shards/" in name:  # the order of a safetensors header's own entries is not fixed
            tensors = sorted(load(raw).items())
            files[name] = b"".join(f"{key} {each.dtype}".encode() + each.numpy().tobytes() for key, each in tensors)
        if name == "run.json":
            run = json.loads(raw)
            files[name] = json.dumps({key: value for key, value in run.items() if key not in timed}).encode()
    return {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}


def main() -> None:
    """See the module."""
    text, folder, attempts, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    _stop_and_resume(text, folder / "six")  # what torch imports late, the children inherit
    lines = run_in_child(text, folder / "whole", 0)
    chance = random.Random(seed)
    kills, digests, left = 0, [], []
    for attempt in range(attempts):
        out = folder / f"killed-{attempt}"
        for _ in range(2):
            kills += run_in_child(text, out, chance.randrange(1, lines)) < 0
        run_in_child(text, out, 0)
        digests.append(digest(out))
        left.append(checkpoints(out))
    answer = {"lines": lines, "kills": kills, "whole": digest(folder / "whole"), "killed": digests}
    print(json.dumps({**answer, "checkpoints": left, "six": checkpoints(folder / "six"),
                      "obeys_permissions": _obeys_permissions(folder)}))  # fmt: skip


def checkpoints(out: Path) -> list[str]:
    """Every name among a run's checkpoints, temporary ones too."""
    return sorted(path.name for path in (out / "checkpoints").iterdir())


def _obeys_permissions(folder: Path) -> bool:
    """Whether a folder that may not be searched stops this process: it does not stop root."""
    closed = folder / "closed" / "inner"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o666)
    try:
        closed.stat()
    except PermissionError:
        return True
    finally:
        closed.parent.chmod(0o777)
    return False


def _stop_and_resume(text: str, out: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == 4:
            raise KeyboardInterrupt

    every_step = Housekeeping(checkpoint_every=1, keep=2)
    with suppress(KeyboardInterrupt):
        train(small(text, steps=6), out, housekeeping=every_step, report=stop)
    train(small(text, steps=6), out, housekeeping=every_step, resume=True)


if __name__ == "__main__":
    main()
