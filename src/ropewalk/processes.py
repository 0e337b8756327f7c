"""Divide work among the processes that torchrun or `accelerate launch` started, and gather their results.

The launcher's environment names each process: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TypeVar

from ropewalk.errors import RopeError

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process of a launch: its number, the number of processes, and the same on this machine.

    >>> Launch.of_environment({"RANK": "1", "WORLD_SIZE": "4"}).ranks, Launch.of_environment({}).ranks
    (4, 1)
    """

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Launch:
        """Return the launch that the environment describes. Raises `RopeError` for invalid values."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        given = {name: environ[name] for name in names if name in environ}
        if not {"RANK", "WORLD_SIZE"} <= set(given):
            return cls()
        try:
            rank, ranks = int(given["RANK"]), int(given["WORLD_SIZE"])
            local = int(given.get("LOCAL_RANK", rank)), int(given.get("LOCAL_WORLD_SIZE", 1))
            if not (0 <= rank < ranks and local[0] >= 0 and local[1] >= 1):
                raise ValueError
        except ValueError:
            raise RopeError(
                "ropewalk: the launcher's environment variables are invalid.",
                facts=given,
                cure="Start with torchrun, or set RANK to 0 .. WORLD_SIZE - 1; unset both for one process.",
            ) from None
        return cls(rank=rank, ranks=ranks, local_rank=local[0], local_ranks=local[1])

    @property
    def several(self) -> bool:
        """Return whether there are other processes."""
        return self.ranks > 1

    @property
    def is_first(self) -> bool:
        """Return whether this process prints and writes the files named on the command line."""
        return self.rank == 0


_active = Launch()
_HAS_AFFINITY = hasattr(os, "sched_getaffinity")


def current() -> Launch:
    """Return the launch that this process has joined; one process if it has joined none."""
    return _active


@contextmanager
def joined() -> Iterator[Launch]:
    """Join the launch that the environment describes for the duration of the block.

    Opens torch's process group unless the caller has opened it: NCCL on CUDA, gloo elsewhere. Each process uses its
    share of the machine's cores, and on CUDA the device of its local rank. Only rank 0 prints. A `RopeError` of one
    process is raised in all of them.

    >>> with joined() as launch:
    ...     launch.rank
    0
    """
    global _active
    launch, before = Launch.of_environment(os.environ), _active
    if not launch.several or before.several:
        yield launch
        return
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // launch.local_ranks) if _HAS_AFFINITY else 1)
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
    ours = not dist.is_initialized()
    if ours:
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=_next_store(), rank=launch.rank, world_size=launch.ranks,
            )  # fmt: skip
        except (ValueError, dist.DistError) as error:
            raise RopeError(
                "ropewalk: the processes of the launch cannot reach each other.",
                facts={"processes": launch.ranks, "error": str(error).splitlines()[0]},
                cure="Start with torchrun, or set MASTER_ADDR and MASTER_PORT to a free port of rank 0's machine.",
            ) from error
    _active = launch
    try:
        with _quiet(launch):
            yield launch
        from_all(None)
    except _RemoteError as error:
        raise error.of from None
    except RopeError as error:
        _exchange((None, error))
        raise
    finally:
        _active = before
        if ours:
            dist.destroy_process_group()


_stores: list[Any] = []
"""The store of this process's groups, which rank 0 serves as long as it lives, and a part of it for each group."""


def _next_store() -> Any:
    """Return a store of its own for a group.

    The server stays open between two groups: with one for each, a rank could reach the server that rank 0 is about to
    close after the first group, and be missing in the second.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if not _stores:
        _stores.append(next(iter(rendezvous("env://")))[0])
    _stores.append(PrefixStore(f"ropewalk-{len(_stores)}", _stores[0]))
    return _stores[-1]


@contextmanager
def _quiet(launch: Launch) -> Iterator[None]:
    """Discard the output of all processes except rank 0."""
    if launch.is_first:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


class _RemoteError(Exception):
    """A `RopeError` of a different process, which all processes know already."""

    def __init__(self, of: RopeError) -> None:
        super().__init__(str(of))
        self.of = of


def from_first(value: ValueT) -> ValueT:
    """Return rank 0's value on every rank; every rank must call it."""
    return from_all(value)[0]


def from_all(value: ValueT) -> list[ValueT]:
    """Return the values of all ranks, in order; every rank must call it.

    >>> from_all(3)
    [3]
    """
    if not _active.several:
        return [value]
    values = _exchange((value, None))
    for _, error in values:
        if error is not None:
            raise _RemoteError(error)
    return [one for one, _ in values]


def _exchange(value: tuple[Any, RopeError | None]) -> list[tuple[Any, RopeError | None]]:
    import torch.distributed as dist

    values: list[Any] = [None] * _active.ranks
    try:
        dist.all_gather_object(values, value)
    except RuntimeError as error:
        raise _RemoteError(
            RopeError(
                "ropewalk: a different process of the launch has ended.",
                facts={"error": str(error).splitlines()[0]},
                cure="Rerun the command, with --resume if it has that option.",
            )
        ) from error
    return values


def share_of(items: Sequence[ValueT]) -> Sequence[ValueT]:
    """Return this process's part of a list that is the same in all processes.

    >>> share_of([1, 2, 3])
    [1, 2, 3]
    """
    return items[_active.rank :: _active.ranks]
