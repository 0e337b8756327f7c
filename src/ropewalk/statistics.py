"""Means with intervals: Student's t over few values, a bootstrap over several windows, in float64."""

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
    # what scipy.stats.t.ppf computes, to the bit, without the seconds that importing scipy.stats takes
    return float(need("scipy.special", extra="cli").stdtrit(df, 1 - (1 - CONFIDENCE) / (2 * comparisons)))


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


def share_of_clusters(counts: Sequence[tuple[int, int]]) -> Interval:
    """95 % interval of a share whose answers come in clusters (successes, answers); None for one cluster of several.

    Clusters of one answer each are independent answers: Wilson's score interval (1927). Else whole clusters are
    resampled (percentile bootstrap, 9,999 times from a fixed seed; from five clusters on), and at each end Wilson's
    formula holds where it lies further out, with Student's t of clusters - 1 degrees in the place of z and with the
    number of independent answers that would vary as much as the clusters do, at most all of them: few clusters, and
    clusters that agree by chance, say little (Kott and Liu 2009, Int. Stat. Rev. 77; Dean and Pagano 2015, J. Surv.
    Stat. Methodol. 3).

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
    """Wilson's score interval of a share among so many independent answers."""
    room = quantile**2 / answers
    middle = (share + room / 2) / (1 + room)
    half = math.sqrt(room * share * (1 - share) + room**2 / 4) / (1 + room)
    return max(0.0, middle - half), min(1.0, middle + half)


@cache
def _normal_quantile() -> float:
    return float(need("scipy.stats", extra="cli").norm.ppf((1 + CONFIDENCE) / 2))
