"""Student's t and the intervals, against scipy where it is installed and printed tables elsewhere."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ropewalk.errors import RopeError
from ropewalk.statistics import (
    LEAST_HALF_WIDTH,
    LOOK_CONFIDENCE,
    PRIOR_DEGREES,
    PRIOR_WIDTH,
    STUDENT_FROM,
    TEXT_SHARE,
    difference,
    mean_and_interval,
    moderated_interval,
    over_windows,
    plus_minus,
    share_of_clusters,
    signed,
    t_quantile,
)


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


def test_quantiles_at_other_confidences_are_the_printed_table() -> None:
    """The two-sided 98 % column."""
    assert [round(t_quantile(df, confidence=0.98), 3) for df in (1, 4, 19, 30)] == [31.821, 3.747, 2.539, 2.457]


def _oracle(
    blocks: NDArray[np.float64], weights: NDArray[np.float64], part: slice, texts: list[int], share: float
) -> tuple[float, float]:
    """Return the mean and half-width, by least squares with one row for each block instead of closed formulas."""
    windows, count = blocks.shape
    rows = [(window, block) for window in range(windows) for block in range(count)]
    design = np.zeros((len(rows), windows + count))
    for row, (window, block) in enumerate(rows):
        design[row, window] = 1
        if windows > 1:
            design[row, windows + block] = 1
        else:
            design[row, windows] = weights[:block].sum() + weights[block] / 2
    root = np.sqrt(np.array([weights[block] for _, block in rows]) / weights.mean())
    fit, _, rank, _ = np.linalg.lstsq(design * root[:, None], blocks.ravel() * root, rcond=None)
    variance = float((((blocks.ravel() - design @ fit) * root) ** 2).sum()) / (len(rows) - int(rank))
    variance *= weights.mean() / weights[part].sum()
    means = [float(row[part] @ weights[part] / weights[part].sum()) for row in blocks]
    names = sorted(set(texts))
    units, shrink = len(blocks) * share, 1.0
    if len(names) > 1:
        shrink = TEXT_SHARE + (1 - TEXT_SHARE) * float(np.mean([1 / max(1, share * texts.count(n)) for n in names]))
        means = [float(np.mean([m for m, t in zip(means, texts, strict=True) if t == n])) for n in names]
        units = len(names)
    prior = 0.0 if units >= STUDENT_FROM else PRIOR_DEGREES
    degrees = prior + units - 1
    between = float(np.var(means)) * units
    moderated = (prior * PRIOR_WIDTH**2 * shrink * variance + between) / degrees
    half = t_quantile(degrees, confidence=LOOK_CONFIDENCE) * math.sqrt(moderated / units)
    return float(np.mean(means)), max(half, LEAST_HALF_WIDTH)


@st.composite
def _regions(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64], slice, list[int]]:
    """Draw blocks, weights, a part, and each window's text."""
    windows, count = draw(st.integers(1, 20)), draw(st.integers(4, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    first = draw(st.integers(0, count - 1))
    weights = np.full(count, 64.0)
    weights[0], weights[-1] = 63, draw(st.integers(1, 64))
    texts = [draw(st.integers(0, draw(st.sampled_from([0, 1, 5, 30])))) for _ in range(windows)]
    blocks = rng.normal(size=(windows, count)) + rng.normal(size=(windows, 1)) + rng.normal(size=count)
    return blocks, weights, slice(first, draw(st.integers(first + 1, count))), texts


@settings(max_examples=60, deadline=None)
@given(_regions(), st.floats(0, 1))
def test_moderated_interval_is_the_one_by_least_squares(
    region: tuple[NDArray[np.float64], NDArray[np.float64], slice, list[int]], place: float
) -> None:
    """For any number of windows, texts and blocks, uneven weights, a part of the blocks and overlapping windows."""
    blocks, weights, part, texts = region
    share = 1 / len(blocks) + place * (1 - 1 / len(blocks))
    mean, (low, high) = moderated_interval(blocks, weights=weights, part=part, texts=texts, share=share)
    assert (mean, high - mean, mean - low) == pytest.approx(
        [(found := _oracle(blocks, weights, part, texts, share))[0], found[1], found[1]], rel=1e-7, abs=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(_regions(), st.floats(1, 50), st.booleans(), st.floats(-5, 5), st.randoms())
def test_moderated_interval_follows_scale_and_shift_and_not_the_order_of_windows(
    region: tuple[NDArray[np.float64], NDArray[np.float64], slice, list[int]],
    scale: float,
    flipped: bool,
    shift: float,
    random: Random,
) -> None:
    """Other units and a constant difference change the ends likewise; the windows' order and texts' names do not."""
    blocks, weights, part, texts = region
    factor = -scale if flipped else scale
    _, ends = moderated_interval(10 * blocks, weights=weights, part=part, texts=texts)
    order = random.sample(range(len(blocks)), len(blocks))
    moved = 10 * factor * blocks[order] + shift
    names = [7 - texts[window] for window in order]
    _, found = moderated_interval(moved, weights=weights, part=part, texts=names)
    assert found == pytest.approx(sorted(factor * end + shift for end in ends), rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("windows", [1, 2, 4, STUDENT_FROM])
@pytest.mark.parametrize("share_of_windows", [0.0, 0.75])
def test_moderated_interval_holds_the_mean_of_normal_blocks(windows: int, share_of_windows: float) -> None:
    """At 95 % at least 93 % of 1,000 draws, also if three quarters of a window's variance is common to its blocks.

    With common variance, intervals half as wide hold fewer.
    """
    rng, count = np.random.default_rng(11), 8
    effect = math.sqrt(share_of_windows / (1 - share_of_windows) / count)
    held, half_held = 0, 0
    for _ in range(1000):
        blocks = rng.normal(size=(windows, count)) + effect * rng.normal(size=(windows, 1))
        mean, (low, high) = moderated_interval(blocks, weights=np.ones(count), confidence=0.95)
        held += low <= 0 <= high
        half_held += abs(mean) <= (high - low) / 4
    assert held >= 930
    assert half_held < 930 or not share_of_windows


def test_texts_that_differ_widen_the_interval() -> None:
    """Four windows of two texts that differ by 1: judged by windows or by texts."""
    blocks = np.random.default_rng(0).normal(size=(4, 8)) / 100 + np.array([[0.0], [0.0], [1.0], [1.0]])
    _, (low, high) = moderated_interval(blocks, weights=np.ones(8))
    _, (wide_low, wide_high) = moderated_interval(blocks, weights=np.ones(8), texts=[4, 4, 9, 9])
    assert wide_high - wide_low > 1.2 * (high - low)


def test_overlapping_windows_widen_the_interval() -> None:
    """The effective number of windows replaces their number."""
    blocks = np.random.default_rng(0).normal(size=(4, 8))
    _, (low, high) = moderated_interval(blocks, weights=np.ones(8))
    _, (wide_low, wide_high) = moderated_interval(blocks, weights=np.ones(8), share=0.5)
    assert wide_high - wide_low > 1.2 * (high - low)


def test_the_least_half_width() -> None:
    """Blocks that are all equal show nothing of how much others would differ."""
    assert moderated_interval(np.ones((3, 8)), weights=np.ones(8)) == (1.0, (0.995, 1.005))


@pytest.mark.parametrize(
    ("blocks", "options", "message"),
    [
        (np.zeros((1, 3)), {}, "too few blocks"),
        (np.zeros((2, 2)), {}, "too few blocks"),
        (np.zeros((2, 8)), {"weights": np.ones(7)}, "one weight for each block"),
        (np.zeros((2, 8)), {"weights": np.zeros(8)}, "positive weights"),
        (np.zeros((2, 8)), {"texts": [0]}, "one text for each window"),
        (np.zeros((2, 8)), {"part": slice(8, 9)}, "at least one block"),
        (np.full((2, 8), np.nan), {}, "finite"),
        (np.zeros((2, 8)), {"share": 0.4}, "share"),
    ],
)
def test_moderated_interval_refuses_what_it_cannot_compute(
    blocks: NDArray[np.float64], options: dict[str, Any], message: str
) -> None:
    """Too few blocks, and arguments that do not fit."""
    with pytest.raises(RopeError, match=message):
        moderated_interval(blocks, **{"weights": np.ones(blocks.shape[1]), **options})


def test_student_s_t_needs_no_blocks() -> None:
    """From STUDENT_FROM windows on, one block is enough, and the interval is scipy's."""
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(3).normal(size=STUDENT_FROM)
    _, ends = moderated_interval(values[:, None], weights=[64])
    expected = stats.t.interval(LOOK_CONFIDENCE, STUDENT_FROM - 1, loc=values.mean(), scale=stats.sem(values))
    assert ends == pytest.approx(expected, rel=1e-12)
