"""The verdict's rules, on numbers made by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from ropewalk.diagnosis.rules import Use
from ropewalk.diagnosis.wording import RunFacts, decide
from ropewalk.errors import RopeError
from ropewalk.measure.losses import WindowLosses
from tests.diagnosis.made_losses import MadeUse, made

USED, UNUSED = MadeUse({"yarn": True, "plain": False}), MadeUse({"yarn": False, "plain": False, "ntk": False})
COLLAPSES = {"plain": 1.0}


@pytest.mark.parametrize(
    ("losses", "use", "action", "method"),
    [
        # 1. fit
        (made({"plain": 1.0, "yarn": -0.1}, fit=1.0), None, "unfit", None),
        (made({"plain": 1.0, "yarn": -0.1}, fit=0.001), None, "unfit", None),
        (made({"plain": 1.0, "yarn": -0.1}, fit=-0.001), None, "undecided", None),
        (made({"plain": 1.0, "yarn": -0.1}, fit=-0.1), None, "extend", "yarn"),
        # 2. keep: the interval's half is 0.0089, and the margin 0.02
        (made({"plain": -0.1, "yarn": -0.3}), None, "keep", None),
        (made({"plain": 0.01, "yarn": 0.5}), None, "keep", None),
        (made({"plain": 0.012, "yarn": 0.5}), UNUSED, "cut", None),
        (made({"plain": 0.012, "yarn": 0.5}), MadeUse({"plain": True}), "undecided", None),
        (made({"plain": -0.01, "yarn": 0.5}, last=0.02), None, "keep", None),
        (made({"plain": -0.01, "yarn": 0.5}, last=0.2), UNUSED, "cut", None),
        # 3. extend: with two methods the interval's half is 0.0108
        (made({**COLLAPSES, "yarn": -0.012, "ntk": 0.5}), None, "extend", "yarn"),
        (made({**COLLAPSES, "yarn": -0.009, "ntk": 0.5}), UNUSED, "cut", None),
        (made({**COLLAPSES, "yarn": -0.3, "ntk": -0.4}), None, "extend", "ntk"),
        (made({**COLLAPSES, "yarn": -0.3, "streaming": -0.9}), None, "extend", "yarn"),
        (made({"plain": 0.05, "yarn": -0.012}, spread={"plain": 0.3}), None, "undecided", None),
        (made({**COLLAPSES, "yarn": 0.03}), USED, "extend", "yarn"),
        (made({**COLLAPSES, "yarn": 0.045}), USED, "undecided", None),
        (made({**COLLAPSES, "yarn": 0.06}), USED, "undecided", None),
        (made({**COLLAPSES, "yarn": -0.1}), UNUSED, "extend", "yarn"),
        # what it costs within: 0.05 by the mean, 0.10 by the end
        (made({**COLLAPSES, "yarn": -0.1}, within={"yarn": 0.049}), None, "extend", "yarn"),
        (made({**COLLAPSES, "yarn": -0.1}, within={"yarn": 0.052}), None, "undecided", None),
        (made({**COLLAPSES, "yarn": -0.1}, within={"yarn": 0.2}), UNUSED, "cut", None),
        (made({**COLLAPSES, "yarn": -0.9}, within={"yarn": 0.04}, spread_within=0.05), None, "extend", "yarn"),
        (made({**COLLAPSES, "yarn": -0.9}, within={"yarn": 0.04}, spread_within=0.06), None, "undecided", None),
        (made({**COLLAPSES, "yarn": -0.1, "ntk": -0.3}, within={"ntk": 0.2}), None, "extend", "yarn"),
        # one that is open may be far better: nothing is chosen yet; a little better: chosen
        (made({**COLLAPSES, "yarn": -0.1, "ntk": -0.3}, within={"ntk": 0.052}), None, "undecided", None),
        (made({**COLLAPSES, "yarn": -0.1, "ntk": -0.14}, within={"ntk": 0.052}), None, "extend", "yarn"),
        # 4. cut: by the margin of 0.02
        (made({**COLLAPSES, "yarn": 0.5}), UNUSED, "cut", None),
        (made({**COLLAPSES, "yarn": 0.5}), None, "undecided", None),
        (made({**COLLAPSES, "yarn": 0.5}), MadeUse({"plain": False}), "undecided", None),
        (made({**COLLAPSES, "yarn": 0.5}), MadeUse({"plain": False, "yarn": None}), "undecided", None),
        (made({**COLLAPSES, "yarn": 0.5}), USED, "undecided", None),
        (made({**COLLAPSES, "yarn": 0.5, "ntk": -0.019}, spread={"ntk": 0.03}), None, "undecided", None),
        (made({**COLLAPSES, "yarn": 0.01, "ntk": 0.05}, spread={"yarn": 0.001}), UNUSED, "cut", None),
        (made({**COLLAPSES, "yarn": 0.01, "ntk": 0.05}, spread={"yarn": 0.001, "ntk": 0.3}), None, "undecided", None),
        (made({"plain": 0.5}), UNUSED, "cut", None),
    ],
)
def test_each_action_and_its_bounds(losses: WindowLosses, use: Use | None, action: str, method: str | None) -> None:
    """One case on each side of each bound."""
    found = decide(losses, use)
    assert (found.action, found.method) == (action, method)


@pytest.mark.parametrize(
    ("fit", "action"), [(-3.0, "undecided"), (-0.001, "undecided"), (0.0, "unfit"), (2.0, "unfit")]
)
def test_one_window_never_acts(fit: float, action: str) -> None:
    """Whatever its means are."""
    found = decide(made({"plain": 1.0, "yarn": -2.0}, windows=1, fit=fit))
    assert (found.action, found.method, found.reach_loss) == (action, None, None)
    assert {comparison.interval for comparison in found.evidence} == {None}
    assert {comparison.result for comparison in found.evidence} == {"open"}
    assert "ne window gives no interval" in found.sentence
    if action == "undecided":
        assert "Crop apart, yarn has the lowest loss beyond" in found.sentence
        best = decide(made({"plain": -0.5, "yarn": 0.1}, windows=1)).sentence
        assert "Crop apart, plain has the lowest loss beyond" in best


def test_within_the_trained_length_nothing_is_extended() -> None:
    """A model that is fit is kept, and needs no crop."""
    losses = WindowLosses(trained=512, target=256, within={"plain": [3.0, 3.1]}, frequencies=[6.0, 6.2])
    found = decide(losses)
    assert (found.action, found.reach_loss) == ("keep", 256)
    assert "256 tokens lie within its trained length of 512" in found.sentence
    assert decide(dataclasses.replace(losses, frequencies=[1.0, 1.2])).action == "unfit"


def test_without_crop_nothing_is_decided() -> None:
    """A model trained to one token has none."""
    losses = made({**COLLAPSES, "yarn": -0.1})

    def left(values: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
        return {name: row for name, row in values.items() if name != "crop"}

    without = dataclasses.replace(
        losses, within=left(losses.within), beyond=left(losses.beyond), by_stretch=left(losses.by_stretch)
    )
    found = decide(without)
    assert (found.action, found.reach_loss) == ("undecided", 256)
    assert "crop was not measured" in found.sentence


def test_reach_is_the_last_stretch_that_is_shown() -> None:
    """Stretch by stretch from the trained length on; of the method that is recommended, else of plain."""
    cut = decide(made({"plain": -0.01, "yarn": 0.5}, last=0.2), UNUSED)
    assert (cut.action, cut.reach_loss) == ("cut", 832)
    assert decide(made({"plain": 0.1, "yarn": 0.5}, last=0.15)).reach_loss == 448
    assert decide(made({"plain": 0.1, "yarn": 0.5}, last=-0.15)).reach_loss == 256  # what holds later does not count
    extend = decide(made({**COLLAPSES, "yarn": -0.1}), USED)
    assert (extend.reach_loss, extend.reach_use) == (1024, 777)
    assert decide(made({**COLLAPSES, "yarn": 0.5}), UNUSED).reach_use is None
    assert decide(made({"plain": 1.0}, fit=1.0), USED).reach_loss is None


def test_intervals_are_students_for_all_comparisons_together() -> None:
    """As scipy has them, at 1 - 0.05 / k: k methods besides plain, or those that could be chosen; 1 for plain's own."""
    losses = made({"plain": 1.0, "pi": 0.4, "yarn": 0.2, "streaming": 0.1}, windows=6, spread={"pi": 0.1, "plain": 0.2})
    found = {(c.name, c.method): c for c in decide(losses).evidence}
    within, beyond = ({k: np.array(v) for k, v in rows.items()} for rows in (losses.within, losses.beyond))

    def expected(values: np.ndarray, comparisons: int) -> tuple[float, float]:
        low, high = stats.t.interval(1 - 0.05 / comparisons, 5, loc=values.mean(), scale=stats.sem(values))
        return float(low), float(high)

    for name in ("pi", "yarn"):
        gain = found["better than plain", name]
        assert gain.interval == pytest.approx(expected(beyond[name] - beyond["plain"], 4))
        assert gain.difference == pytest.approx(np.mean(beyond[name] - beyond["plain"]))
        assert found["costs little within", name].interval == pytest.approx(expected(within[name] - within["plain"], 4))
        for claim in ("better than crop", "better than crop by the margin"):
            assert found[claim, name].interval == pytest.approx(expected(beyond[name] - beyond["crop"], 2))
    assert found["no worse than crop", "plain"].interval == pytest.approx(expected(beyond["plain"] - beyond["crop"], 1))
    fit = found["predicts the text", "plain"]
    assert fit.interval == pytest.approx(expected(within["plain"] - np.array(losses.frequencies), 1))
    assert not [key for key in found if key[1] == "streaming"]  # it forgets: no comparison of it drives an action


