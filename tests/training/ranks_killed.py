"""Run by test_mesh_restarts in a process of its own: runs of several ranks, of which one is killed (SIGKILL).

Usage: python -m tests.training.ranks_killed TEXT FOLDER ATTEMPTS SEED DP TP CP. As `tests.training.killed` does for one
process: each rank counts the lines that the loop, the checkpoints and torch's writers of shards execute, in every
thread, and one of them is killed at a random line; the others are killed then, as torchrun does, and all are started
again. Each attempt is killed twice, the second time while it saves; the third start runs to the end. Prints one JSON
object: kills, where they struck, digests, and what is left of checkpoints.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import ropewalk.training.sharded_checkpoint  # noqa: F401  # what is imported late, the children inherit
from ropewalk.distributed import joined
from ropewalk.distributed.settings import MeshSettings
from ropewalk.training import train
from tests.training.killed import TRACED, checkpoints, digest
from tests.training.material import EVERY, small
from tests.training.sharded_ranks import forked

KINDS = {
    "loop": TRACED,
    "save": ("training/sharded_checkpoint.py", "checkpoint/filesystem.py", "checkpoint/hf_storage.py", "atomic_io.py"),
}
"""Files whose lines are counted: of the loop and its checkpoints, and those of a save, torch's among them."""


class Tracer:
    """Counts lines of the loop's files and of a save's, in all threads; at the line to kill at the process is gone.

    `kill_at`: the kind of files, and the line's number among theirs. `note` says then where it was.
    """

    def __init__(self, kill_at: tuple[str, int] | None, note: Path) -> None:
        self.kill_at, self.note, self.lines = kill_at, note, dict.fromkeys(KINDS, 0)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.endswith(KINDS["loop"] + KINDS["save"]):
            return None
        if event == "line":
            for kind in KINDS:
                if file.endswith(KINDS[kind]):
                    self.lines[kind] += 1
                    if (kind, self.lines[kind]) == self.kill_at:
                        self._kill(frame)
        return self

    def _kill(self, frame: FrameType) -> None:
        thread = "main" if threading.current_thread() is threading.main_thread() else "save"
        self.note.write_text(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name} in the {thread} thread")
        os.kill(os.getpid(), signal.SIGKILL)


def traced(
    text: str, out: Path, mesh: MeshSettings, victim: int | None = None, kill_at: tuple[str, int] | None = None
) -> Callable[[int], None]:
    """One rank's run; the victim is killed, the others write the lines that they executed beside `out`."""

    def work(rank: int) -> None:
        tracer = Tracer(kill_at if rank == victim else None, struck(out))
        threading.settrace(tracer)
        sys.settrace(tracer)
        with joined():
            train(small(text, kv_heads=2), out, housekeeping=EVERY, mesh=mesh)
        sys.settrace(None)
        out.with_name(f"{out.name}.lines-{rank}").write_text(json.dumps(tracer.lines))

    return work


def struck(out: Path) -> Path:
    """Where a process that is killed says where it was."""
    return out.with_name(f"{out.name}.struck")


def main() -> None:
    """See the module."""
    text, folder, attempts, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    dp, tp, cp = map(int, sys.argv[5:8])
    mesh, ranks = MeshSettings(dp=dp, tp=tp, cp=cp), dp * tp * cp
    os.environ["LOCAL_WORLD_SIZE"] = "64"  # one thread for each
    torch.set_num_threads(1)
    whole = folder / "whole"
    ended = forked(ranks, traced(text, whole, mesh))
    if any(ended):
        raise SystemExit(f"a run failed by itself: {ended}")
    lines = [json.loads(whole.with_name(f"whole.lines-{rank}").read_text()) for rank in range(ranks)]
    chance = random.Random(seed)
    kills, digests, left = [], [], []
    for attempt in range(attempts):
        out = folder / f"killed-{attempt}"
        for kind in KINDS:
            victim = chance.randrange(ranks)
            kill_at = kind, chance.randrange(1, lines[victim][kind])
            ended = forked(ranks, traced(text, out, mesh, victim, kill_at))
            if struck(out).exists():
                kills.append(f"rank {victim}, {struck(out).read_text()}")
                struck(out).unlink()
            elif any(ended):
                raise SystemExit(f"a run failed by itself: {ended}, folder {out}")
        ended = forked(ranks, traced(text, out, mesh))
        if any(ended):
            raise SystemExit(f"a restarted run failed: {ended}, folder {out}")
        digests.append(digest(out))
        left.append(checkpoints(out))
    answer = {"kills": kills, "whole": digest(whole), "killed": digests, "left": left}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
