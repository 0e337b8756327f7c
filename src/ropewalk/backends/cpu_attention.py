"""The compiled attention kernel for CPU tensors: C++ in csrc/attention_kernels.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk import compiled
from ropewalk.backends.attention_request import AttentionRequest
from ropewalk.eager import reasons_for_mathematics

name = "cpu"
kernels = True
most_regions = 8

_native: Any = compiled.kernels
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_KEYS = 1 << 24  # indices of keys are compared as float32


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Why the compiled kernel cannot take queries, keys, values and sinks like these; empty if it can."""
    reasons: list[str] = []
    tensors = [x for x in (q, k, v, sinks) if x is not None]
    for x in tensors:
        reasons = reasons_for_mathematics(x)
        if reasons:
            return reasons
    if _native is None:
        reasons.append(compiled.why_not)
    elif not hasattr(_native, "attend"):
        reasons.append("the compiled extension is of an older version, without attention")
    if not all(x.is_cpu for x in tensors):
        reasons.append("a tensor is not on the CPU")
    if q.dtype not in DTYPES:
        reasons.append(f"{q.dtype} is none of float32, bfloat16 and float16")
    if not q.dtype == k.dtype == v.dtype:
        reasons.append("dtypes differ")
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        reasons.append("a gradient is asked for, and this kernel has no backward")
    if v.shape[-2] >= MOST_KEYS:
        reasons.append(f"there are {MOST_KEYS} keys or more")
    return reasons


def attend(request: AttentionRequest) -> Tensor:
    """One call of the kernel; the same to the last bit for any number of threads."""
    batch, heads, queries, head_dim = request.regions[0].q.shape
    # Tokens before heads, so that the caller joins the heads of a token without a copy.
    out = compiled.fresh(request.values.new_empty(batch, queries, heads, head_dim)).transpose(1, 2)
    regions = tuple((q, k, bounds.low, bounds.high, turn) for q, k, bounds, turn in request.regions)
    sinks = None if request.sinks is None else request.sinks.detach().float()
    _native.attend(torch.get_num_threads(), out, request.values, request.scale, request.softcap, sinks, regions)
    return out
