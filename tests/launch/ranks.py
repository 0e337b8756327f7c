"""Processes as a launcher starts them: with RANK, WORLD_SIZE and the address of a store in their environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, ranks: int, port: int, folder: Path, **more: str) -> dict[str, str]:
    """The environment of one rank; its cache is in `folder`."""
    said = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    ours = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    return {**os.environ, **{name: str(value) for name, value in said.items()}, **ours, **more}


def start(
    code: str, rank: int, ranks: int, port: int, folder: Path, *arguments: str, **more: str
) -> subprocess.Popen[str]:
    """One rank that runs Python code."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment(rank, ranks, port, folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_all(code: str, ranks: int, folder: Path, *arguments: str, seconds: float = 240) -> list[str]:
    """What each rank prints; all must end well."""
    port = free_port()
    running = [start(code, rank, ranks, port, folder, *arguments) for rank in range(ranks)]
    return ended_well(running, seconds)


def ended_well(running: Sequence[subprocess.Popen[str]], seconds: float = 240) -> list[str]:
    """What each process printed; none is left behind."""
    try:
        printed = [process.communicate(timeout=seconds) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), [error[-2000:] for _, error in printed]
    return [out for out, _ in printed]
