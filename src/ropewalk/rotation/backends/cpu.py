"""Compiled kernels for CPU tensors (C++ in csrc/): rotation and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk import compiled
from ropewalk.compiled import fresh, reasons_for_mathematics
from ropewalk.precision import half_instructions
from ropewalk.rotation.backends.request import AttentionRequest, Norm, Store, Turn

name = "cpu"
kernels = True
most_regions = 8

_native: Any = compiled.kernels
_LAYOUTS = {"bshd": 0, "bhsd": 1, "thd": 2}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_KEYS = 1 << 24  # indices of keys are compared as float32
LAY_OUT_FROM = 256  # queries from which on keys and values are copied head by head, as each 64 queries load all


def reasons_not_to(x: Tensor) -> list[str]:
    """Return why the compiled kernels cannot rotate `x`; empty if they can."""
    if _native is None:
        return [compiled.why_not]
    reasons = reasons_for_mathematics(x)
    if not reasons and not x.is_cpu:
        reasons.append(f"`x` is on {x.device.type}, not on the CPU")
    return reasons


def rotate(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: Sequence[Tensor] | None = None
) -> Sequence[Tensor]:
    """Rotate one or two tensors in one call to the kernel."""
    options = _arguments(xs[0], cos, sin, turn)
    results = fresh(*map(torch.empty_like, xs)) if outs is None else outs
    if len(xs) == 1:
        _native.rotate(*options, xs[0], results[0])
    else:
        _native.rotate(*options, xs[0], results[0], xs[1], results[1])
    return results


def norm_rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None, store: Store | None
) -> tuple[Tensor, Tensor]:
    """Norm, rotate and store in one pass over q, k and the values."""
    q_weight, k_weight = (None, None) if norm is None else (_weight(q, norm.q_weight), _weight(q, norm.k_weight))
    q_out, *made = fresh(*map(torch.empty_like, (q, k) if store is None else (q,)))
    k_out = made[0] if store is None else store.keys
    sides: tuple[object, ...] = ((q, q_out, q_weight), (k, k_out, k_weight))
    kept: object = None
    if store is not None:
        sides += ((store.fresh, store.values, None),)
        kept = store.slots
    _native.norm_rotate(*_arguments(q, cos, sin, turn), 0.0 if norm is None else norm.eps, kept, sides)
    return q_out, k_out


def _arguments(x: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> tuple[object, ...]:
    """Return the first arguments of both kernels; tables in the compute dtype, with equal strides between rows."""
    interleaved, scale, inverse, layout, rotary_offset = turn
    where: object = (_LAYOUTS[layout], rotary_offset) if rotary_offset else _LAYOUTS[layout]
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    if cos.dtype != compute:
        cos, sin = cos.to(compute), sin.to(compute)
    strides = cos.stride()
    if strides[-1] != 1 or sin.stride() != strides:
        cos, sin = cos.contiguous(), sin.contiguous()
        if not cos.numel():  # torch calls any strides of an empty tensor contiguous
            cos, sin = cos.new_empty(cos.shape), sin.new_empty(sin.shape)
    return where, interleaved, scale, -scale if inverse else scale, torch.get_num_threads(), cos, sin


def _weight(x: Tensor, weight: Tensor) -> Tensor:
    return weight.to(torch.float64 if x.dtype == torch.float64 else torch.float32).contiguous()


def before_torch(q: Tensor, k: Tensor) -> bool:
    """Return whether the kernel is preferred to torch's fused attention: not for whole texts in bfloat16 with AMX.

    On two cores of an Intel Xeon with AMX, torch takes 0.44 to 0.60 of the kernel's time for 2,048 and 8,192 tokens.
    """
    whole = q.dtype == torch.bfloat16 and q.shape[-2] == k.shape[-2]
    return not whole or half_instructions(q.dtype, "cpu") != "AMX"


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Return why the compiled kernel cannot take queries, keys, values and sinks like these; empty if it can."""
    reasons: list[str] = []
    tensors = [x for x in (q, k, v, sinks) if x is not None]
    for x in tensors:
        reasons = reasons_for_mathematics(x)
        if reasons:
            return reasons
    if _native is None:
        reasons.append(compiled.why_not)
    if not all(x.is_cpu for x in tensors):
        reasons.append("a tensor is not on the CPU")
    if q.dtype not in DTYPES:
        reasons.append(f"{q.dtype} is none of float32, bfloat16 and float16")
    if not q.dtype == k.dtype == v.dtype:
        reasons.append("dtypes differ")
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        reasons.append("a gradient is needed")
    if v.shape[-2] >= MOST_KEYS:
        reasons.append(f"there are {MOST_KEYS} keys or more")
    return reasons


def attend(request: AttentionRequest) -> Tensor:
    """Attend in one call of the kernel; the same bits for any number of threads."""
    batch, heads, queries, head_dim = request.regions[0].q.shape
    # Tokens before heads, so that the caller merges the heads of a token without a copy.
    out = fresh(request.values.new_empty(batch, queries, heads, head_dim))[0].transpose(1, 2)
    laid_out: dict[int, Tensor] = {}  # regions may share their keys
    for x in (request.values, *(region.k for region in request.regions)):
        laid_out.setdefault(id(x), _laid_out(x, queries))
    regions = tuple((q.detach(), laid_out[id(k)], *bounds, turn) for q, k, bounds, turn in request.regions)
    sinks = None if request.sinks is None else request.sinks.detach().float()
    values, scale = laid_out[id(request.values)], request.scale
    _native.attend(torch.get_num_threads(), out, values, scale, request.softcap, sinks, regions)
    return out


def _laid_out(x: Tensor, queries: int) -> Tensor:
    """Return keys or values `[batch, kv_heads, keys, head_dim]`; for many queries with contiguous heads."""
    x, contiguous = x.detach(), x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]
    return x if contiguous or queries < LAY_OUT_FROM else x.contiguous()
