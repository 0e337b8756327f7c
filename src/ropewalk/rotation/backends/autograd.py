"""Gradients of the hand-written kernels of rotation: the rotation by the negative angle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.rotation.backends import reference
from ropewalk.rotation.backends.request import Backend, Norm, Store, Turn


class Rotation(torch.autograd.Function):
    """The rotation of one or two tensors by a kernel; differentiable twice, in the tensors and in both tables."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, turn: Turn, inplace: bool, *tensors: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Rotate `tensors`: one or two, then cos and sin.

        `inplace` takes one tensor: autograd allows changes of a view only by a function of one result, its first input.
        """
        *xs, cos, sin = tensors
        tables = cos.requires_grad or sin.requires_grad
        kept = [x.clone() if inplace else x for x in xs] if tables else []
        ctx.save_for_backward(cos, sin, *kept)
        ctx.backend, ctx.turn = backend, turn
        ctx.set_materialize_grads(False)
        if inplace:
            ctx.mark_dirty(*xs)
        outs = backend.rotate(xs, cos, sin, turn, xs if inplace else None)
        return outs[0] if len(outs) == 1 else tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Rotate each gradient back; sum those of cos and sin over all features that share a row."""
        cos, sin, *xs = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:-2]
        wanted = [grad for grad, need in zip(grads, needed, strict=True) if need and grad is not None]
        backend = ctx.backend if _takes(ctx.backend, wanted) else cast(Backend, reference)
        back = iter(rotated(backend, wanted, cos, sin, ctx.turn.transposed()) if wanted else ())
        to_xs = [next(back) if need and grad is not None else None for grad, need in zip(grads, needed, strict=True)]
        to_cos = to_sin = None
        for x, grad in zip(xs, grads, strict=False):
            if grad is not None:
                for_cos, for_sin = _table_gradients(x, grad, cos, ctx.turn)
                to_cos = for_cos if to_cos is None else to_cos + for_cos
                to_sin = for_sin if to_sin is None else to_sin + for_sin
        return None, None, None, *to_xs, to_cos, to_sin


class NormRotation(torch.autograd.Function):
    """RMSNorm of the heads of queries and keys and their rotation by a kernel; differentiable twice, but not in tables.

    With r = (mean(x^2) + eps)^(-1/2), n = x r, and g the gradient rotated back, the gradient of a weight is the sum of
    g n, and that of x is r (h - n mean(h n)) with h = g w: plain expressions in float32 (float64 for float64).
    """

    @staticmethod
    def forward(
        ctx: Any, backend: Backend, turn: Turn, eps: float, cos: Tensor, sin: Tensor, q: Tensor, k: Tensor,
        q_weight: Tensor, k_weight: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Save only the inputs: backward computes the norm again."""
        ctx.save_for_backward(cos, sin, q, k, q_weight, k_weight)
        ctx.backend, ctx.turn, ctx.eps = backend, turn, eps
        return backend.norm_rotate(q, k, cos, sin, turn, Norm(q_weight, k_weight, eps), None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of q, k and both weights."""
        cos, sin, q, k, q_weight, k_weight = ctx.saved_tensors
        compute = torch.promote_types(q.dtype, torch.float32)
        wide = [grad.to(compute) for grad in grads]
        backend = ctx.backend if _takes(ctx.backend, wide) else cast(Backend, reference)
        to_xs, to_weights = [], []
        for x, weight, g in zip(
            (q, k), (q_weight, k_weight), rotated(backend, wide, cos, sin, ctx.turn.transposed()), strict=True
        ):
            values, h = x.to(compute), g * weight.to(compute)
            r = torch.rsqrt(values.square().mean(-1, keepdim=True) + ctx.eps)
            n = values * r
            to_xs.append((r * (h - n * (h * n).mean(-1, keepdim=True))).to(x.dtype))
            to_weights.append((g * n).flatten(0, -2).sum(0).to(weight.dtype))
        return None, None, None, None, None, *to_xs, *to_weights


def _takes(backend: Backend, grads: Sequence[Tensor]) -> bool:
    """Return whether the kernels support all gradients: not with torch.func, batched ones or negated views."""
    return not any(backend.reasons_not_to(grad) for grad in grads)


def rotated(
    backend: Backend, xs: list[Tensor], cos: Tensor, sin: Tensor, turn: Turn, *, inplace: bool = False
) -> list[Tensor]:
    """Rotate `xs` by a backend, through the autograd function if a tensor requires grad."""
    if not backend.kernels:
        return backend.rotate(xs, cos, sin, turn, xs if inplace else None)
    if not torch.is_grad_enabled() or not (
        xs[0].requires_grad or xs[-1].requires_grad or cos.requires_grad or sin.requires_grad
    ):
        if not inplace:
            return backend.rotate(xs, cos, sin, turn)
        backend.rotate(xs, cos, sin, turn, xs)
        note_written(xs)
        return xs
    if inplace:
        return [Rotation.apply(backend, turn, True, x, cos, sin) for x in xs]  # type: ignore[no-untyped-call]
    outs = Rotation.apply(backend, turn, False, *xs, cos, sin)  # type: ignore[no-untyped-call]
    return [outs] if isinstance(outs, Tensor) else list(outs)


def norm_rotated(
    backend: Backend, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None,
    store: Store | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Norm, rotate and store by a backend; q, k and the weights get gradients, a cache does not."""
    if backend.kernels and norm is not None and store is None and torch.is_grad_enabled():
        if cos.requires_grad or sin.requires_grad or norm.joint:
            return reference.norm_rotate(q, k, cos, sin, turn, norm, None)
        if q.requires_grad or k.requires_grad or norm.q_weight.requires_grad or norm.k_weight.requires_grad:
            q, k = NormRotation.apply(  # type: ignore[no-untyped-call]
                backend, turn, norm.eps, cos, sin, q, k, norm.q_weight, norm.k_weight
            )
            return q, k
    outs = backend.norm_rotate(q, k, cos, sin, turn, norm, store)
    if backend.kernels and store is not None:
        note_written([store.keys, store.values])
    return outs


def note_written(tensors: list[Tensor]) -> None:
    """Tell autograd that a kernel has changed these tensors."""
    torch.autograd.graph.increment_version([x for x in tensors if not x.is_inference()])


def _table_gradients(x: Tensor, grad: Tensor, cos: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
    """Return one tensor's part of the gradients of cos and sin, in their shape and dtype."""
    rows = reference.broadcast_rows(cos, turn.layout)
    pairs = cos.shape[-1]
    compute = torch.promote_types(x.dtype, torch.float32)
    a, b = reference.pairs_of(x.to(compute), pairs, turn)
    first, second = reference.pairs_of(grad.to(compute), pairs, turn)
    sign = -turn.scale if turn.inverse else turn.scale
    for_cos = (turn.scale * (first * a + second * b)).sum_to_size(rows.shape)
    for_sin = (sign * (second * a - first * b)).sum_to_size(rows.shape)
    if cos.ndim == 4 and turn.layout == "bhsd":
        for_cos, for_sin = for_cos.transpose(1, 2), for_sin.transpose(1, 2)
    return for_cos.reshape(cos.shape).to(cos.dtype), for_sin.reshape(cos.shape).to(cos.dtype)
