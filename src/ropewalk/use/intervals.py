"""Intervals that hold for several means at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ropewalk.optional import need
from ropewalk.statistics import CONFIDENCE, Interval


def simultaneous(rows: Sequence[Sequence[float]]) -> list[tuple[float, Interval]]:
    """The mean over windows of each row, and intervals that all hold at once in 95 % of cases; None for one window.

    Student's t between windows, the error divided among the rows (Bonferroni), so that any dependence among them is
    allowed.

    >>> [(mean, (low, high))] = simultaneous([[1.0, 2.0, 3.0]])
    >>> mean, round(high - mean, 3)
    (2.0, 2.484)
    """
    found: list[tuple[float, Interval]] = []
    for row in rows:
        values = np.asarray(row, dtype=np.float64)
        mean, count = float(values.mean()), len(values)
        if count < 2:
            found.append((mean, None))
            continue
        quantile = 1 - (1 - CONFIDENCE) / (2 * len(rows))
        t = float(need("scipy.stats", extra="cli").t.ppf(quantile, count - 1))
        half = t * float(values.std(ddof=1)) / math.sqrt(count)
        found.append((mean, (mean - half, mean + half)))
    return found
