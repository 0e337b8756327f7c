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
from importlib import import_module
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


def run_main(module: str, ranks: int, folder: Path, *arguments: str, **variables: str) -> None:
    """Run `main` of a module in each rank, with a launcher's environment; raise the first traceback of a rank."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port()),
              "MASTER_ADDR": "127.0.0.1", "XDG_CACHE_HOME": str(folder / "cache"), **variables}  # fmt: skip
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    _run(_launched, [(module, {**os.environ, **shared, **one}, arguments) for one in own], folder, 240)


def run_forked(work: Callable[..., None], ranks: int, folder: Path, *arguments: Any) -> None:
    """Run `work(rank, *arguments)` in each process of one gloo group; raise the first traceback of a rank."""
    port = free_port()
    _run(_grouped, [(work, rank, ranks, port, arguments) for rank in range(ranks)], folder, 400)


def _run(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]], folder: Path, seconds: float) -> None:
    """Start a process for each rank, wait for all and end those that are left; raise the first traceback.

    They are forked from one that has imported torch, so that each costs tenths of a second instead of two.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", __name__])
    running = [context.Process(target=_rank, args=(work, folder / f"error-{rank}.txt", of))
               for rank, of in enumerate(arguments)]  # fmt: skip
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


def _rank(work: Callable[..., None], error: Path, arguments: tuple[Any, ...]) -> None:
    try:
        work(*arguments)
    except BaseException:
        error.write_text(traceback.format_exc())
        os._exit(1)


def _launched(module: str, environ: dict[str, str], arguments: tuple[str, ...]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [module, *arguments]
    import_module(module).main()


def _grouped(work: Callable[..., None], rank: int, ranks: int, port: int, arguments: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout=timedelta(seconds=120))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    work(rank, *arguments)
    dist.barrier()  # no process takes its connections down while another still uses them
    dist.destroy_process_group()
