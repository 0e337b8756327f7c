"""Compute float32 logits from hidden states, for few tokens at a time whatever the length."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.norm import HALF

HEAD_ROWS = 256  # tokens of one product with the head
CACHED = 2**19  # logits that a CPU widens and sums up at one time: within its caches that takes a third of the time
WIDENED_ROWS = 4096  # rows of the head that are float32 at one time, for the logits of a single token


def logit_slices(hidden: Tensor, weight: Tensor, targets: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The logits of a few tokens after the other: which they are, and float32 `[of them, vocab]`.

    **Arguments:**
    - `hidden`: `[tokens, hidden]`, in the head's dtype. `weight`: `[vocab, hidden]`. `targets`: int64 `[tokens]`.

    **Numerics:** of half types, a product that is summed in float32 is rounded: a logit of 20 by up to 0.06. So all
    logits of a token are given less one number, the nearest to its target's: differences that matter to its loss are
    then small, and so is what rounding takes from them (on SmolLM2 the loss of a token is off by 0.002 nats instead of
    0.026, root mean square). Softmax does not see the difference.

    >>> [(part, logits)] = logit_slices(torch.ones(1, 2), torch.eye(3, 2), torch.tensor([1]))
    >>> logits
    tensor([[1., 1., 0.]])
    """
    step = max(1, CACHED // len(weight)) if hidden.device.type == "cpu" else HEAD_ROWS
    for start in range(0, len(targets), HEAD_ROWS):
        part, wanted = hidden[start : start + HEAD_ROWS], targets[start : start + HEAD_ROWS]
        if weight.dtype in HALF:
            near = _near(part, weight[wanted]).expand(-1, len(weight))
            logits = torch.addmm(near, part, weight.t(), beta=-1)
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


def _near(hidden: Tensor, wanted: Tensor) -> Tensor:
    """About the logit of each token's target, `[tokens, 1]`: their difference to it is what matters of the others."""
    return (hidden.float() * wanted.float()).sum(-1, keepdim=True).to(wanted.dtype)


def all_log_probs(hidden: Tensor, weight: Tensor) -> Tensor:
    """The log-probability of every token after one, float32 `[vocab]`, from its hidden state `[hidden]`."""
    if weight.dtype not in HALF:
        return F.linear(hidden[None], weight)[0].float().log_softmax(-1)
    logits = [F.linear(hidden.float(), rows.float()) for rows in torch.split(weight, WIDENED_ROWS)]
    return torch.cat(logits).log_softmax(-1)
