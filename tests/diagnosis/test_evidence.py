"""Evidence: intervals of losses, the distance at which finding falls, and what is gathered from readings."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.diagnosis.evidence import Half, Mean, Window, WindowReading, gather, groups_of
from ropewalk.diagnosis.facts import GROUP, ToldFact

TRAINED, TARGET = 64, 256
BLOCKS = tuple((start, start + 8) for start in range(0, TARGET, 8))
FAR, NEAR = 16, 8


def window(text: int = 0) -> Window:
    """A window with far facts every 10 tokens, and near ones at its end."""
    facts = []
    for number in range(FAR + NEAR):
        far = number < FAR
        start = 8 + 10 * number if far else 196 + 6 * (number - FAR)
        group, right = divmod(number, GROUP)
        facts.append(ToldFact(f"n{number}", f"v{number}", start, start + 4, group, right, ("a", "b", "c", "d"), far))
    return Window(text=text, start=0, facts=tuple(facts), counted=(8,) * len(BLOCKS), frequencies=6.0)


def reading(loss: float, right: list[bool], *, beyond: float = 0.0, control: int = 0) -> WindowReading:
    """A reading whose answers are right where `right` says; wrong answers choose the next value."""
    rows = []
    for number, hit in enumerate(right):
        chosen = (number % GROUP + (0 if hit else 1)) % GROUP
        rows.append(tuple(0.0 if choice == chosen else -5.0 for choice in range(GROUP)))
    losses = tuple(loss + (beyond if start >= TRAINED else 0.0) for start, _ in BLOCKS)
    known = {number: rows[number] for number in range(control)}
    return WindowReading(loss=losses, answers=tuple(rows), control=known, seconds=1.0)


def collected(readings: dict[str, list[WindowReading]], count: int = 1) -> object:
    return gather(
        [window() for _ in range(count)], {name: tuple(of) for name, of in readings.items()}, BLOCKS,
        trained_length=TRAINED, target=TARGET, asked_at=250,
    )  # fmt: skip


def test_gather() -> None:
    every, none = [True] * 24, [False] * 24
    crop = WindowReading(loss=tuple(5.0 if start >= 128 else None for start, _ in BLOCKS))
    found = collected({"plain": [reading(5.0, none, beyond=2.0, control=8)], "yarn": [reading(5.25, every)],
                       "crop": [crop]})  # fmt: skip
    yarn, plain = found.standings["yarn"], found.standings["plain"]
    assert (yarn.beyond.found, yarn.beyond.asked, yarn.near.found, yarn.near.asked) == (16, 16, 8, 8)
    assert (plain.beyond.found, found.control.asked, found.control.found) == (0, 8, 0)
    assert yarn.loss.value == pytest.approx(0.25)
    assert plain.loss.value == pytest.approx(2.0)
    assert yarn.cost.value == pytest.approx(0.25)
    assert plain.cost is None
    assert yarn.half.tokens is None  # it finds them to the end
    assert found.frequencies == pytest.approx(-1.0)
    more = found.rivals["yarn", "plain"]
    assert more.value == 1.0
    assert more.low > 0


def test_a_reading_that_was_given_up() -> None:
    broken = WindowReading(loss=tuple(5.0 if start < 128 else None for start, _ in BLOCKS), stopped=128)
    crop = WindowReading(loss=tuple(5.0 if start >= 192 else None for start, _ in BLOCKS))
    found = collected({"plain": [broken], "crop": [crop]})
    standing = found.standings["plain"]
    assert standing.broken
    assert standing.beyond is standing.near is standing.loss is None


def test_groups_that_were_asked_for_in_part_do_not_count() -> None:
    rows = dict.fromkeys((0, 1, 2, 3, 4, 5), (0.0, -1.0, -1.0, -1.0))
    assert groups_of(window().facts, rows) == [[0, 0, 0, 0]]


def test_the_mean_is_weighted_by_tokens() -> None:
    found = Mean.of([(np.array([1.0, 0.0]), np.array([30.0, 10.0]))])
    assert found.value == 0.75
    assert found.low is None  # two blocks say nothing about their variance
    assert Mean.of([]) is None


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.985), (0.4, 0.97)])
def test_intervals_cover(correlation: float, least: float) -> None:
    """Of simulated differences with a mean of 0.1, also if neighbouring blocks are alike."""
    random, inside, runs = np.random.default_rng(5), 0, 600
    for _ in range(runs):
        noise = random.standard_normal(33) * 0.3
        values = 0.1 + noise[1:] + correlation / (1 - correlation) * noise[:-1]
        found = Mean.of([(values, np.full(32, 64.0))])
        inside += found.low <= 0.1 <= found.high
    assert inside / runs >= least


def test_the_variance_is_that_of_the_part_alone() -> None:
    """A part that breaks down does not widen the interval of the part before."""
    calm = np.array([0.1, 0.12, 0.08, 0.1, 0.09, 0.11, 0.1, 0.12])
    found = Mean.of([(calm, np.full(8, 64.0))])
    assert found.high - found.low < 0.1


@pytest.mark.parametrize("level", [0.95, 0.7])
def test_half_is_recovered(level: float) -> None:
    """From the same curve with 20 windows: within 6 % of the target, and inside its interval in most runs."""
    random, covered, errors = np.random.default_rng(2), 0, []
    distances = np.tile(np.linspace(50, 1000, 24).astype(int), 20)
    for _ in range(30):
        share = 0.25 + (level - 0.25) / (1 + np.exp((distances - 600) / 40))
        found = Half.fit(distances.tolist(), (random.random(len(distances)) < share).tolist(), 1000)
        errors.append(abs(found.tokens - 600))
        covered += found.low <= 600 <= (found.high or 1000)
    assert np.median(errors) < 60
    assert covered >= 26


def test_half_at_the_ends() -> None:
    distances = list(range(100, 1000, 30))
    assert Half.fit(distances, [True] * len(distances), 1000).tokens is None
    assert Half.fit(distances, [False] * len(distances), 1000).low == 0
    assert Half.fit(distances[:8], [True] * 8, 1000) is None