def test_what_would_settle_it() -> None:
    """Windows from the observed variance, the time from the run's own, the command, and the same in words."""
    losses = made({**COLLAPSES, "yarn": -0.1, "ntk": 1.0}, spread=0.15, windows=8)
    run = RunFacts(texts=("novel",), available=50, seconds=16.0, command=lambda count: f"measure {count}")
    found = decide(losses, None, run)
    assert found.action == "undecided"
    assert found.next is not None
    deviation = 0.15 * math.sqrt(8 / 7)
    needed = found.next.windows

    def is_settled(count: int) -> bool:  # two methods against crop, and the power that is asked for: 0.8
        return float(stats.t.ppf(1 - 0.025 / 2, count - 1) + stats.norm.ppf(0.8)) * deviation / math.sqrt(count) <= 0.1

    assert is_settled(needed)
    assert not is_settled(needed - 1)
    assert 8 < needed < 50
    assert found.next.seconds == pytest.approx(2.0 * needed)
    assert found.next.command == f"measure {needed}"
    assert "whether yarn lowers the loss of crop is open (-0.100 [" in found.sentence
    assert found.sentence.endswith(found.next.sentence)
    assert f"About {needed} windows ({needed - 8} more) would settle it" in found.next.sentence


def test_a_text_that_is_too_short_asks_for_others() -> None:
    """As many as it takes, each with the windows that the shortest holds."""
    losses = made({**COLLAPSES, "yarn": -0.1}, spread=0.15, windows=8)
    found = decide(losses, None, RunFacts(texts=("novel",), available=9, command=lambda count: f"measure {count}"))
    assert found.next is not None
    assert found.next.windows > 9
    assert found.next.command == "measure 9"
    assert "novel holds 9 windows for this length: give 2 more texts with --text." in found.sentence


