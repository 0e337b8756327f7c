"""The only place that chooses how a rotation is computed: an ordered list, the first that can take the call."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ropewalk.backends import cpu, reference, triton
from ropewalk.backends.request import Backend
from ropewalk.eager import PLAIN
from ropewalk.errors import RopeError, describe

BACKENDS: tuple[Backend, ...] = (cast(Backend, cpu), cast(Backend, triton), cast(Backend, reference))


def choose(x: Tensor, backend: str | None = None, *others: Tensor) -> Backend:
    """The backend for `x`: the named one, or the first of the list that can take it.

    The `others` go with it: where one is no plain tensor the mathematics serves. Raises `RopeError` if the named
    backend does not exist, or with its reasons if it cannot run.
    """
    if not torch.compiler.is_compiling():
        for other in others:
            if type(other) not in PLAIN or other.is_neg():
                x = other
    if backend is None:
        for module in BACKENDS:
            if not module.reasons_not_to(x):
                return module
    for module in BACKENDS:
        if module.name == backend:
            reasons = module.reasons_not_to(x)
            if reasons:
                raise RopeError(
                    f"rotate: backend {backend!r} cannot run here.",
                    facts={"x": x, "because": "; ".join(reasons)},
                    cure="Leave `backend` out to have one chosen.",
                )
            return module
    raise RopeError(
        f"rotate: there is no backend {backend!r}.",
        facts={"backends": [module.name for module in BACKENDS]},
        cure="Choose one of these, or leave `backend` out.",
    )


def explain_backends(x: Tensor) -> str:
    """Which backend would rotate `x`, and why each other would not, one line each.

    >>> import torch
    >>> print(explain_backends(torch.zeros(1, 4, 2, 8, device="meta")).splitlines()[-1])
    reference: runs
    """
    lines, taken = [describe(x)], False
    for module in BACKENDS:
        reasons = module.reasons_not_to(x)
        verdict = "; ".join(reasons) if reasons else ("could, but comes later in the list" if taken else "runs")
        taken = taken or not reasons
        lines.append(f"{module.name}: {verdict}")
    return "\n".join(lines)
