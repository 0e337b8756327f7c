"""Start processes as a launcher does: with RANK, WORLD_SIZE and the address of rank 0 in their environment."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any


def free_port() -> int:
    """Return an unused port of this pytest process's own range.

    The range lies below those of outgoing connections, which else may take the port before it is listened on, and no
    other pytest process draws from it: a rank would join the group of another test.
    """
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    for port in random.Random().sample(range(20_000 + 1_500 * own, 21_500 + 1_500 * own), 1_500):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def environment(rank: int, ranks: int, port: int, folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of one rank; its cache is in `folder`."""
    ranks_own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    ours = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    return {**os.environ, **{name: str(value) for name, value in ranks_own.items()}, **ours, **more}


def run_all(code: str, ranks: int, folder: Path, *arguments: str, seconds: float = 240) -> list[str]:
    """Return the output of Python code in each rank, forked as in `run_forked`. A rank that fails is an error."""
    port = free_port()
    outputs = [folder / f"output-{port}-{rank}.txt" for rank in range(ranks)]
    _run(
        [
            _forking().Process(
                target=_of_launcher,
                args=(code, environment(rank, ranks, port, folder), rank, str(folder), out, arguments),
            )
            for rank, out in enumerate(outputs)
        ],
        folder,
        seconds,
    )
    return [out.read_text() for out in outputs]


def run_forked(work: Callable[..., None], ranks: int, folder: Path, *arguments: Any, seconds: float = 400) -> None:
    """Run `work(rank, *arguments)` in each process of one gloo group; raise the first traceback of a rank that fails.

    The processes are forked from one that has imported torch, so that each costs tenths of a second instead of two.
    """
    port = free_port()
    _run(
        [
            _forking().Process(target=_of_group, args=(work, rank, ranks, port, str(folder), arguments))
            for rank in range(ranks)
        ],
        folder,
        seconds,
    )


def _forking() -> Any:
    """Return a context that forks processes from one that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", __name__])
    return context


def _run(running: Sequence[Any], folder: Path, seconds: float) -> None:
    """Start processes, wait for them and end those that are left; raise the first traceback."""
    try:
        for process in running:
            process.start()
        multiprocessing.connection.wait([process.sentinel for process in running], seconds)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and any(process.is_alive() for process in running):
            if any(process.exitcode for process in running):  # one has failed, and the others wait for it
                time.sleep(2)
                break
            time.sleep(0.02)
    finally:
        for process in running:
            process.kill()
            process.join()
    errors = [path.read_text() for path in sorted(folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime)]
    assert not errors, errors[0][-6000:]
    assert [process.exitcode for process in running] == [0] * len(running)


def _of_launcher(
    code: str, environ: dict[str, str], rank: int, folder: str, out: Path, arguments: tuple[str, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["-c", *arguments]
    try:
        with out.open("w") as sys.stdout:
            exec(compile(code, "the code of a rank", "exec"), {"__name__": "__main__"})
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        os._exit(1)


def _of_group(
    work: Callable[..., None], rank: int, ranks: int, port: int, folder: str, arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout=timedelta(seconds=120))
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
        work(rank, *arguments)
        dist.barrier()  # no process takes its connections down while another still uses them
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        os._exit(1)
    dist.destroy_process_group()
