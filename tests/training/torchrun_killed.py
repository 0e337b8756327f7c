"""Run by torchrun, from test_mesh_restarts: a run whose saves are torn, in the first two starts of the launch.

Usage: torchrun --max-restarts 5 -m tests.training.torchrun_killed TEXT OUT HURT. With HURT 1, rank 1 gets SIGKILL
where it would write its shard of the second save, and rank 0 after the restart, where all shards are on the disk.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from ropewalk.distributed import joined
from ropewalk.distributed.settings import MeshSettings
from ropewalk.training import sharded_checkpoint, train
from tests.training.material import EVERY, small


def kill_in(name: str, number: int, note: Path) -> None:
    """This process is gone when torch's writer of shards is about to do this so often; `note` says so."""
    whole, calls = getattr(sharded_checkpoint._Writer, name), [0]

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            with note.open("a") as file:
                file.write(f"rank {os.environ['RANK']}: {name}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **named)

    setattr(sharded_checkpoint._Writer, name, counted)


def main() -> None:
    """See the module."""
    text, out, hurt = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "1"
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    victims = {(0, 1): "write_data", (1, 0): "finish"}
    if hurt and (start, rank) in victims:
        kill_in(victims[start, rank], 2 - start, out.parent / "kills")
    with joined():
        train(small(text, kv_heads=2), out, housekeeping=EVERY, mesh=MeshSettings(dp=2))


if __name__ == "__main__":
    main()
