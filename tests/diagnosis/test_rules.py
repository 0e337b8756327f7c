"""The rules: which evidence gives which answer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import records
import rule_errors
from rule_again import Rule, chance

from ropewalk.diagnosis.evidence import Evidence, Half, Mean, Rival, Standing, gather, groups_of
from ropewalk.diagnosis.facts import GROUP, Found, PlacedFact, Window
from ropewalk.diagnosis.rules import Decision, decide, fails, fault, headline, reasons, works
from ropewalk.diagnosis.schedule import Design, WindowReading

TRAINED, TARGET = 1000, 4000
TO_THE_END = Half(None, 3900, None, 3950)


def found(count: int, asked: int = 48) -> Found:
    """So many of groups that are otherwise answered with one value each."""
    right, rest = divmod(count, 4)
    groups = [[0, 1, 2, 3]] * right
    while len(groups) < asked // 4:
        here = min(rest, 3)
        groups.append({0: [1, 0, 3, 2], 1: [0, 0, 0, 0], 2: [0, 1, 0, 0], 3: [0, 1, 2, 0]}[here])
        rest -= here
    counted = Found.of(groups, confidence=0.995)
    assert counted.found == count
    return counted


def standing(method: str, count: int | None, **changes: object) -> Standing:
    fields = {
        "near": found(16, 20), "half": TO_THE_END, "length": TARGET, "loss": Mean(0.0, -0.01, 0.01),
        "cost": None if method == "plain" else Mean(0.0, -0.01, 0.01), "within": 3.0,
    }  # fmt: skip
    fields |= {"beyond": None if count is None else found(count), "reached": (count or 0, 0 if count is None else 48)}
    return Standing(method=method, **{**fields, **changes})


def evidence(*standings: Standing, control: int = 40) -> Evidence:
    rivals = tuple(
        _rival(one.method, other.method, _apart(one.beyond, other.beyond))
        for one in standings
        for other in standings
        if one is not other and one.beyond is not None and other.beyond is not None
    )
    return Evidence(
        windows=1, trained=TRAINED, target=TARGET, standings={one.method: one for one in standings},
        control=found(control), frequencies=-2.0, rivals=rivals,
    )  # fmt: skip


def _rival(method: str, other: str, mean: Mean) -> Rival:
    return Rival(mean.value, mean.low, mean.high, method, other)


def _apart(one: Found, other: Found) -> Mean:
    mean = one.share - other.share
    half = 2.8 * math.sqrt(max(0.1, mean * (1 - mean)) / one.asked)
    return Mean(mean, mean - half, mean + half)


def answer(*standings: Standing, cannot: tuple[str, ...] = ()) -> Decision:
    return decide(evidence(*standings), cannot=cannot)


LOSES = Mean(0.3, 0.2, 0.4)
BROKEN = standing("plain", None, broken=True)
GAVE_UP = "The unchanged model gave up: its loss rose by more than a nat per token."
FAILS = standing("yarn", 47, loss=LOSES)
BETTER = (Rival(0.2, 0.05, 0.35, "yarn", "plain"),)  # of the facts: shown
NO_BETTER = [standing("yarn", 10, beyond=Found.of([answers] * groups, confidence=0.995))
             for answers, groups in (([1, 0, 3, 2], 2), ([1, 0, 0, 0], 24))]  # fmt: skip


def reaching(method: str, count: int, length: int, *, estimate: int = 100) -> Standing:
    """A method whose facts are found up to a length, which is promised, and an estimate that exceeds it by so much."""
    half = Half(length + estimate, length, length + estimate + 200, length + 10)
    return standing(method, count, half=half, length=length)


SHORT = reaching("plain", 30, 1000)  # it finds facts, but its length is not more than the trained one


@pytest.mark.parametrize(
    ("standings", "anywhere", "engine", "why"),
    [
        ((standing("plain", 40), standing("yarn", 42)), "keep None", "keep None",
         "It finds 40 of 48 facts told more than 1,000 tokens earlier (chance 12), even 4,000 tokens back (95 % "
         "interval from 3,900)."),
        ((standing("plain", 35), standing("yarn", 47)), "keep None", "keep None", None),  # to the same length
        ((reaching("plain", 32, 2500), standing("yarn", 47)), "extend yarn", "extend yarn", None),
        ((reaching("plain", 32, 2500), standing("yarn", 36)), "keep None", "keep None", None),  # not shown
        ((standing("plain", 7), standing("yarn", 32)), "extend yarn", "extend yarn", None),
        ((standing("plain", 20), standing("yarn", 32)), "undecided None", "undecided None", None),  # plain may work
        ((SHORT, standing("yarn", 47)), "extend yarn", "extend yarn", None),
        ((standing("plain", 7), standing("yarn", 32), standing("dca", 34)), "extend yarn dca", "extend yarn",
         "It finds 32 of 48 facts told more than 1,000 tokens earlier (chance 12), even 4,000 tokens back (95 % "
         "interval from 3,900). The unchanged model finds 7 of 48. dca finds 34 of 48, but does not run in vllm."),
        ((standing("plain", 7), standing("yarn", 32, cost=Mean(0.005, 0.0, 0.01)), standing("ntk", 29)),
         "extend yarn", "extend yarn",
         "It finds 32 of 48 facts told more than 1,000 tokens earlier (chance 12), even 4,000 tokens back (95 % "
         "interval from 3,900). It costs +0.01 nats per token within the trained length. The unchanged model finds 7 "
         "of 48. Equal within what 1 window can tell: ntk."),
        ((standing("plain", 7), standing("yarn", 21), standing("dca", 47)), "extend dca", "undecided None", None),
        ((standing("plain", 7), standing("yarn", 32), standing("dca", 47)), "extend dca", "extend yarn", None),
        ((BROKEN, FAILS, standing("dca", 47)), "extend dca", "cut None",
         f"{GAVE_UP} yarn finds 47 of 48, but loses the text: its loss is 0.30 nats per token above a cut prompt's "
         "(limit 0.10)."),
        ((BROKEN, standing("dca", 47)), "extend dca", "undecided None",
         f"{GAVE_UP} No method that runs in vllm was measured."),
        ((BROKEN,), "cut None", "cut None",
         f"{GAVE_UP} No method that runs in vllm was measured."),
        ((BROKEN, NO_BETTER[0]), "undecided None", "undecided None", None),  # too few facts
        ((BROKEN, NO_BETTER[1]), "cut None", "cut None", None),
        ((standing("plain", 13), FAILS), "undecided None", "undecided None", None),
        ((BROKEN, FAILS, standing("dca", 14)), "undecided None", "cut None", None),
        ((standing("plain", 40), standing("dca", 42)), "keep None", "keep None", None),
        ((SHORT, standing("yarn", 32)), "keep None", "keep None",
         "It finds 30 of 48 facts told more than 1,000 tokens earlier (chance 12), up to about 1,100 tokens back (95 % "
         "interval 1,000 to 1,300). yarn finds 32 of 48, but is not shown to find more."),
        ((dataclasses.replace(SHORT, half=Half(600, 300, 1000, 400)), standing("yarn", 26)), "undecided None",
         "undecided None", None),  # plain is shown to fail
        ((BROKEN, standing("yarn", 24)), "undecided None", "undecided None",
         f"{GAVE_UP} yarn finds 24 of 48, but up to 4,000 tokens back 24 of 48, and half as well as nearby is 27 "
         "(22 to 29)."),
        ((dataclasses.replace(SHORT, loss=LOSES), standing("yarn", 29)), "extend yarn", "extend yarn", None),
    ],
)  # fmt: skip
def test_each_place_has_its_answer(
    standings: tuple[Standing, ...], anywhere: str, engine: str, why: str | None
) -> None:
    """Action, method and equals. A method that runs in Python only is no reason for "cut"; plain that is not shown to
    work need not fail; one that a config expresses is preferred among equals.
    """
    for cannot, expected in (((), anywhere), (("dca",), engine)):
        decision = answer(*standings, cannot=cannot)
        assert f"{decision.action} {decision.method}" + " dca" * ("dca" in decision.equal) == expected
        assert decision.action != "extend" or decision.length == TARGET
    said = reasons(decision, evidence(*standings), log_vocabulary=10.0, place="vllm")
    assert why is None or " ".join(said) == why


@pytest.mark.parametrize(
    "changes",
    [{"loss": Mean(0.3, 0.2, 0.4)}, {"cost": Mean(0.2, 0.1, 0.3)}, {"broken": True, "beyond": None},
     {"half": Half(600, 300, 1000, 400), "length": 1000}],
    ids=["loss", "cost", "broken", "near"],
)  # fmt: skip
def test_a_guard_excludes_a_method(changes: dict[str, object]) -> None:
    one = evidence(BROKEN, dataclasses.replace(standing("yarn", 47), **changes))
    assert not works(one, "yarn")
    assert fails(one, "yarn")
    assert decide(one).action == "cut"


def test_guards_hold_by_their_means() -> None:
    """Where an interval contains the limit, the answer of the other side is named, if it is another."""
    for loss, low, cost, good in ((0.10, -0.1, 0.05, True), (0.11, 0.10, 0.0, False)):
        near = standing("yarn", 32, loss=Mean(loss, low, 0.3), cost=Mean(cost, -0.1, 0.05))
        found = evidence(BROKEN, near)
        assert (works(found, "yarn"), fails(found, "yarn")) == (good, False)
        decision = decide(found)
        assert (decision.action, decision.otherwise.action) == ("extend", "undecided")[:: 1 if good else -1]
        assert (decision.limit, decision.settled) == ("yarn", False)
        said = reasons(decision, found, log_vocabulary=10.0, place="vllm")[-1]
        assert said.startswith("At the limit: yarn's extra loss against a cut prompt is 0.1")
        assert "and its cost is 0.0" in said  # its interval ends at the limit
        beside = evidence(BROKEN, near, standing("ntk", 47))  # which is chosen in any case
        assert (decide(beside).method, decide(beside).otherwise) == ("ntk", None)


@pytest.mark.parametrize(
    ("rival", "cell", "said"),
    [
        (standing("yarn", 47, cost=Mean(0.15, 0.1, 0.2)), "costs too much",
         "yarn finds 47 of 48, but costs 0.15 nats per token within the trained length (limit 0.05)."),
        (standing("yarn", 47, cost=Mean(0.053, 0.04, 0.06)), "costs too much",
         "yarn finds 47 of 48, but costs 0.053 nats per token within the trained length (limit 0.05)."),
        (standing("yarn", 26), "finds too few",
         "yarn finds 26 of 48, but up to 4,000 tokens back 26 of 48, and half as well as nearby is 27 (22 to 29)."),
        (standing("yarn", 16, reached=(1, 5)), "finds too few",
         "yarn finds 16 of 48, but chance may find as many (on average 12)."),
        (standing("yarn", 16, half=Half(1100, 900, 1300, 950), length=TRAINED, reached=(0, 0)), "not shown",
         "yarn finds 16 of 48, but it is not known how far back."),
        (standing("yarn", 8, half=Half(600, 300, 900, 400), length=TRAINED, reached=(0, 0)), "finds too few",
         "yarn finds 8 of 48, but chance may find as many (on average 12)."),
        (standing("yarn", 32), "", "yarn finds 32 of 48."),
        (standing("yarn", None, broken=True), "gave up", "yarn gave up: its loss rose by more than a nat per token."),
    ],
)  # fmt: skip
def test_the_nearest_rival_has_its_reason(rival: Standing, cell: str, said: str) -> None:
    """One sentence of an answer, and a word in the table; where it cannot run, that is the reason."""
    found = evidence(standing("plain", 7), standing("dca", 47), rival)
    assert fault(found, "yarn")[0] == cell
    for compared, one in ((("plain", "dca", "yarn"), said), (("plain", "dca"), "does not run in vllm.")):
        chosen = Decision("extend", "dca", TARGET, compared=compared)
        assert reasons(chosen, found, log_vocabulary=10.0, place="vllm")[-1].endswith(one)


def test_keep_names_a_method_that_finds_more() -> None:
    found = dataclasses.replace(evidence(standing("plain", 36), standing("yarn", 42, cost=Mean(0.03, 0.0, 0.04))),
                                rivals=BETTER)  # fmt: skip
    as_many = dataclasses.replace(found, rivals=(dataclasses.replace(BETTER[0], low=0.0),))
    assert decide(as_many).more is None
    decision = decide(found)
    assert (decision.action, decision.more, decision.settled) == ("keep", "yarn", True)
    said = reasons(decision, found, log_vocabulary=10.0, place="vllm")
    assert said[-1] == "But yarn finds 42 of 48, at +0.03 nats per token within the trained length."


def test_keep_is_the_answer_if_plain_uses_far_text_and_nobody_knows_how_far() -> None:
    """Unless its loss exceeds the limit; and both answers are named if that is not sure."""
    for loss, action in ((0.09, "keep"), (0.11, "undecided")):
        near = evidence(dataclasses.replace(SHORT, loss=Mean(loss, -0.1, 0.3)), standing("yarn", 32))
        decision = decide(near)
        assert (decision.action, decision.length, decision.settled, decision.limit) == (action, None, False, "plain")
    alone = decide(evidence(reaching("plain", 24, 1000), standing("yarn", 7), standing("ntk", 7)))  # it was not chosen
    assert headline(alone, TRAINED).endswith("beyond 1,000 tokens; how far is not known.")


def test_what_leaves_an_answer_open() -> None:
    """A method that may find more by 15 points, or a length that is promised far below its estimate."""
    assert answer(standing("plain", 7), standing("yarn", 32)).settled
    assert not answer(reaching("plain", 30, 2500), standing("yarn", 34)).settled
    alike = evidence(reaching("plain", 40, 2500), standing("yarn", 40))
    for high, settled in ((0.149, True), (0.15, False)):
        assert decide(dataclasses.replace(alike, rivals=(Rival(0.0, -0.1, high, "yarn", "plain"),))).settled == settled
    for estimate, settled in ((250, True), (251, False)):
        assert answer(standing("plain", 7), reaching("yarn", 32, 2500, estimate=estimate)).settled == settled


def test_chance_is_corrected_for_the_number_of_methods() -> None:
    """24 of 48 exceed it for one method, not for the best of four."""
    yarn, plain = standing("yarn", 24), standing("plain", 7)
    assert yarn.beyond.p < 0.0025
    assert works(evidence(plain, yarn, control=36), "yarn")  # it needs half of the control's share: 24 for 36
    assert not works(evidence(plain, dataclasses.replace(yarn, reached=(23, 48)), control=36), "yarn")
    many = [standing(name, 13) for name in ("ntk", "llama3", "dca")]
    assert yarn.beyond.p > 0.0025 / 4
    assert not works(evidence(plain, yarn, *many, control=36), "yarn")


def asked(*groups: list[int]) -> dict[str, Found]:
    return {"control": Found.of(groups, confidence=0.995)}


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        ({"frequencies": 0.0}, "unfit text True None", "Its loss is 0.00 nats per token above that of a model that"),
        (asked(*[[1, 0, 3, 2]] * 12), "unfit facts True None", "It finds 0 of 48 (chance 12), so nothing is said"),
        (asked([0, 1, 0, 0]), "undecided None False None", "Within its trained length the model finds 2 of 4 facts: "),
        (asked(), "undecided None False None", "Within its trained length the model finds no facts: too few"),
        ({"trained": TARGET, **asked()}, "keep None True 4000", "It finds 16 of 20 facts (chance 5)."),
        ({"trained": TARGET}, "unfit weights True None", "Its loss within 4,000 tokens is 3.00 nats per token, that"),
    ],
)
def test_before_far_facts_count(changes: dict[str, Any], expected: str, said: str) -> None:
    """Weights and text must be fit, and facts found within the trained length; which is enough for such a target."""
    found = dataclasses.replace(evidence(standing("plain", None)), **changes)
    random = 3.1 if "weights" in expected else 3.2
    decision = decide(found, log_vocabulary=random)
    assert f"{decision.action} {decision.reason} {decision.settled} {decision.length}" == expected
    assert reasons(decision, found, log_vocabulary=random, place="vllm")[0].startswith(said)


@pytest.mark.parametrize(
    ("half", "length"),
    [
        (Half(3190, 2900, 3400, 3050), 3000), (Half(700, 0, 900, 0), 1000), (Half(None, 3500, None, 3874), 3750),
        (Half(None, 3500, None, 3875), 4000), (Half(3960, 3500, None, 3900), 3875),
    ],
)  # fmt: skip
def test_the_promised_length_is_the_lower_end(half: Half, length: int) -> None:
    assert half.length(1000, 4000) == length


# --- evidence

DESIGN = Design(trained_length=64, target=256, windows=1)
BLOCKS = DESIGN.blocks  # of 8 tokens
FAR, NEAR = 16, 8


def window(text: int = 0) -> Window:
    """A window with far facts every 10 tokens, and near ones at its end."""
    facts = []
    for number in range(FAR + NEAR):
        far = number < FAR
        start = 8 + 10 * number if far else 196 + 6 * (number - FAR)
        group, right = divmod(number, GROUP)
        facts.append(PlacedFact(f"n{number}", f"v{number}", start, start + 4, group, right, ("a", "b", "c", "d"), far))
    return Window(text=text, start=0, facts=tuple(facts), counted=(8,) * len(BLOCKS), frequencies=6.0)


def reading(loss: float, right: list[bool]) -> WindowReading:
    """A reading whose answers are right where `right` says; wrong answers choose the next value."""
    rows = []
    for number, hit in enumerate(right):
        chosen = (number % GROUP + (0 if hit else 1)) % GROUP
        rows.append(tuple(0.0 if choice == chosen else -5.0 for choice in range(GROUP)))
    return WindowReading(loss=(loss,) * len(BLOCKS), answers=tuple(rows), seconds=1.0)


def collected(readings: dict[str, list[WindowReading]]) -> Evidence:
    return gather([window()], readings, DESIGN)


def test_a_method_that_gave_up_has_what_was_read() -> None:
    """Its facts were not asked for; the other's difference is not corrected for crop, nor for the config as it is."""
    crop = WindowReading(loss=tuple(5.0 if start >= 128 else None for start, _ in BLOCKS))
    broken = WindowReading(loss=tuple(5.0 if start < 128 else None for start, _ in BLOCKS), stopped=128)
    given_up = collected({"plain": [broken], "crop": [crop]}).standings["plain"]
    assert (given_up.broken, given_up.beyond, given_up.near, given_up.loss) == (True, None, None, None)
    one = {"plain": [reading(5.0, [True, False] * 12)], "yarn": [reading(5.0, [True] * 24)]}
    others = {**one, "crop": [crop], "as-is": one["plain"]}
    assert collected(one).rival("yarn", "plain") == collected(others).rival("yarn", "plain")


