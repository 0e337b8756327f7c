"""What a set of frequencies, and a base, can reach: where the sum of cosines first falls below zero."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder
from ropewalk.rope.values import as_whole, is_number

REACH_SEARCHED = 1_048_576
GRID = 400  # bases for each power of ten: 0.58 % apart
LARGEST = 1e15
Array = npt.NDArray[np.float64]


def reach(inv_freq: Array, limit: int = REACH_SEARCHED, *, first: int = 1) -> int | None:
    """The first m in first..limit with sum_i cos(m theta_i) < 0, in float64; None when there is none.

    A grid of m = start + step is one product by cos(a + b) = cos a cos b - sin a sin b: exact to about 1e-13
    and a thousand times fewer cosines.
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
            found = first + int(negative[0])
            return found if found <= limit else None
        first, rows = after, min(4096, 4 * rows)
    return None


@lru_cache(maxsize=256)
def smallest_theta(
    rotary_dim: int, tokens: int, *, at_least: float = 1.0, divisors: tuple[float, ...] | None = None
) -> float:
    """The smallest base, on a fine grid, whose sum of cosines stays above zero over a whole window.

    **Arguments:**
    - `rotary_dim`: features that turn, even.
    - `tokens`: the window's length; distances up to tokens - 1 are asked for.
    - `at_least`: a base to begin with, such as the checkpoint's own; it is returned where it suffices.
    - `divisors`: of the frequencies, one for each pair: those of a scaling that stays. None: no scaling.

    **Returns:** `at_least`, or the least 10^(k/400) above it, for which sum_i cos(m theta^(-2i/rotary_dim)) >= 0 (each
    frequency divided by its divisor) for every m < tokens. A base that suffices may lie below one that does not, so
    every base of the grid is tried in order.
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
            cure="Pass the features that turn, and the window's length in tokens.",
        )
    grid, theta = math.floor(GRID * math.log10(at_least)) + 1, float(at_least)
    fell: int | None = None
    while theta <= LARGEST:
        if theta > 1:
            inv_freq = np.array(Ladder(theta, dim, tuple(range(dim // 2)), divisors=divisors).inv_freq())
            if fell is not None:  # look first about where the last, slightly smaller base fell
                fell = reach(inv_freq, min(length - 1, 51 * fell // 50), first=49 * fell // 50)
            fell = reach(inv_freq, length - 1) if fell is None else fell
            if fell is None:
                return theta
        theta, grid = 10.0 ** (grid / GRID), grid + 1
    raise RopeError(
        "smallest_theta: no base reaches this far with so few pairs.",
        facts={"rotary_dim": rotary_dim, "tokens": tokens, "bases tried up to": LARGEST},
        cure="Ask for a shorter window, or choose another method.",
    )
