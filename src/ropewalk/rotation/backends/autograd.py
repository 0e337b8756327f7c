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
    """Norm, rotate and store by a backend. With gradients, which a cache has none of, the norm is plain."""
    differentiable = backend.kernels and norm is not None and store is None and torch.is_grad_enabled()
    if norm is not None and differentiable and any(x.requires_grad for x in (q, k, *norm[:2], cos, sin)):
        wide = [reference.normalised(x, of, norm.eps) for x, of in ((q, norm.q_weight), (k, norm.k_weight))]
        first, second = rotated(backend, wide, cos, sin, turn)
        return first.to(q.dtype), second.to(k.dtype)
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
