"""Losses of every token of a window, computed in chunks through the cache with logits of few tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.norm import HALF
from ropewalk.backends.widened import slow_dtype
from ropewalk.errors import RopeError
from ropewalk.models.precision import to_float64
from ropewalk.readers.reader import (
    CHUNK,
    Advance,
    Losses,
    Reader,
)

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


def crop_steps(tokens: int, trained_length: int, stride: int, *, first: int = 1) -> list[tuple[int, int, int]]:
    """Return the fresh windows of `crop` after the first window: (start, end, first token scored).

    - `first`: the first token to score; windows without such tokens are skipped.

    >>> crop_steps(11, 4, 2)
    [(2, 6, 4), (4, 8, 6), (6, 10, 8), (7, 11, 10)]
    >>> crop_steps(11, 4, 2, first=9)
    [(6, 10, 9), (7, 11, 10)]
    """
    steps = []
    for scored in range(trained_length, tokens, stride):
        end = min(scored + stride, tokens)
        if end > first:
            steps.append((end - trained_length, end, max(scored, first)))
    return steps


def cropped_losses(
    reader: Reader,
    input_ids: Tensor,
    *,
    trained_length: int,
    stride: int,
    first: int = 1,
    beginning: Losses | None = None,
    seq_len: int | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> Losses:
    """Return the losses from token `first` on, each given at most the last `trained_length` - 1 tokens.

    Token t is scored in a fresh window of `trained_length` tokens, at positions from 0, that ends less than `stride`
    tokens after t. So after the first window its context is trained_length - stride to trained_length - 1 tokens.

    **Arguments:** as `window_losses`.
    - `beginning`: losses of the first `trained_length` tokens (from token 1), if a plain pass over the same window
      has computed them.
    - `seq_len`: for every fresh window; defaults to its number of tokens.

    **Returns:** nats, float64 `[tokens - first]`.
    """
    tokens = len(input_ids)
    if trained_length < 2 or not 1 <= stride <= trained_length - 1:
        raise RopeError(
            "cropped_losses: the stride must be between 1 and trained_length - 1.",
            facts={"stride": stride, "trained_length": trained_length},
            cure="Pass for example a quarter of the trained length.",
        )
    if not 1 <= first < tokens:
        raise RopeError(
            "cropped_losses: `first` must be one of the window's tokens, but not token 0.",
            facts={"input_ids": input_ids, "first": first},
            cure="Pass 1 <= first < tokens.",
        )
    read = partial(reader.window_losses, seq_len=seq_len, chunk=chunk, advance=advance)
    within, parts = min(trained_length, tokens), []
    if first < within:
        if beginning is None:
            parts.append(read(input_ids[:within], first=first))
        else:
            parts.append(beginning[first - 1 : within - 1])
    for start, end, scored in crop_steps(tokens, trained_length, stride, first=first):
        parts.append(read(input_ids[start:end], first=scored - start))
    return np.concatenate(parts)


Top = list[tuple[int, float]]
"""Tokens with their log-probabilities in nats, the likeliest first."""


def likeliest(log_probs: Tensor, count: int) -> Top:
    """Return the `count` largest of log-probabilities `[vocab]`, the largest first.

    >>> likeliest(torch.tensor([-2.0, -0.5, -1.0]), 2)
    [(1, -0.5), (2, -1.0)]
    """
    best = log_probs.topk(min(count, len(log_probs)))
    return list(zip(best.indices.tolist(), to_float64(best.values).tolist(), strict=True))