def test_what_no_number_of_windows_settles() -> None:
    """A difference at the margin itself; and a loss against a use, which are two different things."""
    close = decide(made({**COLLAPSES, "yarn": -0.001}, spread=0.2, windows=16))
    assert (close.action, close.next) == ("undecided", None)
    assert "too small a difference" in close.sentence
    trade = decide(made({**COLLAPSES, "yarn": 0.5}), USED)
    assert (trade.action, trade.next) == ("undecided", None)
    assert "yarn is shown to use far tokens, and loses +0.500 [" in trade.sentence
    assert "depends on the task" in trade.sentence


def test_unknown_use_is_not_no() -> None:
    """What was not measured is named; where windows can show that the method costs too much, they are asked for."""
    never = decide(made({**COLLAPSES, "yarn": 0.5}))
    assert "Whether yarn uses far tokens was not measured." in never.sentence
    of_plain = MadeUse({"plain": False, "ntk": False})  # yarn costs 0.052 by its mean, so another one was examined
    losses = made({**COLLAPSES, "yarn": 0.1, "ntk": 0.5}, within={"yarn": 0.052})
    found = decide(losses, of_plain)
    assert (found.action, found.next is not None) == ("undecided", True)
    assert "whether yarn costs little within the trained length is open" in found.sentence
    assert "Whether yarn uses far tokens was not measured." in found.sentence
    neither = decide(made({**COLLAPSES, "yarn": 0.5}), MadeUse({"plain": False, "yarn": None}))
    assert "Whether yarn uses far tokens could not be determined from this measurement." in neither.sentence


