"""The choice of a backend for rotations and attention, the first that supports the tensors, and its call.

The gradient of a rotation is the rotation by the negative angle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.compiled import PLAIN, share_memory
from ropewalk.errors import RopeError, check_kind, describe
from ropewalk.rotation.backends import cpu, flex, reference, triton
from ropewalk.rotation.backends.request import AttentionBackend, Backend, Norm, Store, Turn

BACKENDS: tuple[Backend, ...] = (cast(Backend, cpu), cast(Backend, triton), cast(Backend, reference))
ATTENTION: tuple[AttentionBackend, ...] = (
    cast(AttentionBackend, cpu),
    cast(AttentionBackend, flex),
    cast(AttentionBackend, reference),
)


def choose(tensors: Mapping[str, Tensor], backend: str | None = None) -> Backend:
    """Return the backend for some tensors, by name: the named one, or the first in the list that supports the first.

    Kernels need all tensors, which take part in the computation, to be plain.

    **Raises:** `RopeError` if the named backend does not exist, or with its reasons if it cannot run.
    """
    for module in BACKENDS:
        if backend is None or module.name == backend:
            name, x = next(iter(tensors.items()))
            reasons = module.reasons_not_to(x)
            if not reasons and module.kernels:
                for other, tensor in tensors.items():
                    if type(tensor) not in PLAIN or tensor.is_neg():
                        name, x, reasons = other, tensor, module.reasons_not_to(tensor)
            if not reasons:
                return module
            if backend is not None:
                raise RopeError(
                    f"rotate: backend {backend!r} cannot run here.",
                    facts={name: x, "because": "; ".join(reasons)},
                    cure="Leave `backend` out for an automatic choice.",
                )
    raise RopeError(
        f"rotate: there is no backend {backend!r}.",
        facts={"backends": [module.name for module in BACKENDS]},
        cure="Choose one of these, or leave `backend` out.",
    )


def choose_attention(
    q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None = None, torch_serves: bool = False
) -> AttentionBackend:
    """Return the first backend in the list that supports attention of these tensors.

    `torch_serves`: torch's fused attention can compute it, so kernels that are not faster are skipped. If the result
    has no `kernels`, the caller may prefer torch's attention.
    """
    for module in ATTENTION:
        slower = torch_serves and module.kernels and not (module.name == cpu.name and cpu.before_torch(q, k))
        if not slower and not module.reasons_not_to_attend(q, k, v, sinks):
            return module
    raise AssertionError("the reference has no reasons")


def explain_backends(x: Tensor) -> str:
    """Return the backend that would rotate `x`, and why each other one would not, one line each.

    >>> import torch
    >>> print(explain_backends(torch.zeros(1, 4, 2, 8, device="meta")).splitlines()[-1])
    reference: runs
    """
    check_kind("explain_backends", Tensor, "Pass queries or keys.", x=x)
    return _explained(x, {module.name: module.reasons_not_to(x) for module in BACKENDS})


def explain_attention(q: Tensor, k: Tensor, v: Tensor) -> str:
    """Return the backend that would attend, and why each other one would not, one line each.

    Layers call torch's `scaled_dot_product_attention` instead of the reference, and instead of flex attention if only
    order hides keys.

    >>> import torch
    >>> q = torch.zeros(1, 2, 4, 8, dtype=torch.float64)
    >>> print(explain_attention(q, q, q).splitlines()[-1])
    reference: runs
    """
    cure = "Pass q [batch, heads, queries, head_dim], k and v [batch, kv_heads, keys, head_dim]."
    check_kind("explain_attention", Tensor, cure, q=q, k=k, v=v)
    if not q.ndim == k.ndim == v.ndim == 4:
        raise RopeError("explain_attention: tensors need four dimensions.", facts={"q": q, "k": k, "v": v}, cure=cure)
    return _explained(q, {module.name: module.reasons_not_to_attend(q, k, v) for module in ATTENTION})


def _explained(x: Tensor, reasons: dict[str, list[str]]) -> str:
    lines, taken = [describe(x)], False
    for name, against in reasons.items():
        verdict = "; ".join(against) if against else ("could, but comes later in the list" if taken else "runs")
        taken = taken or not against
        lines.append(f"{name}: {verdict}")
    return "\n".join(lines)


# --- rotations by a backend, with their gradients


def turned(
    tensors: Mapping[str, Tensor], cos: Tensor, sin: Tensor, turns: Sequence[Turn], inplace: bool = False,
    out: Tensor | None = None, backend: str | None = None,
) -> Sequence[Tensor]:  # fmt: skip
    """Rotate a tensor, or queries and keys, by checked arguments; in one call if they differ only in their heads."""
    module, xs = choose({**tensors, "cos": cos, "sin": sin}, backend), [*tensors.values()]
    if out is not None:
        if module.kernels and (module.reasons_not_to(out) or _is_overwritten(xs[0], out)):
            return [out.copy_(rotated(module, xs, cos, sin, turns[0])[0])]
        return rotated(module, xs, cos, sin, turns[0], [out])
    if len(xs) == 2:
        q, k = xs
        if (q.dtype, q.shape[0], q.shape[-1], turns[0]) != (k.dtype, k.shape[0], k.shape[-1], turns[1]):
            (q,) = rotated(module, [q], cos, sin, turns[0], [q] if inplace else None)
            return [q, *rotated(module, [k], cos, sin, turns[1], [k] if inplace else None)]
    return rotated(module, xs, cos, sin, turns[0], xs if inplace else None)


def rotated(
    backend: Backend, xs: list[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: list[Tensor] | None = None
) -> Sequence[Tensor]:
    """Rotate one or two tensors of one kind by a backend, into new tensors or into `outs`.

    With gradients `outs` are None or `xs`, and kernels run in the autograd function.
    """
    of_tables = cos.requires_grad or sin.requires_grad
    recorded = torch.is_grad_enabled() and (of_tables or xs[0].requires_grad or xs[-1].requires_grad)
    if not backend.kernels:
        kept = [x.clone() for x in xs] if outs is not None and of_tables else xs
        return backend.rotate(kept, cos, sin, turn, outs)
    if not recorded:
        results = backend.rotate(xs, cos, sin, turn, outs)
        if outs is not None:
            note_written(outs)
        return results
    if outs is not None:
        return [Rotation.apply(backend, turn, True, x, cos, sin) for x in xs]  # type: ignore[no-untyped-call]
    new = Rotation.apply(backend, turn, False, *xs, cos, sin)  # type: ignore[no-untyped-call]
    return [new] if isinstance(new, Tensor) else new


def _is_overwritten(x: Tensor, out: Tensor) -> bool:
    """Return whether writing `out` could overwrite elements of `x` before they are read."""
    return share_memory(x, out) and not (x.data_ptr() == out.data_ptr() and x.stride() == out.stride())


def norm_rotated(
    backend: Backend, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None,
    store: Store | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Norm, rotate and store by a backend. With gradients, which a cache has none of, the norm is plain."""
    if norm is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, *norm[:2], cos, sin)):
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
        refused = any(map(ctx.backend.reasons_not_to, wanted))  # with torch.func, batched ones, negated views
        backend = cast(Backend, reference) if refused else ctx.backend
        back = iter(rotated(backend, wanted, cos, sin, ctx.turn.transposed()) if wanted else ())
        to_xs = [next(back) if need and grad is not None else None for grad, need in zip(grads, needed, strict=True)]
        to_cos = to_sin = None
        for x, grad in zip(xs, grads, strict=False):
            if grad is not None:
                for_cos, for_sin = _table_gradients(x, grad, cos, ctx.turn)
                to_cos = for_cos if to_cos is None else to_cos + for_cos
                to_sin = for_sin if to_sin is None else to_sin + for_sin
        return None, None, None, *to_xs, to_cos, to_sin


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
