"""Token ids to batches of like length, and tokens left out at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

POOL = 32
"""Batches whose texts are sorted by length together: padding is rare, and an epoch's order still random."""


def epoch_order(lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Every index once, in batches of like length and in random order: a function of seed and epoch alone.

    >>> sorted(sum(epoch_order([5, 1, 4, 2, 3], 2, seed=0, epoch=0), []))
    [0, 1, 2, 3, 4]
    """
    generator = np.random.default_rng([seed, epoch])
    order, sizes = generator.permutation(len(lengths)), np.asarray(lengths)
    batches: list[list[int]] = []
    for begin in range(0, len(order), POOL * batch_size):
        pool = order[begin : begin + POOL * batch_size]
        pool = pool[np.argsort(sizes[pool], kind="stable")]
        batches += [pool[i : i + batch_size].tolist() for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Every index once, shortest text first, for predictions."""
    order = np.argsort(np.asarray(lengths), kind="stable").tolist()
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def pad(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Ids and mask, int64 and bool `[batch, longest]`, padded on the right; the mask is None where nothing is."""
    lengths = torch.tensor([len(text) for text in texts])
    longest = int(lengths.max())
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    mask = torch.arange(longest) < lengths[:, None]
    return ids, None if bool(mask.all()) else mask


def leave_out(texts: Sequence[list[int]], probability: float) -> list[list[int]]:
    """The texts without some of their tokens: each is left out with this probability, but one of each text stays."""
    if not probability:
        return list(texts)
    drawn = torch.rand(sum(len(text) for text in texts)).tolist()
    kept_texts, begin = [], 0
    for text in texts:
        chances = drawn[begin : begin + len(text)]
        kept = [token for token, chance in zip(text, chances, strict=True) if chance >= probability]
        kept_texts.append(kept or [text[chances.index(max(chances))]])
        begin += len(text)
    return kept_texts
