"""Student's t and the intervals, against printed tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropewalk.statistics import mean_and_interval, t_quantile


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (7, 2.3646), (30, 2.0423)]
)
def test_quantiles_are_the_printed_table(df: int, expected: float) -> None:
    """The two-sided 95 % column of every statistics book, as half the interval of values with one deviation."""
    values = np.linspace(-1, 1, df + 1)
    mean, interval = mean_and_interval((values / values.std(ddof=1) * math.sqrt(df + 1)).tolist())
    assert mean == pytest.approx(0, abs=1e-12)
    assert interval == pytest.approx((-expected, expected), abs=5e-5)


def test_quantiles_at_other_confidences_are_the_printed_table() -> None:
    """The two-sided 98 % column."""
    assert [round(t_quantile(df, confidence=0.98), 3) for df in (1, 4, 19, 30)] == [31.821, 3.747, 2.539, 2.457]
