"""Means with intervals: Student's t over few values, a bootstrap over several windows, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from ropewalk.optional import need

CONFIDENCE = 0.95
ENOUGH_FOR_BOOTSTRAP = 5
RESAMPLES = 9_999
FOUR_OF_FIVE = 0.8416  # what a normal number exceeds minus this in four of five cases
Interval = tuple[float, float] | None
"""Lower and upper bound; None for a single value."""


@cache
def t_quantile(df: int, comparisons: int = 1) -> float:
    """The t whose two-sided interval holds `CONFIDENCE` of Student's distribution with `df` degrees of freedom; of
    several comparisons, that with which all their intervals hold together in so many cases at least (Bonferroni).

    >>> round(t_quantile(15), 3), round(t_quantile(15, 7), 3)
    (2.131, 3.112)
    """
    return float(need("scipy.stats", extra="cli").t.ppf(1 - (1 - CONFIDENCE) / (2 * comparisons), df))


def mean_and_interval(values: Sequence[float], *, comparisons: int = 1) -> tuple[float, Interval]:
    """Mean and two-sided 95 % t interval over windows; the interval is None for a single value.

    `comparisons`: so many intervals are looked at, and all of them are to hold together in 95 % of cases.

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
    half = t_quantile(len(array) - 1, comparisons) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return mean, (mean - half, mean + half)


def windows_needed(deviation: float, gap: float, *, comparisons: int = 1, most: int = 1000) -> int | None:
    """How many windows make an interval so narrow that it leaves out what lies `gap` from the mean.

    `deviation` is that of the values between windows, as `gap` is in nats. With so many windows the interval leaves it
    out in four of five cases, if mean and deviation stay as they are. None where `most` do not suffice.

    >>> windows_needed(0.12, 0.1, comparisons=7), windows_needed(0.12, 0.0)
    (22, None)
    """
    for windows in range(2, most + 1):
        if (t_quantile(windows - 1, comparisons) + FOUR_OF_FIVE) * deviation <= gap * math.sqrt(windows):
            return windows
    return None


def over_windows(values: Sequence[float]) -> tuple[float, Interval]:
    """Mean over windows and its 95 % interval; None for a single window.

    From five windows on it is the bias-corrected and accelerated bootstrap (Efron 1987) of scipy, 9,999 resamples from
    a fixed seed, each window drawn as one, and at each end Student's t where that lies further out, as a bootstrap of
    few values alone is too narrow. Below five windows it is Student's t.

    >>> over_windows([1.0, 1.0, 1.0, 1.0, 1.0])
    (1.0, (1.0, 1.0))
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < ENOUGH_FOR_BOOTSTRAP:
        return mean_and_interval(values)
    mean = float(array.mean())
    if np.ptp(array) == 0:
        return mean, (mean, mean)
    found = (
        need("scipy.stats", extra="cli")
        .bootstrap(
            (array,),
            np.mean,
            n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(0),
        )
        .confidence_interval
    )
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return mean_and_interval(values)  # values that differ in their last bits alone
    _, around = mean_and_interval(values)
    assert around is not None, "there are several"
    return mean, (min(float(found.low), around[0]), max(float(found.high), around[1]))


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, Interval]:
    """Mean of one minus other, window by window, and its interval."""
    return over_windows([a - b for a, b in zip(one, other, strict=True)])


def signed(value: float, interval: Interval) -> str:
    """A difference with its interval, as sentences and tables show it.

    >>> signed(-0.5, (-0.6, -0.4))
    '-0.500 [-0.600, -0.400]'
    """
    shown = f"{value:+.3f}"
    return shown if interval is None else f"{shown} [{interval[0]:+.3f}, {interval[1]:+.3f}]"


def plus_minus(value: float, interval: Interval) -> str:
    """A difference with half its interval's width, as tables show it.

    >>> plus_minus(-0.5, (-0.625, -0.375)), plus_minus(0.25, None)
    ('-0.500 ±0.125', '+0.250')
    """
    return f"{value:+.3f}" if interval is None else f"{value:+.3f} ±{(interval[1] - interval[0]) / 2:.3f}"


def interval_sentence(windows: int, *, texts: int = 1) -> str:
    """How `over_windows` finds its intervals, in words."""
    if windows == 1:
        return "One window: no interval."
    how = "Student's t over windows"
    if windows >= ENOUGH_FOR_BOOTSTRAP:
        how = "bootstrap (BCa) over windows, nowhere narrower than Student's t"
    scope = " They speak of windows of these texts, not of other texts." if texts > 1 else ""
    return f"Intervals: {CONFIDENCE:.0%}, {how}, differences paired by window.{scope}"
