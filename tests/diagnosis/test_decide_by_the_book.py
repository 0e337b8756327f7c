"""The verdict against its rules written down a second time, on drawn losses."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ropewalk.diagnosis.wording import decide
from ropewalk.measure.losses import WindowLosses
from ropewalk.methods import METHODS
from tests.diagnosis.made_losses import MadeUse

NAMES = ("pi", "ntk", "yarn", "llama3", "streaming")


@st.composite
def drawn(draw: st.DrawFn) -> tuple[WindowLosses, MadeUse | None]:
    """Losses near the bounds of every rule, and what is known of use."""
    windows = draw(st.sampled_from([1, 2, 4, 8, 16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = draw(st.permutations(["plain", "crop", *draw(st.sets(st.sampled_from(NAMES)))]))
    distance = st.sampled_from([-0.5, -0.1, -0.021, -0.019, 0.0, 0.019, 0.021, 0.049, 0.051, 0.3])
    spread = draw(st.sampled_from([0.0, 0.001, 0.02, 0.2]))
    cost = st.sampled_from([-0.1, 0.0, 0.049, 0.051, 0.099, 0.3])

    def noise(*shape: int) -> np.ndarray:
        return spread * rng.standard_normal((windows, *shape))

    by_stretch = {name: 4 + (0 if name == "crop" else draw(distance)) + noise(2) for name in names}
    plain = 3 + noise()
    losses = WindowLosses(
        trained=8,
        target=24,
        within={n: (plain if n in ("plain", "crop") else plain + draw(cost) + noise()).tolist() for n in names},
        frequencies=(3 + draw(st.sampled_from([-0.5, 0.0, 0.01, 0.5, 2.0])) + noise()).tolist(),
        beyond={name: rows.mean(1).tolist() for name, rows in by_stretch.items()},
        stretches=((8, 16), (16, 24)),
        by_stretch={name: rows.tolist() for name, rows in by_stretch.items()},
    )
    use = draw(st.none() | st.dictionaries(st.sampled_from(["plain", *NAMES]), st.booleans() | st.none()))
    return losses, None if use is None else MadeUse(use)


def by_the_book(losses: WindowLosses, use: MadeUse | None) -> tuple[str, str | None]:
    """The issue's rules in its order, with scipy's intervals: nothing of the code under test."""
    windows = len(losses.within["plain"])

    def ends(one: Sequence[float], other: Sequence[float], comparisons: int = 1) -> tuple[float, float]:
        apart = np.array(one) - np.array(other)
        if windows == 1:
            return -math.inf, math.inf
        if np.ptp(apart) == 0:
            return float(apart[0]), float(apart[0])
        half = stats.t.ppf(1 - 0.025 / comparisons, windows - 1) * stats.sem(apart)
        return float(apart.mean() - half), float(apart.mean() + half)

    within, beyond = losses.within, losses.beyond
    mean = {name: float(np.mean(values)) for name, values in beyond.items()}
    others = [name for name in within if name != "plain"]
    able = [name for name in others if not METHODS[name].forgets]
    if not ends(within["plain"], losses.frequencies)[1] < 0:
        above = float(np.mean(np.array(within["plain"]) - np.array(losses.frequencies))) >= 0
        return ("unfit", None) if above else ("undecided", None)
    parts = [([r[i] for r in losses.by_stretch["plain"]], [r[i] for r in losses.by_stretch["crop"]]) for i in (0, 1)]
    if all(ends(*pair)[1] < 0.02 for pair in [(beyond["plain"], beyond["crop"]), *parts]):
        return "keep", None

    def used(name: str) -> bool:
        return use is not None and use.used.get(name) is True

    def status(name: str) -> str:
        gain = ends(beyond[name], beyond["plain"], len(others))
        crop = ends(beyond[name], beyond["crop"], len(able))
        cost = ends(within[name], within["plain"], len(others))
        mean_cost = float(np.mean(np.array(within[name]) - np.array(within["plain"])))
        good_crop = crop[1] < 0 or (used(name) and crop[1] < 0.05)
        if gain[1] < 0 and good_crop and mean_cost <= 0.05 and cost[1] <= 0.10:
            return "shown"
        bad_crop = not good_crop and crop[0] >= (0.05 if used(name) else 0.0)
        return "no" if gain[0] >= 0 or bad_crop or cost[0] > 0.05 else "open"

    statuses = {name: status(name) for name in able}
    shown = [name for name in able if statuses[name] == "shown"]
    if shown:
        best = min(shown, key=mean.__getitem__)
        if all(mean[name] >= mean[best] - 0.05 for name in able if statuses[name] == "open"):
            return "extend", best
    affordable = [name for name in able if ends(within[name], within["plain"], len(others))[0] <= 0.05]
    lows = [ends(beyond[name], beyond["crop"], len(able))[0] for name in affordable]
    lows.append(ends(beyond["plain"], beyond["crop"])[0])
    lowest = min(["plain", *affordable], key=mean.__getitem__)
    if all(low >= -0.02 for low in lows) and use is not None and use.used.get(lowest) is False:
        return "cut", None
    return "undecided", None


@given(drawn())
def test_the_rules_are_the_issues(case: tuple[WindowLosses, MadeUse | None]) -> None:
    """The same action and method as the rules written down a second time."""
    losses, use = case
    found = decide(losses, use)
    assert (found.action, found.method) == by_the_book(losses, use)


@given(drawn())
def test_no_verdict_contradicts_itself(case: tuple[WindowLosses, MadeUse | None]) -> None:
    """What it says follows from its own evidence, and each part agrees with the others."""
    losses, use = case
    found = decide(losses, use)
    of = {(c.name, c.method): c for c in found.evidence}
    assert (found.method is not None) == (found.action == "extend")
    assert found.config is None
    assert found.next is None or found.action in ("undecided", "unfit")
    if len(losses.frequencies) == 1:
        assert found.action in ("unfit", "undecided")
    if found.action in ("keep", "extend", "cut"):
        assert of["predicts the text", "plain"].result == "shown"
        assert found.reach_loss is not None
    if found.method is not None:
        assert not METHODS[found.method].forgets
        assert of["better than plain", found.method].result == "shown"
        assert of["costs little within", found.method].result == "shown"
        assert found.method in found.sentence
    if found.action == "keep":
        assert found.reach_loss == 24
    for comparison in found.evidence:
        if comparison.interval is not None:
            low, high = comparison.interval
            assert low <= comparison.difference + 1e-12
            assert comparison.difference <= high + 1e-12
            if comparison.name != "costs little within":
                expected = "shown" if high < comparison.margin else "refuted" if low >= comparison.margin else "open"
                assert comparison.result == expected
    json.dumps(found.to_json(), allow_nan=False)
    assert found.sentence.endswith(".")


@given(drawn())
def test_the_no_op_is_never_recommended(case: tuple[WindowLosses, MadeUse | None]) -> None:
    """A method that changes nothing gains nothing, however little is shown of the others."""
    losses, use = case

    def with_no_op(rows: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
        return {**rows, "abf": rows["plain"]}

    more = dataclasses.replace(
        losses,
        within=with_no_op(losses.within),
        beyond=with_no_op(losses.beyond),
        by_stretch=with_no_op(losses.by_stretch),
    )
    assert decide(more, use).method != "abf"


@given(drawn(), st.randoms())
def test_the_order_of_methods_does_not_matter(case: tuple[WindowLosses, MadeUse | None], random: object) -> None:
    """But between two with the same losses."""
    losses, use = case
    names = list(losses.within)
    random.shuffle(names)  # type: ignore[attr-defined]

    def reordered(rows: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
        return {name: rows[name] for name in names}

    again = dataclasses.replace(
        losses,
        within=reordered(losses.within),
        beyond=reordered(losses.beyond),
        by_stretch=reordered(losses.by_stretch),
    )
    one, other = decide(losses, use), decide(again, use)
    means = [round(float(np.mean(values)), 12) for values in losses.beyond.values()]
    assert one.action == other.action
    if len(set(means)) == len(means):
        assert one == other
