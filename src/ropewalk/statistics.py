"""Compute intervals of means (Student's t) and of shares, in float64, and format them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from ropewalk.imports import need

CONFIDENCE = 0.95
Interval = tuple[float, float] | None
"""Lower and upper bound; None for a single value."""


@cache
def t_quantile(df: float, comparisons: int = 1, *, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t distribution, Bonferroni-corrected for several comparisons.

    >>> round(t_quantile(15), 3), round(t_quantile(15, 7), 3), round(t_quantile(4, confidence=0.98), 3)
    (2.131, 3.112, 3.747)
    """
    # what scipy.stats.t.ppf computes, to the bit, without the seconds that importing scipy.stats takes
    return float(need("scipy.special", extra="doctor").stdtrit(df, 1 - (1 - confidence) / (2 * comparisons)))


def binomial_interval(found: float, asked: float, *, confidence: float) -> tuple[float, float]:
    """Return the exact two-sided interval of a share (Clopper and Pearson 1934, Biometrika 26).

    >>> [round(end, 3) for end in binomial_interval(25, 48, confidence=0.95)]
    [0.372, 0.667]
    """
    if not asked:
        return 0.0, 1.0
    inverse = need("scipy.special", extra="doctor").betaincinv
    tail = (1 - confidence) / 2
    low = 0.0 if found == 0 else float(inverse(found, asked - found + 1, tail))
    high = 1.0 if found == asked else float(inverse(found + 1, asked - found, 1 - tail))
    return low, high


def mean_and_interval(values: Sequence[float]) -> tuple[float, Interval]:
    """Return the mean and its two-sided 95 % t interval; None for a single value.

    >>> mean_and_interval([2.0])
    (2.0, None)
    >>> mean, (low, high) = mean_and_interval([1.0, 2.0, 3.0])
    >>> mean, round(high - mean, 3) == round(mean - low, 3) == 2.484
    (2.0, True)
    """
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return mean, None
    half = t_quantile(len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return mean, (mean - half, mean + half)


def signed(value: float, interval: Sequence[float] | None = None, digits: int = 3) -> str:
    """Format a difference with its interval; a value that rounds to zero has no sign.

    >>> signed(-0.5, (-0.6, -0.4))
    '-0.500 [-0.600, -0.400]'
    """
    shown = f"{value:+.{digits}f}"
    shown = shown[1:] if float(shown) == 0 else shown
    return shown if interval is None else f"{shown} [{signed(interval[0])}, {signed(interval[1])}]"


def plus_minus(value: float, interval: Interval, digits: int = 3) -> str:
    """Format a difference with half the width of its interval.

    >>> plus_minus(-0.5, (-0.625, -0.375)), plus_minus(0.25, None, 2)
    ('-0.500 ±0.125', '+0.25')
    """
    shown = signed(value, digits=digits)
    return shown if interval is None else f"{shown} ±{(interval[1] - interval[0]) / 2:.{digits}f}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> counted(1, "window"), counted(2000, "window")
    ('1 window', '2,000 windows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
