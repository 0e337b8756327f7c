"""Student's t and the intervals, against scipy where it is installed and printed tables elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropewalk.statistics import mean_and_interval, plus_minus, signed, t_quantile


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (7, 2.3646), (30, 2.0423)]
)
def test_quantiles_are_the_printed_table(df: int, expected: float) -> None:
    """The two-sided 95 % column of every statistics book, as half the interval of values with one deviation."""
    values = np.linspace(-1, 1, df + 1)
    mean, interval = mean_and_interval((values / values.std(ddof=1) * math.sqrt(df + 1)).tolist())
    assert mean == pytest.approx(0, abs=1e-12)
    assert interval == pytest.approx((-expected, expected), abs=5e-5)


@pytest.mark.parametrize("values", [[3.0, 1.5, 2.25], [0.1, 0.7, 0.2, 0.9], np.arange(60.0).tolist()])
def test_intervals_are_scipys(values: list[float]) -> None:
    """As `scipy.stats.t.interval` gives them, for odd and even degrees of freedom."""
    stats = pytest.importorskip("scipy.stats")
    _, interval = mean_and_interval(values)
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval == pytest.approx(expected, rel=1e-12)


def test_differences_are_shown_with_their_intervals() -> None:
    assert (signed(0.5, None), plus_minus(0.5, (0.25, 0.75))) == ("+0.500", "+0.500 ±0.250")


def test_one_value_has_no_interval() -> None:
    """One window says nothing about spread."""
    assert mean_and_interval([3.0]) == (3.0, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    """No spread, no width."""
    assert mean_and_interval([2.0, 2.0, 2.0]) == (2.0, (2.0, 2.0))


def test_quantiles_at_other_confidences_are_the_printed_table() -> None:
    """The two-sided 98 % column."""
    assert [round(t_quantile(df, confidence=0.98), 3) for df in (1, 4, 19, 30)] == [31.821, 3.747, 2.539, 2.457]