def test_what_counts() -> None:
    """Groups that were asked for as a whole; blocks by their tokens, of which three show no variance."""
    assert groups_of((fact, (0.0, -1.0, -1.0, -1.0)) for fact in window().facts[:6]) == [[0, 0, 0, 0]]
    assert Mean.of([(np.array([1.0, 0.0, 0.75]), np.array([30.0, 10.0, 8.0]))]) == Mean(0.75, None, None)
    assert Mean.of([(np.ones(4), np.ones(4))]) == Mean(1.0, 1.0, 1.0)
    assert Mean.of([]) is None
    assert (asked([1, 0, 3, 2])["control"].low, asked([0, 1, 2, 3])["control"].high) == (0.0, 1.0)
    for groups in (1, 2):  # far ones; of one, nothing is said about their variance
        few = [dataclasses.replace(window(), facts=window().facts[: 4 * groups])]
        one = [reading(5.0, [True] * 4 * groups)]
        found = gather(few, {"plain": one, "yarn": one}, DESIGN)
        assert (found.rival("yarn", "plain") is None, found.standings["yarn"].length) == (groups == 1, 64)


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


def test_half_at_the_ends() -> None:
    distances = list(range(100, 996, 28))
    assert Half.fit(distances, [True] * len(distances), 1000).tokens is None
    assert Half.fit(distances, [False] * len(distances), 1000).sure == 0
    assert [Half.fit(distances[:count], [True] * count, 1000) is None for count in (12, 16)] == [True, False]


