"""The compiled kernels for CPU tensors: C++ in csrc/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk import compiled
from ropewalk.backends.request import Norm, Store, Turn
from ropewalk.compiled import new_like
from ropewalk.eager import reasons_for_mathematics
from ropewalk.rope.tables import phase_tables

name = "cpu"
kernels = True

_native: Any = compiled.kernels
_LAYOUTS = {"bshd": 0, "bhsd": 1, "thd": 2}
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.float8_e4m3fn: 4,
           torch.float8_e5m2: 5}  # fmt: skip


def reasons_not_to(x: Tensor) -> list[str]:
    """Why the compiled kernels cannot take `x`; empty if they can."""
    reasons = reasons_for_mathematics(x)
    if _native is None:
        reasons.append(compiled.why_not)
    if not reasons and not x.is_cpu:
        reasons.append(f"`x` is on {x.device.type}, not on the CPU")
    return reasons


def rotate(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """One or two tensors, in one call to the kernel."""
    if turn.phases:
        cos, sin = phase_tables(cos[..., None], sin, torch.float64 if xs[0].dtype == torch.float64 else torch.float32)
    cos, sin = _tables(xs[0], cos, sin)
    results = [new_like(x) for x in xs] if outs is None else list(outs)
    if len(xs) == 1:
        _native.rotate(*_request(cos, sin, turn), xs[0], results[0])
    else:
        _native.rotate(*_request(cos, sin, turn), xs[0], results[0], xs[1], results[1])
    return results


def norm_rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None, store: Store | None
) -> tuple[Tensor, Tensor]:
    """Norm, rotation, and the cache's new rows, in one pass over q, k and the values."""
    cos, sin = _tables(q, cos, sin)
    q_weight, k_weight = (None, None) if norm is None else (_weight(q, norm.q_weight), _weight(q, norm.k_weight))
    q_out = new_like(q)
    k_out = new_like(k) if store is None else store.keys
    sides: tuple[object, ...] = ((q, q_out, q_weight), (k, k_out if store is None else _bytes(k_out), k_weight))
    kept: object = None
    if store is not None:
        sides += ((store.fresh, _bytes(store.values), None),)
        kept = store.slots
        if not store.is_plain():
            pages = -1 if store.pages is None else _LAYOUTS[store.pages]
            kept = (store.slots, pages, _DTYPES[store.keys.dtype], *store.factors())
    joint, eps = (False, 0.0) if norm is None else (norm.joint, norm.eps)
    _native.norm_rotate(*_request(cos, sin, turn, joint), eps, kept, sides)
    return q_out, k_out


def norm_rotate_backward(
    grads: tuple[Tensor, Tensor], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and both weights in one pass; the same to the last bit for any number of threads."""
    cos, sin = _tables(q, cos, sin)
    weights = _weight(q, norm.q_weight), _weight(q, norm.k_weight)
    results = [new_like(x) for x in (q, k)]
    sums = torch.zeros(2, q.shape[-1], dtype=torch.float64, device="cpu")
    sides = tuple(zip((q, k), results, grads, weights, strict=True))
    _native.norm_rotate_backward(*_request(cos, sin, turn.transposed()), norm.eps, sums, sides)
    to_weights = sums.to(weights[0].dtype)
    return results[0], results[1], to_weights[0], to_weights[1]


def _bytes(buffer: Tensor) -> Tensor:
    """A cache of 8 bits as the kernels take it."""
    return buffer.view(torch.uint8) if buffer.dtype.itemsize == 1 else buffer


def _request(cos: Tensor, sin: Tensor, turn: Turn, joint: bool = False) -> tuple[object, ...]:
    """The arguments that every kernel begins with."""
    interleaved, scale, inverse, layout, _, written, first, blocks = turn
    where: object = _LAYOUTS[layout]
    if first or blocks or joint or written is not None:
        where = (where, turn.written, first, blocks, joint)
    return where, interleaved, scale, -scale if inverse else scale, torch.get_num_threads(), cos, sin


def _tables(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tables in the compute dtype, with the same strides and contiguous features."""
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    if cos.dtype != compute:
        cos, sin = cos.to(compute), sin.to(compute)
    strides = cos.stride()
    if strides[-1] != 1 or sin.stride() != strides:
        cos, sin = cos.contiguous(), sin.contiguous()
        if not cos.numel():  # torch calls any strides of an empty tensor contiguous
            cos, sin = cos.new_empty(cos.shape), sin.new_empty(sin.shape)
    return cos, sin


def _weight(x: Tensor, weight: Tensor) -> Tensor:
    return weight.to(torch.float64 if x.dtype == torch.float64 else torch.float32).contiguous()
