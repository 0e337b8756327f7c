"""The recommendation, from crafted numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.diagnosis.recommend import TOLERATED, recommend
from ropewalk.errors import RopeError


def test_the_lowest_affordable_method_wins() -> None:
    """pi is lower beyond but costs half a nat within."""
    found = recommend({"plain": [3.0], "pi": [3.5], "yarn": [3.02]}, {"plain": [6.0], "pi": [3.1], "yarn": [3.3]})
    assert found.method == "yarn"
    assert "pi (+0.500)" in found.reason
    assert "One window" in found.reason


def test_crop_is_never_recommended_but_is_held_against() -> None:
    """crop is lowest of all: the method stands, and the sentence says that nothing beats crop."""
    found = recommend({"plain": [3.0], "yarn": [3.0], "crop": [3.0]}, {"plain": [6.0], "yarn": [3.3], "crop": [3.2]})
    assert found.method == "yarn"
    assert found.beats_crop is False
    assert found.over_crop == pytest.approx(0.1)
    assert found.crop_sentence.startswith("No method beats crop. yarn comes closest: +0.100 nats")


def test_beating_crop_is_said_with_its_margin() -> None:
    """Two windows, both 0.2 nats below crop."""
    within = {name: [3.0, 3.2] for name in ("plain", "yarn", "crop")}
    found = recommend(within, {"plain": [6.0, 6.1], "yarn": [3.3, 3.4], "crop": [3.5, 3.6]})
    assert found.beats_crop is True
    assert found.crop_sentence.startswith("yarn beats crop: -0.200 nats, 95 % interval [")


def test_an_interval_that_holds_zero_shows_nothing() -> None:
    """Lower than crop on the mean, higher in one window."""
    within = {name: [3.0, 3.2, 3.1] for name in ("plain", "yarn", "crop")}
    found = recommend(within, {"plain": [6.0, 6.1, 6.0], "yarn": [3.3, 3.4, 3.7], "crop": [3.6, 3.6, 3.6]})
    assert found.beats_crop is False
    assert found.crop_sentence.startswith("No method beats crop. yarn comes closest: -0.133 nats")
    assert "The interval contains zero." in found.crop_sentence


def test_the_interval_decides_affordability_where_there_is_one() -> None:
    """A mean cost of 0.03 nats whose interval reaches past 0.05 is refused; with one window it is not."""
    within = {"plain": [3.0, 3.0, 3.0], "yarn": [3.0, 3.03, 3.06]}
    beyond = {"plain": [6.0, 6.0, 6.0], "yarn": [3.0, 3.0, 3.0]}
    assert recommend(within, beyond).method == "plain"
    one = {name: values[1:2] for name, values in within.items()}
    assert recommend(one, {name: values[1:2] for name, values in beyond.items()}).method == "yarn"


def test_pairing_removes_what_windows_share() -> None:
    """Windows differ by whole nats, but the method costs exactly 0.01 in each: the interval has no width."""
    found = recommend({"plain": [2.0, 4.0], "ntk": [2.01, 4.01]}, {"plain": [6.0, 7.0], "ntk": [3.0, 4.0]})
    assert found.method == "ntk"
    assert found.standings[1].within_interval == pytest.approx((0.01, 0.01))


def test_ties_go_to_the_earlier_name() -> None:
    """ntk and dynamic are the same numbers."""
    within = {"plain": [3.0], "ntk": [3.0], "dynamic": [3.0]}
    assert recommend(within, {"plain": [6.0], "ntk": [4.0], "dynamic": [4.0]}).method == "ntk"


def test_nothing_beyond_recommends_nothing() -> None:
    """A target within the trained length."""
    found = recommend({"plain": [3.0]}, None)
    assert found.method is None
    assert found.standings[0].beyond is None


@pytest.mark.parametrize("within", [{"yarn": [3.0]}, {"plain": [3.0], "yarn": [3.0, 3.1]}, {"plain": []}])
def test_numbers_that_do_not_pair_are_refused(within: dict[str, list[float]]) -> None:
    """Without plain, or with differing windows, nothing can be paired."""
    with pytest.raises(RopeError, match="every method needs one loss for each window"):
        recommend(within, within)


losses = st.floats(0.1, 12.0)


@given(st.data(), st.integers(1, 4))
def test_whatever_the_numbers_the_rule_holds(data: st.DataObject, windows: int) -> None:
    """The choice is affordable, not crop, and no other affordable method is lower beyond."""
    names = ["plain", "pi", "ntk", "yarn", "crop"]
    draw = st.lists(losses, min_size=windows, max_size=windows)
    within = {name: data.draw(draw) for name in names}
    beyond = {name: data.draw(draw) for name in names}
    found = recommend(within, beyond)
    mean = {name: sum(values) / windows for name, values in beyond.items()}
    assert found.method is not None
    assert found.method != "crop"
    affordable = {standing.name for standing in found.standings if standing.affordable}
    assert {"plain", found.method} <= affordable
    assert all(mean[found.method] <= mean[name] + 1e-12 for name in affordable - {"crop"})
    for standing in found.standings:
        cost = sum(a - b for a, b in zip(within[standing.name], within["plain"], strict=True)) / windows
        if cost > TOLERATED + 1e-9:
            assert standing.name not in affordable


def test_what_forgets_is_never_recommended() -> None:
    """StreamingLLM lowers the loss as crop does: by not seeing what is far."""
    within = {name: [3.0] for name in ("plain", "yarn", "streaming", "crop")}
    beyond = {"plain": [6.0], "yarn": [3.4], "streaming": [3.0], "crop": [3.1]}
    found = recommend(within, beyond)
    assert (found.method, found.best_name, found.beats_crop) == ("yarn", "yarn", False)
