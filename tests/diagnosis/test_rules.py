"""The rules: which evidence gives which answer."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ropewalk.diagnosis.evidence import Evidence, Half, Mean, Standing, Window, WindowReading, gather, groups_of
from ropewalk.diagnosis.facts import GROUP, Found, PlacedFact
from ropewalk.diagnosis.rules import decide, fails, length_of, reasons, works

TRAINED, TARGET = 1000, 4000


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
        "near": found(16, 20), "half": Half(None, 2000, None), "loss": Mean(0.0, -0.01, 0.01),
        "cost": None if method == "plain" else Mean(0.0, -0.01, 0.01), "within": 3.0,
    }  # fmt: skip
    fields["beyond"] = None if count is None else found(count)
    return Standing(method=method, **{**fields, **changes})


def evidence(*standings: Standing, control: int = 40, frequencies: float = -2.0) -> Evidence:
    rivals = {
        (one.method, other.method): _apart(one.beyond, other.beyond)
        for one in standings
        for other in standings
        if one is not other and one.beyond is not None and other.beyond is not None
    }
    return Evidence(
        windows=1, standings={one.method: one for one in standings}, control=found(control), frequencies=frequencies,
        rivals=rivals,
    )  # fmt: skip


def _apart(one: Found, other: Found) -> Mean:
    mean = one.share - other.share
    half = 2.8 * math.sqrt(max(0.1, mean * (1 - mean)) / one.asked)
    return Mean(mean, mean - half, mean + half)


def answer(*standings: Standing, **facts: object):  # type: ignore[no-untyped-def]
    settings = {name: facts.pop(name) for name in ("runs", "log_vocabulary") if name in facts}
    return decide(evidence(*standings, **facts), trained=TRAINED, target=TARGET, **settings)


LOSES = Mean(0.3, 0.2, 0.4)
BROKEN = standing("plain", None, broken=True)
FAILS = standing("yarn", 47, loss=LOSES)
SHORT = standing("plain", 30, half=Half(900, 0, 1100))  # finds facts, but not beyond its trained length
NO_BETTER = [standing("yarn", 10, beyond=Found.of([answers] * groups, confidence=0.995))
             for answers, groups in (([1, 0, 3, 2], 2), ([1, 0, 0, 0], 24))]  # fmt: skip


@pytest.mark.parametrize(
    ("standings", "anywhere", "engine", "why"),
    [
        ((standing("plain", 40), standing("yarn", 42)), "keep None", "keep None", None),
        ((standing("plain", 21), standing("yarn", 47)), "extend yarn", "extend yarn", None),
        ((standing("plain", 11), standing("yarn", 30)), "extend yarn", "extend yarn", None),
        ((standing("plain", 11), standing("yarn", 30), standing("dca", 33)), "extend yarn dca", "extend yarn", None),
        ((standing("plain", 11), standing("yarn", 21), standing("dca", 47)), "extend dca", "undecided None", None),
        ((standing("plain", 11), standing("yarn", 24), standing("dca", 47)), "extend dca", "extend yarn", None),
        ((BROKEN, FAILS, standing("dca", 47)), "extend dca", "cut None",
         "plain: the loss rises by more than a nat; yarn: the loss beyond is 0.30 nats above crop's (at most 0.10)."),
        ((BROKEN, standing("dca", 47)), "extend dca", "undecided None",
         "plain: the loss rises by more than a nat. No method that runs in vllm was measured."),
        ((BROKEN,), "cut None", "cut None",
         "plain: the loss rises by more than a nat. No method that runs in vllm was measured."),
        ((BROKEN, NO_BETTER[0]), "undecided None", "undecided None", None),  # too few facts
        ((BROKEN, NO_BETTER[1]), "cut None", "cut None", None),
        ((standing("plain", 13), FAILS), "undecided None", "undecided None", None),
        ((BROKEN, FAILS, standing("dca", 14)), "undecided None", "cut None", None),
        ((standing("plain", 40), standing("dca", 42)), "keep None", "keep None", None),
        ((SHORT, standing("yarn", 30)), "undecided None", "undecided None",
         "plain: finds 30 of 48 facts (chance 12); yarn: finds 30 of 48 facts (chance 12)."),
        ((SHORT, standing("yarn", 31), standing("dca", 30)), "extend yarn", "extend yarn", None),
        ((dataclasses.replace(SHORT, loss=LOSES), standing("yarn", 29)), "extend yarn", "extend yarn", None),
    ],
)  # fmt: skip
def test_each_place_has_its_answer(
    standings: tuple[Standing, ...], anywhere: str, engine: str, why: str | None
) -> None:
    """Action, method and equals. A method that runs in Python only is no reason for "cut"; no method is named that is
    not better than plain; one that a config expresses is preferred among equals.
    """
    for runs, expected in (({}, anywhere), ({"dca": False}, engine)):
        decision = answer(*standings, runs=runs)
        assert f"{decision.action} {decision.method}" + " dca" * ("dca" in decision.equal) == expected
        assert decision.action != "extend" or decision.length == TARGET
    said = reasons(decision, evidence(*standings), trained=TRAINED, target=TARGET, log_vocabulary=10.0, place="vllm")
    assert why is None or " ".join(said) == why


@pytest.mark.parametrize(
    "changes",
    [{"loss": Mean(0.3, 0.2, 0.4)}, {"cost": Mean(0.2, 0.1, 0.3)}, {"broken": True, "beyond": None}],
    ids=["loss", "cost", "broken"],
)
def test_a_guard_excludes_a_method(changes: dict[str, object]) -> None:
    one = dataclasses.replace(standing("yarn", 47), **changes)
    assert not works(one)
    assert fails(one)
    assert answer(BROKEN, one).action == "cut"


def test_guards_hold_by_their_means() -> None:
    assert works(standing("yarn", 30, loss=Mean(0.09, -0.1, 0.3), cost=Mean(0.04, -0.1, 0.2)))
    assert not works(standing("yarn", 30, loss=Mean(0.11, -0.1, 0.3)))
    assert not fails(standing("yarn", 30, loss=Mean(0.11, -0.1, 0.3)))


def test_keep_is_open_until_a_rival_is_excluded() -> None:
    """A method that may find more by 15 points than plain leaves the answer open."""
    assert answer(standing("plain", 11), standing("yarn", 30)).settled
    assert not answer(standing("plain", 30), standing("yarn", 34)).settled
    alike = evidence(standing("plain", 40), standing("yarn", 40))
    alike = dataclasses.replace(alike, rivals={("yarn", "plain"): Mean(0.0, -0.05, 0.05)})
    assert decide(alike, trained=TRAINED, target=TARGET).settled


def test_unfit() -> None:
    good = (standing("plain", 40), standing("yarn", 40))
    assert answer(*good, frequencies=0.1).reason == "text"
    assert answer(standing("plain", 40, within=10.7), log_vocabulary=10.8).reason == "weights"
    blind = dataclasses.replace(evidence(*good), control=Found.of([[1, 0, 3, 2]] * 12, confidence=0.995))
    assert decide(blind, trained=TRAINED, target=TARGET).reason == "facts"
    unknown = dataclasses.replace(evidence(*good), control=Found.of([[0, 1, 0, 0]], confidence=0.995))
    assert decide(unknown, trained=TRAINED, target=TARGET).action == "undecided"


def test_within_the_trained_length() -> None:
    decision = decide(evidence(standing("plain", None)), trained=TARGET, target=TARGET)
    assert (decision.action, decision.length) == ("keep", TARGET)


def test_the_length_is_rounded_down() -> None:
    half = standing("yarn", 30, half=Half(3190, 2900, 3400))
    assert length_of(half, 1000, 4000) == 3125
    assert length_of(standing("yarn", 30, half=Half(700, 0, 900)), 1000, 4000) == 1000
    assert answer(standing("plain", 11), standing("yarn", 30, half=Half(900, 0, 1100))).action != "extend"


# --- evidence

TRAINED_EVIDENCE, TARGET_EVIDENCE = 64, 256
BLOCKS = tuple((start, start + 8) for start in range(0, TARGET_EVIDENCE, 8))
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


def reading(loss: float, right: list[bool], *, beyond: float = 0.0, control: int = 0) -> WindowReading:
    """A reading whose answers are right where `right` says; wrong answers choose the next value."""
    rows = []
    for number, hit in enumerate(right):
        chosen = (number % GROUP + (0 if hit else 1)) % GROUP
        rows.append(tuple(0.0 if choice == chosen else -5.0 for choice in range(GROUP)))
    losses = tuple(loss + (beyond if start >= TRAINED_EVIDENCE else 0.0) for start, _ in BLOCKS)
    known = {number: rows[number] for number in range(control)}
    return WindowReading(loss=losses, answers=tuple(rows), control=known, seconds=1.0)


def collected(readings: dict[str, list[WindowReading]], count: int = 1) -> object:
    return gather(
        [window() for _ in range(count)], {name: tuple(of) for name, of in readings.items()}, BLOCKS,
        trained_length=TRAINED_EVIDENCE, target=TARGET_EVIDENCE, asked_at=250,
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
    less = found.rivals["plain", "yarn"]
    assert (more.value, less.value) == (1.0, -1.0)
    assert 0 < more.low < 1 < more.high < 2
    assert (less.low, less.high) == pytest.approx((-more.high, -more.low))


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
    for _ in range(15):
        share = 0.25 + (level - 0.25) / (1 + np.exp((distances - 600) / 40))
        found = Half.fit(distances.tolist(), (random.random(len(distances)) < share).tolist(), 1000)
        errors.append(abs(found.tokens - 600))
        covered += found.low <= 600 <= (found.high or 1000)
    assert np.median(errors) < 60
    assert covered >= 13


def test_half_at_the_ends() -> None:
    distances = list(range(100, 1000, 30))
    assert Half.fit(distances, [True] * len(distances), 1000).tokens is None
    assert Half.fit(distances, [False] * len(distances), 1000).low == 0
    assert Half.fit(distances[:8], [True] * 8, 1000) is None
