"""Compute means with intervals: Student's t for few values, a bootstrap for several windows, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.optional import need

CONFIDENCE = 0.95
ENOUGH_FOR_BOOTSTRAP = 5
RESAMPLES = 9_999
FOUR_OF_FIVE = 0.8416  # the normal distribution's 80 % quantile
Interval = tuple[float, float] | None
"""Lower and upper bound; None for a single value."""


@cache
def t_quantile(df: int, comparisons: int = 1) -> float:
    """Return the two-sided quantile of Student's t distribution, Bonferroni-corrected for several comparisons.

    >>> round(t_quantile(15), 3), round(t_quantile(15, 7), 3)
    (2.131, 3.112)
    """
    # what scipy.stats.t.ppf computes, to the bit, without the seconds that importing scipy.stats takes
    return float(need("scipy.special", extra="doctor").stdtrit(df, 1 - (1 - CONFIDENCE) / (2 * comparisons)))


def mean_and_interval(values: Sequence[float], *, comparisons: int = 1) -> tuple[float, Interval]:
    """Return the mean and its two-sided 95 % t interval; None for a single value.

    `comparisons`: the number of intervals that must hold together in 95 % of cases.

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
    """Return the number of windows whose interval excludes a value at a distance of `gap` from the mean.

    `deviation` is the standard deviation between windows, in nats as `gap`. The interval excludes the value in four of
    five cases if mean and deviation do not change. None if `most` windows are not enough.

    >>> windows_needed(0.12, 0.1, comparisons=7), windows_needed(0.12, 0.0)
    (22, None)
    """
    for windows in range(2, most + 1):
        if (t_quantile(windows - 1, comparisons) + FOUR_OF_FIVE) * deviation <= gap * math.sqrt(windows):
            return windows
    return None


def over_windows(values: Sequence[float]) -> tuple[float, Interval]:
    """Return the mean over windows and its 95 % interval; None for a single window.

    Uses Student's t below five windows. From five windows on, each end is the wider one of Student's t and scipy's
    bias-corrected and accelerated bootstrap (Efron 1987; 9,999 resamples of whole windows from a fixed seed), because
    a bootstrap of few values is too narrow.

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
        need("scipy.stats", extra="doctor")
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
        return mean_and_interval(values)  # values that differ only in their last bits
    _, around = mean_and_interval(values)
    assert around is not None, "there are several"
    return mean, (min(float(found.low), around[0]), max(float(found.high), around[1]))


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, Interval]:
    """Return the mean of `one - other` by window, and its interval."""
    return over_windows([a - b for a, b in zip(one, other, strict=True)])


def signed(value: float, interval: Interval) -> str:
    """Format a difference with its interval.

    >>> signed(-0.5, (-0.6, -0.4))
    '-0.500 [-0.600, -0.400]'
    """
    shown = f"{value:+.3f}"
    return shown if interval is None else f"{shown} [{interval[0]:+.3f}, {interval[1]:+.3f}]"


def plus_minus(value: float, interval: Interval) -> str:
    """Format a difference with half the width of its interval.

    >>> plus_minus(-0.5, (-0.625, -0.375)), plus_minus(0.25, None)
    ('-0.500 ±0.125', '+0.250')
    """
    return f"{value:+.3f}" if interval is None else f"{value:+.3f} ±{(interval[1] - interval[0]) / 2:.3f}"


def interval_sentence(windows: int, *, texts: int = 1) -> str:
    """Describe the method of `over_windows`."""
    if windows == 1:
        return "One window: no interval."
    how = "Student's t over windows"
    if windows >= ENOUGH_FOR_BOOTSTRAP:
        how = "bootstrap (BCa) over windows, nowhere narrower than Student's t"
    scope = " They are about windows of these texts, not about other texts." if texts > 1 else ""
    return f"Intervals: {CONFIDENCE:.0%}, {how}, differences paired by window.{scope}"


def share_of_clusters(counts: Sequence[tuple[int, int]]) -> Interval:
    """Return the 95 % interval of a share of clustered answers, (successes, answers) for each cluster.

    Returns None for one cluster of several answers; ignores clusters without answers. Uses Wilson's score interval
    (1927) if each cluster has one answer. Otherwise each end is the wider one of two: a percentile bootstrap of whole
    clusters (from five on; 9,999 resamples from a fixed seed), and Wilson's formula with Student's t of clusters - 1
    degrees of freedom instead of z and with the effective number of independent answers, at most all of them (Kott and
    Liu 2009, Int. Stat. Rev. 77; Dean and Pagano 2015, J. Surv. Stat. Methodol. 3). Raises `RopeError` if there are no
    answers.

    >>> share_of_clusters([(20, 24)])
    >>> [round(end, 3) for end in share_of_clusters([(20, 24), (18, 24), (22, 24), (20, 24)])]
    [0.682, 0.921]
    """
    given, counts = counts, [(successes, answers) for successes, answers in counts if answers]
    if not counts:
        raise RopeError(
            "statistics: a share needs at least one answer.",
            facts={"counts": given},
            cure="Pass clusters with answers.",
        )
    found, of = (np.array(column, dtype=np.float64) for column in zip(*counts, strict=True))
    answers, clusters = float(of.sum()), len(counts)
    share = float(found.sum()) / answers
    if of.max() == 1:
        return _wilson(share, answers, _normal_quantile())
    if clusters == 1:
        return None
    variance = clusters / (clusters - 1) * float(((found - share * of) ** 2).sum()) / answers**2
    independent = min(answers, share * (1 - share) / variance) if variance > 0 else answers
    low, high = _wilson(share, independent, t_quantile(clusters - 1))
    if clusters >= ENOUGH_FOR_BOOTSTRAP:
        drawn = np.random.default_rng(0).multinomial(clusters, np.full(clusters, 1 / clusters), RESAMPLES)
        ends = np.quantile(drawn @ found / (drawn @ of), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    return low, high


def _wilson(share: float, answers: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share of independent answers."""
    spread = quantile**2 / answers
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@cache
def _normal_quantile() -> float:
    return float(need("scipy.stats", extra="doctor").norm.ppf((1 + CONFIDENCE) / 2))
