"""Compile the Triton attention kernels for an H100, without one.

`python -m tests.backends.compile_attention [CASE ...]` prints JSON. For each kernel, dtype and head_dim: bytes of
shared memory, ptxas' registers and bytes spilled.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from ropewalk.backends import triton as backend
from ropewalk.backends.request import AttentionRegion, AttentionRequest, Bounds, KeyTurn
from tests.backends.compile_ahead import Driver, resources

TOKENS, HEADS, KV_HEADS = 300, 8, 2


def calls(dtype: torch.dtype, head_dim: int) -> None:
    """Three regions of keys that are turned as they are read, under softcap and sinks; and a backward."""
    q, k = (torch.zeros(1, heads, TOKENS, head_dim, dtype=dtype) for heads in (HEADS, KV_HEADS))
    bounds = Bounds(torch.zeros(1, TOKENS, dtype=torch.int64), torch.arange(TOKENS)[None] + 1)
    table = torch.zeros(TOKENS, head_dim // 2)
    turned = AttentionRegion(q, k, bounds, KeyTurn(table, table, False))
    backend.attend(AttentionRequest((turned,) * 3, k, 1.0, 5.0, torch.zeros(HEADS)))
    region, sums = turned._replace(turn=None), torch.zeros(1, HEADS, TOKENS)
    backend.attend_backward(AttentionRequest((region,), k, 1.0), region, sums, sums, q)


def main(cases: list[str]) -> None:
    """One record for each kernel, of all cases or of those named, such as "bfloat16, 128"."""
    triton.runtime.driver.set_active(Driver())
    found: dict[str, object] = {}
    run, where = JITFunction.run, ""

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        found[f"{self.__name__}, {where}"] = {"shared": kernel.metadata.shared, **resources(kernel.asm["ptx"])}

    JITFunction.run = compile_only
    for dtype, head_dim in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 64)):
        where = f"{str(dtype)[6:]}, {head_dim}"
        if not cases or where in cases:
            calls(dtype, head_dim)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
