"""Means with intervals: Student's t over few values, a bootstrap over several windows, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
ENOUGH_FOR_BOOTSTRAP = 5
RESAMPLES = 9_999


def student_t_inside(t: float, df: int) -> float:
    """P(|T| < t) for `df` degrees of freedom: the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(df))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = total = cosine if df % 2 else 1.0
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if df % 2 == 0:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if df > 1 else 0.0))


def student_t_quantile(confidence: float, df: int) -> float:
    """The t whose two-sided interval holds `confidence` of Student's distribution, by bisection.

    >>> round(student_t_quantile(0.95, 7), 4)
    2.3646
    """
    low, high = 0.0, 1.0
    while student_t_inside(high, df) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_t_inside(middle, df) < confidence else (low, middle)
    return (low + high) / 2


def mean_and_interval(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Mean and two-sided 95 % t interval over windows; the interval is None for a single value.

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
    half = student_t_quantile(CONFIDENCE, len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return mean, (mean - half, mean + half)


def over_windows(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
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
    from scipy.stats import bootstrap

    found = bootstrap(
        (array,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return mean_and_interval(values)  # values that differ in their last bits alone
    _, around = mean_and_interval(values)
    assert around is not None, "there are several"
    return mean, (min(float(found.low), around[0]), max(float(found.high), around[1]))


def interval_sentence(windows: int, *, texts: int = 1) -> str:
    """How `over_windows` finds its intervals, in words."""
    if windows == 1:
        return "One window: no interval."
    how = "Student's t over windows"
    if windows >= ENOUGH_FOR_BOOTSTRAP:
        how = "bootstrap (BCa) over windows, nowhere narrower than Student's t"
    scope = " They speak of windows of these texts, not of other texts." if texts > 1 else ""
    return f"Intervals: {CONFIDENCE:.0%}, {how}, differences paired by window.{scope}"
