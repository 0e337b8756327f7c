"""Triton kernels for GPU tensors: rotation. With TRITON_INTERPRET=1 they also run on CPU tensors.

Triton is imported when the first tensor needs it, not by `import ropewalk`. A repeated call costs little host time,
because its launch is kept.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from ropewalk.compiled import is_compiling, reasons_for_mathematics
from ropewalk.rotation.backends.request import Norm, Store, Turn

name = "triton"
kernels = True


def reasons_not_to(x: Tensor) -> list[str]:
    """Return why the Triton kernels cannot rotate `x`; empty if they can."""
    if is_compiling():
        return reasons_for_mathematics(x)
    if not _is_installed():
        return ["Triton is not installed"]
    if not (x.is_cuda or (x.is_cpu and _is_interpreted())):
        return [f"`x` is on {x.device.type}, not on a GPU"]
    return reasons_for_mathematics(x)


def rotate(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Rotate one or two tensors in one launch, by the plan for calls like this one."""
    results = [torch.empty_like(x) for x in xs] if outs is None else list(outs)
    cos, sin = _alike(cos, sin)
    q, k, q_out, k_out = xs[0], xs[-1], results[0], results[-1]
    inplace = q_out is q and k_out is k
    key = (
        turn, len(xs), inplace, q.get_device(), q.dtype, cos.dtype, q.shape, q.stride(),
        q_out.stride(), k.shape, k.stride(), k_out.stride(), cos.shape, cos.stride(),
    )  # fmt: skip
    plans = _plans()
    plan = plans.PLANS.get(key) or plans.keep(key, plans.rotation_plan(xs, results, cos, turn, inplace))
    plan(q, k, q_out, k_out, cos, sin)
    return results


def norm_rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None, store: Store | None
) -> tuple[Tensor, Tensor]:
    """Norm, rotate and store in one launch."""
    cos, sin = _alike(cos, sin)
    outs = torch.empty_like(q), torch.empty_like(k) if store is None else store.keys
    weights = (q, k) if norm is None else (norm.q_weight.contiguous(), norm.k_weight.contiguous())
    kept = (q, q, q) if store is None else (store.slots, store.fresh, store.values)
    eps = None if norm is None else norm.eps
    key = _key((q, k, cos) if store is None else (q, k, cos, store.keys, *kept), weights, (turn, eps))
    plans = _plans()
    plan = plans.PLANS.get(key) or plans.keep(
        key, plans.norm_plan((q, k), outs, cos, turn, eps, store is not None, *kept)
    )
    plan(q, k, *outs, cos, sin, *weights, *kept)
    return outs


def _key(strided: Sequence[Tensor], weights: Sequence[Tensor], others: tuple[object, ...]) -> tuple[object, ...]:
    """Return everything that a launch depends on; the strides of new tensors follow from those of q and k."""
    parts: list[object] = [others, strided[0].get_device(), weights[0].dtype, weights[1].dtype]
    for x in strided:
        parts += (x.shape, x.stride(), x.dtype)
    return tuple(parts)


def _alike(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tables with equal strides and contiguous features, without a copy if they have these."""
    strides = cos.stride()
    if strides[-1] != 1 or sin.stride() != strides:
        return cos.contiguous(), sin.contiguous()
    return cos, sin


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _plans() -> ModuleType:
    """Import the kernels of rotation and norm, which need Triton."""
    from ropewalk.rotation.backends.gpu import plans

    return plans


@functools.cache
def _is_interpreted() -> bool:
    """Return whether TRITON_INTERPRET was set when Triton was imported, and at the first call."""
    return os.environ.get("TRITON_INTERPRET") == "1" and bool(_plans().INTERPRETED)
