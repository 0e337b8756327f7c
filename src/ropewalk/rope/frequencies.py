"""Inverse frequencies of a config, and the distance at which the sum of their cosines falls below zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling.base import Ladder
from ropewalk.rope.values import Float64, as_whole, check_whole, is_number


@dataclass(frozen=True)
class Frequencies:
    """Inverse frequencies of a config, and its attention factor.

    - `inv_freq`: radians per token; angles are `positions @ inv_freq`.
    - `attention_factor`: factor of queries and of keys; 1.0 without YaRN or LongRoPE.
    """

    inv_freq: Float64[Tensor, "axes pairs"]
    attention_factor: float


def inverse_frequencies(config: RopeConfig, seq_len: int | None = None) -> Frequencies:
    """Return the inverse frequencies of a config, in float64, and its attention factor.

    `seq_len`: tokens; required if the scaling rule depends on it (dynamic NTK, LongRoPE), else without effect.

    **Returns:** `Frequencies`: float64 `[axes, pairs]`, radians per token, and a float.
    **Raises:** `RopeError` if `seq_len` is missing or is not a whole number of at least 1.

    >>> freqs = inverse_frequencies(RopeConfig(head_dim=4, interleaved=True))
    >>> freqs.inv_freq.tolist(), freqs.attention_factor
    ([[1.0, 0.01]], 1.0)
    """
    check_config(config, "inverse_frequencies")
    check_whole("inverse_frequencies", seq_len=seq_len)
    tokens = as_whole(seq_len)
    columns, axes = config.columns_at(tokens), config.axes or (0,) * config.pairs
    rows = [[f if a == axis else 0.0 for f, a in zip(columns, axes, strict=True)] for axis in range(config.num_axes)]
    return Frequencies(torch.tensor(rows, dtype=torch.float64, device="cpu"), config.attention_factor_at(tokens))


def check_config(config: object, where: str) -> None:
    """Raise `RopeError` if `config` is not a RopeConfig."""
    cure = "Pass RopeConfig(head_dim, interleaved=...), or RopeConfig.from_hf(config) for a Hugging Face config."
    check_kind(where, RopeConfig, cure, config=config)


# --- the distance at which the sum of cosines falls below zero

GRID = 400  # bases for each power of ten: 0.58 % apart
LARGEST = 1e15
Array = npt.NDArray[np.float64]


def reach(inv_freq: Array, limit: int, *, first: int = 1) -> int | None:
    """Return the first m in first..limit with sum_i cos(m theta_i) < 0, in float64, or None.

    Since cos(a + b) = cos a cos b - sin a sin b, one matrix product covers a grid of m = start + step, exact to about
    1e-13, with a thousand times fewer cosines.
    """
    width, rows = 256, 64
    steps = np.outer(inv_freq, np.arange(width))
    cos_steps, sin_steps = np.cos(steps), np.sin(steps)
    while first <= limit:
        after = min(first + width * rows, limit + 1)
        starts = np.outer(np.arange(first, after, width), inv_freq)
        sums = (np.cos(starts) @ cos_steps - np.sin(starts) @ sin_steps).ravel()
        negative = np.flatnonzero(sums < 0)
        if len(negative):
            m = first + int(negative[0])
            return m if m <= limit else None
        first, rows = after, min(4096, 4 * rows)
    return None


@lru_cache(maxsize=256)
def smallest_theta(
    rotary_dim: int, tokens: int, *, at_least: float = 1.0, divisors: tuple[float, ...] | None = None
) -> float:
    """Return the smallest base, on a fine grid, with a sum of cosines of at least zero over a whole window.

    **Arguments:**
    - `rotary_dim`: rotated features, even. `tokens`: length of the window.
    - `at_least`: first base to try, such as the checkpoint's own.
    - `divisors`: divisors of the frequencies, one for each pair, from a scaling that stays; None is no scaling.

    **Returns:** `at_least`, or the least 10^(k/400) above it, for which sum_i cos(m theta^(-2i/rotary_dim)) >= 0 (each
    frequency divided by its divisor) for every m < tokens. A larger base can fail although a smaller one suffices.
    **Raises:** `RopeError` for an odd dimension, a length below 1, or a length that no base up to 1e15 reaches.
    **Numerics:** float64; the grid's steps are 0.58 %.
    **Source:** Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591, eq. 8.

    >>> round(smallest_theta(128, 8192), -3)
    84000.0
    """
    dim, length = as_whole(rotary_dim), as_whole(tokens)
    if dim is None or dim < 2 or dim % 2 or length is None or length < 1 or not (is_number(at_least) and at_least >= 1):
        raise RopeError(
            "smallest_theta: `rotary_dim` must be even, `tokens` at least 1 and `at_least` a base of at least 1.",
            facts={"rotary_dim": rotary_dim, "tokens": tokens, "at_least": at_least},
            cure="Pass the number of rotated features, and the window's length in tokens.",
        )
    grid, theta = math.floor(GRID * math.log10(at_least)) + 1, float(at_least)
    negative_at = length
    while theta <= LARGEST:
        if theta > 1:
            inv_freq = np.array(Ladder(theta, dim, tuple(range(dim // 2)), divisors=divisors).inv_freq())
            near = negative_at // 50  # search first near the distance of the last, slightly smaller base
            found = reach(inv_freq, min(length - 1, negative_at + near), first=negative_at - near)
            found = found or reach(inv_freq, length - 1)
            if found is None:
                return theta
            negative_at = found
        theta, grid = 10.0 ** (grid / GRID), grid + 1
    raise RopeError(
        "smallest_theta: no base suffices for this length with this number of pairs.",
        facts={"rotary_dim": rotary_dim, "tokens": tokens, "bases tried up to": LARGEST},
        cure="Choose a shorter window or a different method.",
    )


def compared_lengths(trained: int, target: int) -> list[int]:
    """Return lengths in tokens for comparing two ropes: below, at and beyond both ends of an extension."""
    return sorted({1, trained, trained + 1, target, 2 * target})


def same_rope(
    one: RopeConfig, other: RopeConfig, lengths: Sequence[int], *, relative: float = 1e-9, absolute: float = 0.0
) -> bool:
    """Return whether two ropes rotate every pair by the same angle and scale logits the same at these lengths.

    - `relative`: the bound of their ratios; a config's numbers are float64, written in full.
    - `absolute`: radians per token below which two frequencies are the same whatever their ratio.
    """
    close = partial(math.isclose, rel_tol=relative, abs_tol=absolute)
    if (one.rotary_dim, one.axes) != (other.rotary_dim, other.axes):
        return False
    return all(
        close(one.attention_factor_at(length), other.attention_factor_at(length))
        and all(map(close, one.columns_at(length), other.columns_at(length)))
        for length in lengths
    )