def test_one_text_says_nothing_of_others() -> None:
    """Several do, where the same is shown between them."""
    one = made({**COLLAPSES, "yarn": -0.1}, windows=8)
    assert "8 windows of novel; no other text was measured." in decide(one, None, RunFacts(texts=("novel",))).sentence
    two = decide(dataclasses.replace(one, texts=2))  # both texts have the same means: nothing varies between them
    assert "8 windows of 2 texts. The same is shown between the texts" in two.sentence
    halves = {**one.beyond, "yarn": [value + (0.09 if n < 4 else -0.09) for n, value in enumerate(one.beyond["yarn"])]}
    differing = decide(dataclasses.replace(one, texts=2, beyond={**halves, "plain": one.beyond["plain"]}))
    assert "between the texts it is not shown" in differing.sentence or differing.action == "undecided"


def test_the_sentence_has_the_numbers_of_the_evidence() -> None:
    """Each action's; in brackets the interval."""
    extend = decide(made({**COLLAPSES, "yarn": -0.1}, within={"yarn": 0.02})).sentence
    assert extend.startswith("Extend with yarn to 1,024 tokens.")
    for number in ("-1.100 [", "-0.100 [", "+0.020 ["):
        assert number in extend
    assert "Whether it uses tokens beyond the trained length was not measured." in extend
    assert "It is shown to use" in decide(made({**COLLAPSES, "yarn": -0.1}), USED).sentence
    assert "It is not shown to use" in decide(made({**COLLAPSES, "yarn": -0.1}), UNUSED).sentence
    dear = decide(made({**COLLAPSES, "yarn": 0.5, "ntk": -0.5}, within={"ntk": 0.3}), UNUSED).sentence
    assert dear.startswith("Give the model only the last 256 tokens")
    assert "ntk (+0.300 [" in dear
    assert "The lowest, yarn, differs from crop by +0.500 [" in dear
    assert "yarn is not shown to use far tokens. Tokens further back are lost." in dear
    noisy = decide(made({**COLLAPSES, "yarn": 0.5}), MadeUse({"yarn": None})).sentence
    assert "Whether yarn uses far tokens could not be determined" in noisy
    assert "yarn is not shown to use far tokens" in decide(made({**COLLAPSES, "yarn": 0.5}), UNUSED).sentence
    unfit = decide(made(COLLAPSES, fit=2.0)).sentence
    assert "its loss is 3.000 nats per token, theirs 1.000: difference +2.000 [" in unfit
    assert "does not predict" in unfit
    assert "too small" not in unfit
    above = decide(made(COLLAPSES, fit=0.001))
    assert "is not shown to predict" in above.sentence
    assert above.next is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"within": {"yarn": [3.0]}},
        {"within": {"plain": [3.0], "yarn": [3.0, 3.1]}},
        {"frequencies": [6.0]},
        {"within": {"plain": []}, "frequencies": [], "beyond": {}, "by_stretch": {}},
        {"beyond": {"plain": [3.0, 3.0]}},
        {"texts": 3},
    ],
)
def test_numbers_that_do_not_pair_are_refused(changes: dict[str, object]) -> None:
    """Without plain, or with differing windows, nothing can be paired."""
    with pytest.raises(RopeError, match="every method needs one loss for each window"):
        dataclasses.replace(made(COLLAPSES, windows=2), **changes)  # type: ignore[arg-type]
