"""Compute means with intervals: Student's t for few values, a bootstrap for several windows, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ropewalk.errors import RopeError
from ropewalk.optional import need

CONFIDENCE = 0.95
ENOUGH_FOR_BOOTSTRAP = 5
RESAMPLES = 9_999
FOUR_OF_FIVE = 0.8416  # the normal distribution's 80 % quantile
LOOKS = (1, 2, 4, 8, 16)  # windows after which a run may stop
# Chosen by benchmarks/coverage.py, see docs/evidence/coverage.md.
LOOK_CONFIDENCE = 0.98  # of the intervals at each look
PRIOR_WIDTH = 2.0  # the prior deviation of a window's mean, over that of independent blocks
PRIOR_DEGREES = 4.0  # degrees of freedom of the prior
TEXT_SHARE = 0.5  # the part of the prior variance that is between texts: more windows of a text do not reduce it
STUDENT_FROM = 16  # windows, or texts, from which Student's t is used without a prior
LEAST_HALF_WIDTH = 0.005  # nats per token
LEAST_BLOCKS = 4
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


def moderated_interval(
    blocks: ArrayLike,
    *,
    weights: ArrayLike,
    part: slice | None = None,
    texts: Sequence[int] | None = None,
    confidence: float = LOOK_CONFIDENCE,
    share: float = 1.0,
) -> tuple[float, tuple[float, float]]:
    """Return the mean of a paired difference and its interval, also for a single window.

    The units are windows, or the means of texts if there are several texts. Neighbouring blocks of a window are nearly
    independent. Their deviation gives a prior for the deviation between units, which few units do not show. From
    `STUDENT_FROM` units on there is no prior, and the interval is Student's t over units.

    **Arguments:**
    - `blocks`: `[windows, blocks]`, the difference of two methods in nats per token, in every block of a region.
    - `weights`: `[blocks]`, the number of tokens in each block.
    - `part`: the blocks to average; all by default. The deviation is always that of all blocks.
    - `texts`: the number of each window's text. With one text the interval describes that text; with several, it
      describes texts like these.
    - `confidence`: of the two-sided interval.
    - `share`: the number of disjoint windows with as much text as these, divided by the number of windows;
      below 1 if windows of one text overlap.

    **Returns:** the mean over units, in nats per token, and the interval's lower and upper end.
    **Raises:** `RopeError` for blocks with fewer than two degrees of freedom, and for arguments that do not fit.
    **Source:** Smyth 2004, "Linear models and empirical Bayes methods", Stat. Appl. Genet. Mol. Biol. 3, with a prior
    from blocks instead of genes.

    >>> mean, (low, high) = moderated_interval([[-0.1, -0.2, -0.1, -0.3, -0.2, -0.1]], weights=[64] * 6)
    >>> round(mean, 3), round(high - mean, 3)
    (-0.167, 0.277)
    """
    values, tokens = np.asarray(blocks, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    numbers = np.zeros(len(values), dtype=np.int64) if texts is None else np.unique(texts, return_inverse=True)[1]
    if values.ndim != 2 or tokens.shape != values.shape[1:] or numbers.shape != values.shape[:1]:
        raise _unfit("one weight for each block and one text for each window", blocks, weights, texts)
    chosen = tokens[slice(None) if part is None else part]
    if not len(values) or not chosen.size or not (tokens > 0).all() or not np.isfinite(values).all():
        raise _unfit("finite differences, positive weights and at least one block", blocks, weights, texts)
    if not 1 / len(values) <= share <= 1:
        raise RopeError(
            "moderated_interval: `share` must lie between 1 / windows and 1.",
            facts={"share": share, "windows": len(values)},
            cure="Pass the number of disjoint windows that the text has, divided by the number of windows.",
        )
    means = np.average(values[:, slice(None) if part is None else part], axis=1, weights=chosen)
    units, shrink = share * len(means), 1.0
    if numbers.any():
        counts = np.bincount(numbers)
        means = np.bincount(numbers, means) / counts
        units = float(len(means))
        shrink = TEXT_SHARE + (1 - TEXT_SHARE) * float((1 / np.maximum(1, share * counts)).mean())
    mean = float(means.mean())
    squares, degrees = float(((means - mean) ** 2).sum()) * units / len(means), units - 1
    if units < STUDENT_FROM:
        prior = PRIOR_WIDTH**2 * shrink * _residual_variance(values, tokens) * float(tokens.mean() / chosen.sum())
        squares, degrees = squares + PRIOR_DEGREES * prior, degrees + PRIOR_DEGREES
    half = t_quantile(degrees, confidence=confidence) * math.sqrt(squares / degrees / units)
    half = max(half, LEAST_HALF_WIDTH)
    return mean, (mean - half, mean + half)


def _residual_variance(values: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    """Return the variance of a block of average weight, around a line over position or around window and position."""
    windows, count = values.shape
    degrees = count - 2 if windows == 1 else (windows - 1) * (count - 1)
    if degrees < 2:
        raise RopeError(
            "moderated_interval: too few blocks for an interval.",
            facts={"windows": windows, "blocks": count, "blocks that one window needs": LEAST_BLOCKS},
            cure="Divide the region into more blocks (8 are usual), or measure more windows.",
        )
    if windows == 1:
        places = np.cumsum(tokens) - tokens / 2
        places = places - np.average(places, weights=tokens)
        level = np.average(values[0], weights=tokens)
        slope = np.average(places * values[0], weights=tokens) / np.average(places**2, weights=tokens)
        left = values - level - slope * places
    else:
        left = values - values.mean(axis=0)
        left = left - np.average(left, axis=1, weights=tokens)[:, None]
    return float((left**2 * (tokens / tokens.mean())).sum() / degrees)


def _unfit(rule: str, blocks: ArrayLike, weights: ArrayLike, texts: Sequence[int] | None) -> RopeError:
    return RopeError(
        f"moderated_interval: it needs {rule}.",
        facts={"shape of blocks": np.shape(blocks), "shape of weights": np.shape(weights), "texts": texts},
        cure="Pass blocks [windows, blocks], weights [blocks] and texts [windows].",
    )


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


def signed(value: float, interval: Sequence[float] | None = None) -> str:
    """Format a difference with its interval; a value that rounds to zero has no sign.

    >>> signed(-0.5, (-0.6, -0.4))
    '-0.500 [-0.600, -0.400]'
    """
    shown = _signed(value)
    return shown if interval is None else f"{shown} [{_signed(interval[0])}, {_signed(interval[1])}]"


def _signed(value: float) -> str:
    """Return a number with its sign and three decimals; zero has none."""
    shown = f"{value:+.3f}"
    return shown[1:] if float(shown) == 0 else shown


def plus_minus(value: float, interval: Interval) -> str:
    """Format a difference with half the width of its interval.

    >>> plus_minus(-0.5, (-0.625, -0.375)), plus_minus(0.25, None)
    ('-0.500 ±0.125', '+0.250')
    """
    return _signed(value) if interval is None else f"{_signed(value)} ±{(interval[1] - interval[0]) / 2:.3f}"


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
