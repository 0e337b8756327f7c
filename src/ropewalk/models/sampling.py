"""One token from logits: the likeliest, or drawn by temperature, top-k and top-p from a row's own stream."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.models.precision import to_float64


def draws_of(seed: int | None, rows: int) -> list[random.Random]:
    """A stream of random numbers for each row; None seeds them by torch's generator."""
    base = seed if seed is not None else int(torch.randint(2**62, (), device="cpu").item())
    return [random.Random(f"{base}:{row}") for row in range(rows)]


def sample(
    logits: Tensor,
    draws: Sequence[random.Random],
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[int]:
    """One token per row, from logits or log-probabilities `[rows, vocab]`; see `ropewalk.generate`.

    >>> sample(torch.tensor([[0.0, 2.0, 1.0]]), draws_of(0, 1))
    [1]
    """
    if temperature == 0:
        return [int(token) for token in logits.argmax(-1).tolist()]
    out = []
    # From the largest down, so that no temperature, however small, divides to infinity (and inf - inf to NaN).
    exact = to_float64(logits)
    downward = exact - exact.amax(-1, keepdim=True)
    for draw, scores in zip(draws, downward / temperature, strict=True):
        count = scores.shape[0] if top_k is None else min(top_k, scores.shape[0])
        best = scores.topk(count) if count < scores.shape[0] else scores.sort(descending=True)
        reached = best.values.softmax(-1).cumsum(-1)
        if top_p is not None:
            # Keep a token while those before it have not reached p: the first one always stays.
            kept = int((reached < top_p).sum().item()) + 1
            reached = reached[:kept]
        mark = draw.random() * reached[-1]
        at = int(torch.searchsorted(reached, mark, right=True).item())
        out.append(int(best.indices[min(at, len(reached) - 1)].item()))
    return out
