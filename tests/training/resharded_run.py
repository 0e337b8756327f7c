"""Run by test_mesh_restarts in a process of its own: one run that is continued on other meshes, and by one process.

Usage: python -m tests.training.resharded_run TEXT FOLDER. Two ranks train to the end (`whole`); another run is stopped
by SIGINT at one rank after each third of its steps, and goes on as the next of `PHASES`. Prints one JSON object: how
far the finished weights are from those of `whole`, the largest of these, and the checkpoints after each phase.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from safetensors.torch import load_file

import ropewalk.training.sharded_checkpoint  # noqa: F401  # what is imported late, the children inherit
from ropewalk.distributed import joined
from ropewalk.distributed.settings import MeshSettings
from ropewalk.training import Housekeeping, train
from ropewalk.training.run_folder import RunFolder
from tests.training.material import small
from tests.training.sharded_ranks import forked

PHASES: tuple[tuple[int, dict[str, int]], ...] = ((2, {"dp": 2}), (1, {}), (2, {"tp": 2}))
"""Ranks and their mesh; the second phase is one process that no launcher has started."""


def run(text: str, out: Path, mesh: dict[str, int], stop: int | None = None) -> Callable[[int], None]:
    """One rank's run, without dropout; rank 1, or the only one, gets SIGINT in the update before step `stop`."""

    def work(rank: int) -> None:
        if not mesh:
            del os.environ["RANK"]
        last = rank == sum(mesh.values()) - 1 or not mesh
        if stop is not None and last:
            _interrupt_at(stop)
        keeping = Housekeeping(log_every=2, validate_every=6, checkpoint_every=100, keep=1)
        settings, message = small(text, dropout=0.0, kv_heads=2), ""
        with joined():
            try:
                train(settings, out, dtype="float32", housekeeping=keeping, mesh=MeshSettings(**mesh))
            except KeyboardInterrupt as interrupt:
                message = str(interrupt)
        assert message.startswith("" if stop is None else f"stopped at step {stop} of 12")
        assert bool(message) == (stop is not None)

    return work


def _interrupt_at(stop: int) -> None:
    from ropewalk.training.loop import Run

    update = Run._update

    def interrupted(self: Run) -> tuple[float, float]:
        if self.step + 1 == stop:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self)

    Run._update = interrupted  # type: ignore[method-assign]


def main() -> None:
    """See the module."""
    text, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["LOCAL_WORLD_SIZE"] = "64"  # one thread for each
    torch.set_num_threads(1)
    whole, out = folder / "whole", folder / "run"
    said: dict[str, Any] = {"ended": [forked(2, run(text, whole, {"dp": 2}))], "left": []}
    for number, (ranks, mesh) in enumerate(PHASES):
        stop = None if number == len(PHASES) - 1 else 4 * (number + 1)
        said["ended"].append(forked(ranks, run(text, out, mesh, stop)))
        newest = [(path.name, sorted(each.name for each in path.iterdir())) for path in RunFolder(out).checkpoints()]
        said["left"].append(newest)
    ours, theirs = load_file(out / "model.safetensors"), load_file(whole / "model.safetensors")
    said["difference"] = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    said["largest"] = max(float(tensor.abs().max()) for tensor in theirs.values())
    print(json.dumps(said))


if __name__ == "__main__":
    main()
