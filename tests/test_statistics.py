"""Student's t and the intervals, against scipy where it is installed and printed tables elsewhere."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ropewalk.errors import RopeError
from ropewalk.statistics import difference, mean_and_interval, over_windows, plus_minus, share_of_clusters, signed


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


def test_the_oldest_scipy_allowed_has_what_is_used() -> None:
    """`bootstrap(rng=)` came with scipy 1.15."""
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [bound] = [need.split(">=")[1] for needs in extras.values() for need in needs if need.startswith("scipy")]
    assert tuple(map(int, bound.split("."))) >= (1, 15)


def test_differences_are_shown_with_their_intervals() -> None:
    """Paired by position; without an interval for one pair."""
    assert difference([2.0], [1.5]) == (0.5, None)
    mean, interval = difference([2.0, 4.0], [1.0, 2.0])
    assert (mean, interval) == (1.5, mean_and_interval([1.0, 2.0])[1])
    assert (signed(0.5, None), plus_minus(0.5, (0.25, 0.75))) == ("+0.500", "+0.500 ±0.250")


def test_one_value_has_no_interval() -> None:
    """One window says nothing about spread."""
    assert mean_and_interval([3.0]) == (3.0, None)


def test_equal_values_have_an_interval_of_no_width() -> None:
    """No spread, no width."""
    assert mean_and_interval([2.0, 2.0, 2.0]) == (2.0, (2.0, 2.0))


def test_interval_of_a_worked_example() -> None:
    """Mean 5, deviation 2.582, four values: 5 +- 3.182 * 1.291."""
    mean, interval = mean_and_interval([2.0, 4.0, 6.0, 8.0])
    assert interval is not None
    assert (mean, *interval) == pytest.approx((5.0, 0.8915, 9.1085), abs=1e-4)


@pytest.mark.parametrize("windows", [5, 9])
def test_intervals_hold_the_mean_as_often_as_they_say(windows: int) -> None:
    """Of 200 samples of normal numbers at least 92 in 100; a bootstrap alone holds fewer, and fails this."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        mean, interval = over_windows(rng.normal(1.0, 1.0, windows).tolist())
        assert interval is not None
        assert interval[0] < mean < interval[1]
        held += interval[0] <= 1.0 <= interval[1]
    assert 0.92 <= held / 200 < 1.0


def test_few_windows_take_students_t() -> None:
    """Below five windows a bootstrap has too few values to draw from."""
    assert over_windows([1.0, 2.0, 4.0]) == mean_and_interval([1.0, 2.0, 4.0])
    skewed = [1.0, 1.1, 1.0, 1.2, 9.0]
    (_, found), (_, around) = over_windows(skewed), mean_and_interval(skewed)
    assert found is not None
    assert around is not None
    assert found[0] <= around[0]
    assert found[1] >= around[1]
    assert found != around
    assert over_windows([2.0]) == (2.0, None)


def test_values_that_differ_in_their_last_bits_have_a_finite_interval() -> None:
    """The bootstrap's acceleration is then nought over nought."""
    _, interval = over_windows([1 + 1e-15, 1.0, 1.0, 1.0, 1 - 1e-15])
    assert interval is not None
    assert all(map(math.isfinite, interval))


def beta_binomial(rng: np.random.Generator, share: float, clusters: int, correlation: float) -> list[tuple[int, int]]:
    """Clusters of 24 answers whose chance of being right differs from text to text."""
    found = np.full(clusters, share)
    if correlation:
        shape = (1 - correlation) / correlation
        found = rng.beta(share * shape, (1 - share) * shape, clusters)
    return [(int(right), 24) for right in rng.binomial(24, found)]


@pytest.mark.parametrize("clusters", [2, 4, 8, 16])
@pytest.mark.parametrize("share", [0.08, 0.7])
@pytest.mark.parametrize("correlation", [0.0, 0.05])
def test_intervals_of_clusters_hold_the_share(clusters: int, share: float, correlation: float) -> None:
    """Of 150 samples at least 93 in 100, and all answers as if independent, or a bootstrap alone, fewer."""
    rng, held = np.random.default_rng(3), 0
    for _ in range(150):
        interval = share_of_clusters(beta_binomial(rng, share, clusters, correlation))
        assert interval is not None
        assert 0.0 <= interval[0] < interval[1] <= 1.0
        held += interval[0] <= share <= interval[1]
    assert held / 150 >= 0.93


def test_clusters_are_not_independent_answers() -> None:
    """Texts that differ widen the interval; one text has none; texts of one answer each have Wilson's."""
    alike, apart = share_of_clusters([(12, 24)] * 6), share_of_clusters([(24, 24), (0, 24)] * 3)
    assert alike is not None
    assert apart is not None
    assert apart[1] - apart[0] > 2.5 * (alike[1] - alike[0])
    assert share_of_clusters([(20, 24)]) is None
    assert share_of_clusters([(20, 24), (0, 0), (18, 24)]) == share_of_clusters([(20, 24), (18, 24)])
    for counts in ([], [(0, 0)]):
        with pytest.raises(RopeError, match="at least one answer"):
            share_of_clusters(counts)
    assert share_of_clusters([(1, 1)] * 9 + [(0, 1)]) == pytest.approx((0.59585, 0.98212), abs=1e-5)
    whole = share_of_clusters([(24, 24)] * 4)
    assert whole is not None
    assert whole[1] == 1.0
    assert 0.8 < whole[0] < 0.92  # all found in four texts is not all found in any
    wide = share_of_clusters([(1, 24)] * 19 + [(24, 24)])
    assert wide is not None
    assert wide[1] >= np.quantile(  # by the definition of the bootstrap, drawn here anew
        [np.mean(np.random.default_rng(n).choice([1 / 24] * 19 + [1.0], 20)) for n in range(4000)], 0.95
    )
