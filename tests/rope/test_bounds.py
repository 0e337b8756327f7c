"""How far a base reaches: against a plain sum of cosines, and the numbers of the paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.rope.frequencies import GRID, reach, smallest_theta


def sums(theta: float, dim: int, tokens: int) -> np.ndarray:
    """sum_i cos(m theta^(-2i/dim)) for m = 0 .. tokens - 1: Men et al. 2024, eq. 8, written out."""
    frequencies = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    return np.cos(np.arange(tokens)[:, None] * frequencies).sum(1)


@given(st.floats(10.0, 1e6), st.integers(2, 40).map(lambda pairs: 2 * pairs), st.integers(1, 3000))
def test_reach_is_the_first_fall_below_zero(theta: float, dim: int, first: int) -> None:
    """The blocked sums fall below zero where the plain ones do, from any first distance on."""
    found = sums(theta, dim, 20_000)
    if np.abs(found).min() < 1e-9:
        return
    below = np.flatnonzero(found[first:] < 0)
    frequencies = theta ** (-np.arange(0, dim, 2) / dim)
    assert reach(frequencies, 19_999, first=first) == (first + int(below[0]) if len(below) else None)


@pytest.mark.parametrize(("dim", "tokens"), [(64, 512), (64, 1024), (32, 700)])
def test_smallest_theta_is_the_first_of_the_grid(dim: int, tokens: int) -> None:
    """No smaller base of the grid suffices, by trying every one of them; the one that is found does."""
    found = smallest_theta(dim, tokens, at_least=100.0)
    assert sums(found, dim, tokens).min() >= 0
    smaller = 10 ** (np.arange(2 * GRID, round(GRID * np.log10(found))) / GRID)
    assert len(smaller) > 100
    assert all(sums(theta, dim, tokens).min() < 0 for theta in smaller)


@pytest.mark.parametrize(
    ("dim", "tokens", "published", "within"),
    [(128, 4096, 2.7e4, 0.07), (128, 8192, 8.4e4, 0.01), (64, 8192, 3.9e5, 0.01)],
)
def test_numbers_of_the_paper(dim: int, tokens: int, published: float, within: float) -> None:
    """Men et al.'s table: 2.7e4 for 4k (their grid is coarser: ours is 2.87e4) and 8.4e4 for 8k, at 128 features."""
    assert smallest_theta(dim, tokens) == pytest.approx(published, rel=within)


def test_never_below_what_is_asked() -> None:
    """A base that suffices is returned as it is; one that does not is raised, and the answer never lies below it."""
    assert smallest_theta(128, 8192, at_least=500_000.0) == 500_000.0
    assert smallest_theta(64, 1024, at_least=10_000.0) > 10_000.0


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((63, 512), "must be even"),
        ((64, 0), "must be even"),
        ((64, 512.0), "must be even"),
        ((2, 512), "no base suffices"),
    ],
)
def test_refused(arguments: tuple[int, int], message: str) -> None:
    """Impossible sizes, and one pair alone, whose cosine falls below zero whatever the base."""
    with pytest.raises(rw.RopeError, match=message):
        smallest_theta(*arguments)
