"""Liger-Kernel's Triton rotation: half-split, heads first, written over its inputs."""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Skip, Tensors, Work, package

NAME = "Liger-Kernel"
EPS = 4.0


def build(work: Work) -> Contender:
    """On copies of the inputs, which it overwrites as it does in training; tables in the dtype of the model."""
    if work.case.interleaved:
        raise Skip("half-split only")
    if not work.case.kv_heads:
        raise Skip("it takes queries and keys together")
    function = package("liger_kernel.transformers.rope", "liger-kernel").liger_rotary_pos_emb
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))
    spare = work.spare()

    def make(i: int) -> Call:
        q, k = (x.transpose(1, 2) for x in spare[i])
        return lambda: function(q, k, cos, sin)

    def read(returned: Any) -> Tensors:
        return tuple(x.transpose(1, 2) for x in returned)

    return Contender(NAME, work.each(make), read, eps=EPS)
