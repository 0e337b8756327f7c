"""SwiGLU, the norm of a sum, and losses in plain PyTorch: the definitions that the kernels must agree with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

name = "reference"
kernels = False


def reasons_not_to_run(x: Tensor, *others: Tensor) -> list[str]:
    """Why this backend could not run: it always can."""
    return []


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


def sum_norm(x: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, and its RMSNorm in the weight's dtype."""
    total = x if added is None else x + added
    return total, F.rms_norm(total, weight.shape, weight.to(x.dtype), eps).to(weight.dtype)


def new_log_sums(rows: int) -> Tensor:
    """What `log_sum` adds to: each row's largest logit so far, sum of exp(logit - largest), and its target's logit."""
    state = torch.zeros(3, rows)
    state[0] = -torch.inf
    return state


def log_sum(logits: Tensor, targets: Tensor, first: int, state: Tensor) -> None:
    """Take in the logits of tokens `first`, `first` + 1, ..., `[rows, some]`."""
    wide = logits.float()
    largest = torch.maximum(state[0], wide.amax(-1))
    high = largest.masked_fill(largest == -torch.inf, 0.0)  # where no logit is finite
    state[1] = state[1] * (state[0] - high).exp() + (wide - high[:, None]).exp().sum(-1)
    state[0] = largest
    at = targets - first
    here = (at >= 0) & (at < logits.shape[1])
    state[2, here] = wide[here, at[here]]
