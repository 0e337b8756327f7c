"""The compiled attention kernel for CPU tensors: C++ in csrc/attention_kernels.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk import compiled
from ropewalk.backends.attention_request import AttentionRegion, AttentionRequest
from ropewalk.eager import reasons_for_mathematics

name = "cpu"
kernels = True
before_torch = True
most_regions = 8

_native: Any = compiled.kernels
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_KEYS = 1 << 24  # indices of keys are compared as float32
LAY_OUT_FROM = 256  # queries from which on keys and values are laid out head by head: each 64 of them read all anew


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
    elif not hasattr(_native, "attend_backward"):
        reasons.append("the compiled extension is of an older version: build it anew")
    if not all(x.is_cpu for x in tensors):
        reasons.append("a tensor is not on the CPU")
    if q.dtype not in DTYPES:
        reasons.append(f"{q.dtype} is none of float32, bfloat16 and float16")
    if not q.dtype == k.dtype == v.dtype:
        reasons.append("dtypes differ")
    if v.shape[-2] >= MOST_KEYS:
        reasons.append(f"there are {MOST_KEYS} keys or more")
    return reasons


def attend(request: AttentionRequest, log_sums: Tensor | None = None) -> Tensor:
    """One call of the kernel; the same to the last bit for any number of threads.

    `log_sums`: float32 `[batch, heads, queries]`, where the logarithms of the softmaxes' sums are written.
    """
    batch, heads, queries, head_dim = request.regions[0].q.shape
    # Tokens before heads, so that the caller joins the heads of a token without a copy.
    out = compiled.fresh(request.values.new_empty(batch, queries, heads, head_dim)).transpose(1, 2)
    laid_out: dict[int, Tensor] = {}  # regions may share their keys
    for x in (request.values, *(region.k for region in request.regions)):
        laid_out.setdefault(id(x), _laid_out(x, queries))
    regions = tuple((q.detach(), laid_out[id(k)], *bounds, turn) for q, k, bounds, turn in request.regions)
    sinks = None if request.sinks is None else request.sinks.detach().float()
    values, scale = laid_out[id(request.values)], request.scale
    _native.attend(torch.get_num_threads(), out, values, scale, request.softcap, sinks, log_sums, regions)
    return out


def attend_backward(
    request: AttentionRequest, region: AttentionRegion, log_sums: Tensor, less: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one region's queries and keys, and its part of the values', from the gradient of the result.

    `log_sums` as `attend` wrote them; `less`: the sum over features of result times `grad`, float32 `[batch, heads,
    queries]`. The same to the last bit for any number of threads.
    """
    heads, queries = region.q.shape[1:3]
    values, k = _laid_out(request.values, queries), _laid_out(region.k, queries)
    batch, kv_heads, keys, head_dim = values.shape
    chunk = _keys_of_one_task(batch * kv_heads, keys)
    parts = values.new_zeros(-(-keys // chunk), batch, queries, heads, head_dim, dtype=torch.float32)
    to_k, to_v = (compiled.fresh(values.new_empty(batch, keys, kv_heads, head_dim)).transpose(1, 2) for _ in range(2))
    _native.attend_backward(
        torch.get_num_threads(), parts, to_k, to_v, grad, values, request.scale, request.softcap, log_sums, less, chunk,
        (region.q.detach(), k, *region.bounds, None),
    )  # fmt: skip
    to_q = parts[0] if len(parts) == 1 else parts.sum(0)
    return to_q.to(values.dtype).transpose(1, 2), to_k, to_v


def _laid_out(x: Tensor, queries: int) -> Tensor:
    """Keys or values `[batch, kv_heads, keys, head_dim]`: for many queries each head's rows one behind the other."""
    x, lies_so = x.detach(), x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]
    return x if lies_so or queries < LAY_OUT_FROM else x.contiguous()


def _keys_of_one_task(key_heads: int, keys: int) -> int:
    """Enough tasks for many threads, at most 8 for a key head: each has a gradient of all queries. By shapes alone."""
    tasks = min(8, -(-16 // max(1, key_heads)))
    return max(512, -(-keys // tasks // 64) * 64)