@pytest.mark.parametrize("windows", [1, 20])
def test_half_is_recovered(windows: int) -> None:
    """From the same curve: its interval holds it in 9 of 10 runs, and its lower end is below it in as many."""
    random, runs = np.random.default_rng(2), 60
    distances = np.tile(np.linspace(50, 1000, 24).astype(int), windows)
    share = 0.25 + 0.6 / (1 + np.exp((distances - 600) / 40))
    found = [Half.fit(distances.tolist(), (random.random(len(distances)) < share).tolist(), 1000) for _ in range(runs)]
    assert sum(half.low <= 600 <= (half.high or 1000) for half in found) >= 0.9 * runs
    assert 0.6 * runs < sum(half.sure <= 600 for half in found) >= 0.85 * runs
    assert all(half.low <= half.sure <= (half.tokens or 1000) for half in found)


# --- the same rule, written once more from its description: benchmarks/rule_again.py

CELLS = [one for one in rule_errors.cells() if "knows 30%" in one.name or "half 0.75" in one.name]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name}, over {cell.over:g}")
def test_the_second_rule_has_the_same_numbers(cell: rule_errors.Cell) -> None:
    run = rule_errors.draw(cell, np.random.default_rng(0))
    for count in (1, 3):
        found, rule = records.concluded(run, count)[1], Rule(run, count)
        assert rule.found == found.control.found
        for name, other in itertools.permutations(cell.methods, 2):
            one, apart = found.standings[name], found.rival(name, other)
            assert rule.far_hits(name).sum() == one.beyond.found
            groups = rule.choices[name][:, : rule.far].reshape(-1, 4)
            assert one.beyond.p == pytest.approx(chance(groups, one.beyond.found))
            assert dataclasses.astuple(one.half) == pytest.approx(rule.half(name), abs=1)
            assert (one.length, apart.low, apart.high) == pytest.approx((rule.length(name), *rule.apart(name, other)))
            for mean, mine in zip(filter(None, (one.loss, one.cost)), rule.limits(name), strict=True):
                assert mine[0] == pytest.approx((mean.value, mean.low, mean.high))


def test_the_second_rule_gives_the_same_answers() -> None:
    """Settled or not, and on the other side of a limit."""
    cells = [one for one in rule_errors.cells() if "costs" in one.name or "3 equal, half 9" in one.name]
    measured = [rule_errors.measure(one.name, one, 2) for one in cells]
    assert [differ for _, differ in measured] == [[]] * 4
    assert sum(look["at_limit"] for one, _ in measured for look in one["looks"]) > 0
