"""The choice of a backend for rotations and attention: the first that supports the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from ropewalk.compiled import PLAIN, is_compiling
from ropewalk.errors import RopeError, check_kind, describe
from ropewalk.rotation.backends import cpu, flex, reference, triton
from ropewalk.rotation.backends.request import AttentionBackend, Backend

BACKENDS: tuple[Backend, ...] = (cast(Backend, cpu), cast(Backend, triton), cast(Backend, reference))
ATTENTION: tuple[AttentionBackend, ...] = (
    cast(AttentionBackend, cpu),
    cast(AttentionBackend, flex),
    cast(AttentionBackend, reference),
)


def choose(
    x: Tensor, backend: str | None = None, *others: Tensor, names: Sequence[str] = ("x", "cos", "sin")
) -> Backend:
    """Return the backend for `x`: the named one, or the first in the list that supports it.

    If one of the `others`, which take part in the computation, is no plain tensor, the reference is returned. Errors
    call `x` and the others by `names`.

    **Raises:** `RopeError` if the named backend does not exist, or with its reasons if it cannot run.
    """
    name = names[0]
    if not is_compiling():
        for place, other in enumerate(others, 1):
            if type(other) not in PLAIN or other.is_neg():
                x, name = other, names[place]
    for module in BACKENDS:
        if backend is None or module.name == backend:
            reasons = module.reasons_not_to(x)
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
        slower = torch_serves and module.kernels and not module.before_torch(q, k)
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
    reasons = {module.name: module.reasons_not_to(x) for module in BACKENDS}
    return "\n".join([describe(x), *_verdicts(reasons)])


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
    reasons = {module.name: module.reasons_not_to_attend(q, k, v) for module in ATTENTION}
    return "\n".join([describe(q), *_verdicts(reasons)])


def _verdicts(reasons: dict[str, list[str]]) -> list[str]:
    lines, taken = [], False
    for name, against in reasons.items():
        verdict = "; ".join(against) if against else ("could, but comes later in the list" if taken else "runs")
        taken = taken or not against
        lines.append(f"{name}: {verdict}")
    return lines
