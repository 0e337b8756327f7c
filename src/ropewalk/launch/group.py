"""The process group of a launch whose processes compute each job together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ropewalk.errors import RopeError
from ropewalk.launch.processes import Launch


@contextmanager
def process_group(launch: Launch) -> Iterator[None]:
    """torch's process group of all processes of a launch, for the time of the block: NCCL on CUDA, gloo elsewhere.

    Raises `RopeError` where this build of torch has no process groups.
    """
    if not dist.is_available():
        raise RopeError(
            "ropewalk: this build of torch has no torch.distributed.", cure="Install another build of torch."
        )
    if dist.is_initialized():  # the caller's own
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if launch.hosted:
        dist.init_process_group(backend)
    else:
        from torch._C._distributed_c10d import PrefixStore

        with launch.reached():
            store = PrefixStore("group", launch.store)
            dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def from_first(value: Any) -> Any:
    """Rank 0's JSON value, on every rank; what the others pass is not looked at."""
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = torch.tensor([len(content)], dtype=torch.int64)
    dist.broadcast(size, 0)
    if dist.get_rank():
        content = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(content, 0)
    return json.loads(content.numpy().tobytes())
