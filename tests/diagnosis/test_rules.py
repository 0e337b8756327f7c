"""The rules: which evidence gives which answer."""

from __future__ import annotations

import dataclasses
import math

import pytest

from ropewalk.diagnosis.evidence import Evidence, Half, Mean, Standing
from ropewalk.diagnosis.facts import Found
from ropewalk.diagnosis.rules import decide, fails, length_of, works

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
        "cost": None if method == "plain" else Mean(0.0, -0.01, 0.01), "within": 3.0, "windows": 1,
    }  # fmt: skip
    beyond = None if count is None else found(count)
    return Standing(method=method, beyond=beyond, **{**fields, **changes})


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


def test_keep() -> None:
    assert answer(standing("plain", 40), standing("yarn", 42)).action == "keep"


def test_plain_finds_a_little_and_another_method_much_more() -> None:
    decision = answer(standing("plain", 21), standing("yarn", 47))
    assert (decision.action, decision.method) == ("extend", "yarn")


def test_extend() -> None:
    decision = answer(standing("plain", 11), standing("yarn", 30))
    assert (decision.action, decision.method, decision.length, decision.settled) == ("extend", "yarn", TARGET, True)


def test_a_method_of_a_config_comes_first_among_equals() -> None:
    decision = answer(standing("plain", 11), standing("yarn", 30), standing("dca", 33))
    assert (decision.method, decision.equal) == ("yarn", ("dca",))
    better = answer(standing("plain", 11), standing("yarn", 21), standing("dca", 47))
    assert (better.method, better.equal) == ("dca", ())


def test_only_what_the_engine_runs_is_recommended() -> None:
    decision = answer(standing("plain", 11), standing("yarn", 24), standing("dca", 47), runs={"dca": False})
    assert (decision.method, decision.better) == ("yarn", "dca")
    alone = answer(standing("plain", 11), standing("dca", 47), runs={"dca": False})
    assert (alone.action, alone.better) == ("undecided", "dca") or alone.action == "cut"


@pytest.mark.parametrize(
    "changes",
    [{"loss": Mean(0.3, 0.2, 0.4)}, {"cost": Mean(0.2, 0.1, 0.3)}, {"broken": True, "beyond": None}],
    ids=["loss", "cost", "broken"],
)
def test_a_guard_excludes_a_method(changes: dict[str, object]) -> None:
    one = dataclasses.replace(standing("yarn", 47), **changes)
    assert not works(one)
    assert fails(one)
    assert answer(standing("plain", 11, broken=True), one).action == "cut"


def test_guards_hold_by_their_means() -> None:
    assert works(standing("yarn", 30, loss=Mean(0.09, -0.1, 0.3), cost=Mean(0.04, -0.1, 0.2)))
    assert not works(standing("yarn", 30, loss=Mean(0.11, -0.1, 0.3)))
    assert not fails(standing("yarn", 30, loss=Mean(0.11, -0.1, 0.3)))


def test_cut_needs_enough_facts() -> None:
    few = Found.of([[1, 0, 3, 2]] * 2, confidence=0.995)
    one = dataclasses.replace(standing("yarn", 10), beyond=few)
    assert answer(standing("plain", 11, broken=True), one).action == "undecided"
    many = Found.of([[1, 0, 0, 0]] * 24, confidence=0.995)
    one = dataclasses.replace(standing("yarn", 10), beyond=many)
    assert answer(standing("plain", 11, broken=True), one).action == "cut"


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
