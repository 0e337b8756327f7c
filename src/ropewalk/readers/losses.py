"""Losses of every token of a window, computed in chunks through the cache with logits of few tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.layers.norm import HALF
from ropewalk.layers.precision import to_float64
from ropewalk.rotation.backends.widened import slow_dtype

HEAD_ROWS = 256  # tokens of one product with the head
CACHED = 2**19  # logits that a CPU widens and sums at one time: inside its caches it takes a third of the time
WIDENED_ROWS = 4096  # rows of the head that are float32 at one time


def logit_slices(hidden: Tensor, weight: Tensor, targets: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield a slice of few tokens and their logits, float32 `[tokens of the slice, vocab]`.

    **Arguments:**
    - `hidden`: `[tokens, hidden]`, in the head's dtype. `weight`: `[vocab, hidden]`. `targets`: int64 `[tokens]`.

    **Numerics:** products of half types are summed in float32 and then rounded: a logit of 20 by up to 0.06.
    Therefore about the target's logit is subtracted from all logits of a token, which softmax ignores. The logits with
    an effect on the loss are then small, and so are their rounding errors: on SmolLM2 0.002 nats instead of 0.026, root
    mean square.

    >>> [(part, logits)] = logit_slices(torch.ones(1, 2), torch.eye(3, 2), torch.tensor([1]))
    >>> logits
    tensor([[1., 1., 0.]])
    """
    step = max(1, CACHED // len(weight)) if hidden.device.type == "cpu" else HEAD_ROWS
    for start in range(0, len(targets), HEAD_ROWS):
        part, wanted = hidden[start : start + HEAD_ROWS], targets[start : start + HEAD_ROWS]
        if slow_dtype(weight.dtype, str(weight.device)):
            logits = wide_product(part, weight)
        elif weight.dtype in HALF:
            near = (part.float() * weight[wanted].float()).sum(-1, keepdim=True).to(weight.dtype)
            logits = torch.addmm(near.expand(-1, len(weight)), part, weight.t(), beta=-1)
        else:
            logits = F.linear(part, weight)
        for first in range(0, len(logits), step):
            few = logits[first : first + step]
            yield slice(start + first, start + first + len(few)), few.float()


def target_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of each target, float32 `[tokens]`. Arguments are those of `logit_slices`."""
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    for part, logits in logit_slices(hidden, weight, targets):
        losses[part] = F.cross_entropy(logits, targets[part], reduction="none")
    return losses


def wide_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return float32 logits `[..., vocab]` from half-precision values, converting few rows of the head at a time."""
    wide = hidden.float()
    return torch.cat([F.linear(wide, rows.float()) for rows in torch.split(weight, WIDENED_ROWS)], -1)


Top = list[tuple[int, float]]
"""Tokens with their log-probabilities in nats, the likeliest first."""


def likeliest(log_probs: Tensor, count: int) -> Top:
    """Return the `count` largest of log-probabilities `[vocab]`, the largest first.

    >>> likeliest(torch.tensor([-2.0, -0.5, -1.0]), 2)
    [(1, -0.5), (2, -1.0)]
    """
    best = log_probs.topk(min(count, len(log_probs)))
    return list(zip(best.indices.tolist(), to_float64(best.values).tolist(), strict=True))
