"""The verdict's rules, on tables made by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ropewalk.diagnosis.rules import Evidence, LossTable, apply_rules
from ropewalk.diagnosis.wording import RunFacts, decide
from ropewalk.errors import RopeError
from ropewalk.statistics import moderated_interval
from tests.diagnosis.made_tables import STRETCHES, WITHIN, MadeCopies, made

YES, NO = MadeCopies({"yarn": 1.0, "plain": -1.0}), MadeCopies({"yarn": -1.0, "ntk": -1.0, "plain": -1.0})
UNSURE, MUTE = MadeCopies({"yarn": 0.1}), MadeCopies({"yarn": 1.0}, can_copy=False)
BROKEN = {"plain": 1.5}


@pytest.mark.parametrize(
    ("table", "copies", "action", "method", "length"),
    [
        # 1. fit
        (made({**BROKEN, "yarn": -0.1}, fit=1.0), YES, "unfit", None, None),
        (made({**BROKEN, "yarn": -0.1}, fit=0.001), YES, "unfit", None, None),
        (made({**BROKEN, "yarn": -0.1}, fit=-0.001), YES, "undecided", None, None),
        (made({**BROKEN, "yarn": -0.1}, fit=-0.01), YES, "extend", "yarn", 1024),
        # 2. keep: by 0.02 nats, in every stretch or up to one
        (made({"plain": -0.1, "yarn": -0.3}), YES, "keep", None, 1024),
        (made({"plain": 0.012, "yarn": 0.5}), NO, "keep", None, 1024),
        (made({"plain": 0.018, "yarn": 0.5}), NO, "undecided", None, None),
        (made({"plain": (0.0, 0.0, 0.5), "yarn": 0.5}, windows=2), NO, "keep", None, 768),
        (
            made({"plain": (0.0, 0.5, 0.0), "yarn": 0.5}, windows=2),
            NO,
            "keep",
            None,
            512,
        ),
        (made({"plain": (0.0, 0.5, 0.5), "yarn": (-0.1, -0.1, 0.5)}, windows=2), NO, "extend", "yarn", 768),
        (made({"plain": (0.0, 0.5, 0.5), "yarn": (-0.1, 0.5, 0.5)}, windows=2), NO, "keep", None, 512),
        # 3. extend by loss: stretch by stretch
        (made({**BROKEN, "yarn": -0.01}), None, "extend", "yarn", 1024),
        (made({**BROKEN, "yarn": -0.01}), NO, "extend", "yarn", 1024),
        (made({**BROKEN, "yarn": (-0.1, -0.1, 0.5)}, windows=2), None, "extend", "yarn", 768),
        (made({**BROKEN, "yarn": (-0.1, 0.5, -0.1)}, windows=2), None, "extend", "yarn", 512),
        (
            made({**BROKEN, "yarn": (0.5, -0.9, -0.9)}, windows=2),
            YES,
            "cut",
            None,
            None,
        ),
        (made({**BROKEN, "yarn": -0.3, "ntk": -0.32}), None, "extend", "ntk", 1024),
        (
            made({**BROKEN, "yarn": -0.1, "ntk": (-0.9, -0.9, 0.5)}, windows=2),
            None,
            "extend",
            "yarn",
            1024,
        ),
        # 3. extend by copies: up to 0.10 worse than crop
        (made({**BROKEN, "yarn": 0.09}), YES, "extend", "yarn", 1024),
        (made({**BROKEN, "yarn": 0.099}), YES, "undecided", None, None),
        (made({**BROKEN, "yarn": 0.12}), YES, "cut", None, None),
        (made({**BROKEN, "yarn": 0.05}), MadeCopies({"yarn": (1.0, 1.0, -1.0)}), "extend", "yarn", 768),
        (made({**BROKEN, "yarn": (0.05, 0.05, 0.3)}, windows=2), YES, "extend", "yarn", 768),
        (made({**BROKEN, "yarn": 0.05}), MUTE, "undecided", None, None),
        # what it costs within: 0.05 by the mean, 0.10 by the end
        (made({**BROKEN, "yarn": -0.1}, within={"yarn": 0.049}), YES, "extend", "yarn", 1024),
        (made({**BROKEN, "yarn": -0.1}, within={"yarn": 0.052}), YES, "undecided", None, None),
        (made({**BROKEN, "yarn": -0.1}, within={"yarn": 0.2}), YES, "cut", None, None),
        (made({**BROKEN, "yarn": -0.9}, within={"yarn": 0.04}, spread_within=0.02), YES, "extend", "yarn", 1024),
        (made({**BROKEN, "yarn": -0.9}, within={"yarn": 0.04}, spread_within=0.03), YES, "undecided", None, None),
        (made({**BROKEN, "yarn": -0.1, "ntk": -0.3}, within={"ntk": 0.2}), YES, "extend", "yarn", 1024),
        # one that is open may be far better: nothing is chosen yet; a little better: chosen
        (made({**BROKEN, "yarn": -0.1, "ntk": -0.3}, within={"ntk": 0.052}), YES, "undecided", None, None),
        (made({**BROKEN, "yarn": -0.1, "ntk": -0.14}, within={"ntk": 0.052}), YES, "extend", "yarn", 1024),
        # 4. cut: only if each is refuted; what is open or not measured is never "no"
        (made({**BROKEN, "yarn": 0.05}), NO, "cut", None, None),
        (made({**BROKEN, "yarn": 0.05}), None, "undecided", None, None),
        (made({**BROKEN, "yarn": 0.05}), UNSURE, "undecided", None, None),
        (made({**BROKEN, "yarn": 0.05}), MadeCopies({"plain": -1.0}), "undecided", None, None),
        (made({**BROKEN, "yarn": 0.05, "ntk": 0.05}), NO, "cut", None, None),
        (made({**BROKEN, "yarn": 0.05, "ntk": 0.05}), MadeCopies({"yarn": -1.0}), "undecided", None, None),
        (made({**BROKEN, "yarn": -0.019}, spread={"yarn": 0.02}), NO, "undecided", None, None),
        (made({"plain": 0.1, "yarn": 0.3}, spread={"plain": 0.5}), NO, "undecided", None, None),
        (made({"plain": 0.5}), NO, "cut", None, None),
    ],
)
def test_each_action_and_its_bounds(
    table: LossTable, copies: MadeCopies | None, action: str, method: str | None, length: int | None
) -> None:
    """One case on each side of each bound."""
    found = decide(table, copies)
    assert (found.action, found.method, found.length) == (action, method, length)
    headline = found.headline
    if length is not None:
        assert f"to {length:,} tokens" in headline
        assert ("1,024 is not shown" in headline) == (length < 1024)
    if method is not None:
        assert headline.startswith(f"Extend with {method} to")


@pytest.mark.parametrize("copies", [None, NO])
def test_one_window_decides_a_clear_difference(copies: MadeCopies | None) -> None:
    """Blocks that differ by 0.3 nats leave no doubt of 1.5; of 0.1 they do."""
    clear = decide(made({"plain": 3.0, "yarn": -1.5}, spread=0.3), copies)
    assert (clear.action, clear.method, clear.windows) == ("extend", "yarn", 1)
    close = decide(made({"plain": 3.0, "yarn": -0.1}, spread=0.3), copies)
    assert (close.action, close.next is not None) == ("undecided", True)


def test_at_the_means_intervals_have_no_width() -> None:
    """What noise leaves open is then decided."""
    table = made({**BROKEN, "yarn": 0.05}, spread=0.8)
    evidence = Evidence(table, MadeCopies({"yarn": 0.1}))
    assert apply_rules(evidence).action == "undecided"
    certain = dataclasses.replace(evidence, at_means=True)
    decision = apply_rules(certain)
    assert (decision.action, decision.method, decision.stretches) == ("extend", "yarn", 3)
    assert certain.fit.interval == (certain.fit.difference, certain.fit.difference)
    assert apply_rules(dataclasses.replace(certain, copies=MadeCopies({"yarn": -0.1}))).action == "cut"


def test_a_method_with_fewer_windows_is_compared_on_its_own() -> None:
    """The windows that it lacks are harder by two nats: neither its differences nor its rank move."""
    more = {"windows": 4, "hardness": (0.0, 0.0, 2.0, 2.0)}
    whole, fewer = (
        made({**BROKEN, "yarn": -0.3, "ntk": -0.1}, counts=counts, **more)  # type: ignore[arg-type]
        for counts in ({}, {"ntk": 2})
    )
    one, other = Evidence(whole), Evidence(fewer)
    assert other.against_crop("ntk").difference == pytest.approx(-0.1)
    assert other.mean_beyond("ntk") == pytest.approx(one.mean_beyond("ntk"))
    assert one.methods == other.methods == ("yarn", "ntk")
    assert apply_rules(other).method == "yarn"


def test_intervals_are_the_moderated_ones_at_98_percent() -> None:
    """Of the paired difference in the blocks of its region, between windows."""
    random = np.random.default_rng(0)
    table = made({"plain": 1.0, "yarn": -0.1}, windows=4)
    noisy = {name: (np.array(rows) + random.normal(0, 0.1, np.shape(rows))) for name, rows in table.losses.items()}
    table = dataclasses.replace(table, losses={name: rows.tolist() for name, rows in noisy.items()})
    found = Evidence(table).reads("yarn", 1)
    apart, weights = (noisy["yarn"] - noisy["crop"])[:, WITHIN:], np.array(table.weights[WITHIN:])
    mean, interval = moderated_interval(apart, weights=weights, part=slice(8, 16), confidence=0.98)
    assert (found.difference, found.interval, found.where) == (mean, interval, "512 to 768")
    cost = Evidence(table).cost("yarn")
    inside = (noisy["yarn"] - noisy["plain"])[:, :WITHIN]
    mean, interval = moderated_interval(inside, weights=table.weights[:WITHIN], confidence=0.98)
    assert cost.difference == pytest.approx(mean)
    assert cost.interval == pytest.approx(interval)


APPLIED: dict[str, Any] = {"config_of": lambda method, length: None}


def test_an_engine_is_not_told_to_run_what_it_cannot() -> None:
    """A better method in attention stands beside the verdict; where the engine runs it, it is the verdict."""
    table = made({**BROKEN, "yarn": -0.1, "dca": -0.5})
    runs = frozenset({"plain", "crop", "yarn"})
    found = decide(table, YES, RunFacts(engine="vllm", runs=runs, **APPLIED))
    assert (found.action, found.method, found.engine) == ("extend", "yarn", "vllm")
    assert found.beside is not None
    assert (found.beside.method, found.beside.length) == ("dca", 1024)
    assert found.beside.sentence == "dca has a loss that is lower by 0.400 nats per token (not in vllm)."
    assert found.beside.call == 'rw.attach(model, "dca", target=1024)'
    alone = decide(table, YES, RunFacts(engine="python", runs=runs | {"dca"}, **APPLIED))
    assert (alone.method, alone.beside) == ("dca", None)
    only = decide(made({**BROKEN, "dca": -0.5}), YES, RunFacts(engine="vllm", runs=runs, **APPLIED))
    assert (only.action, only.method) == ("cut", None)
    assert "no method that this engine runs was measured" in only.headline
    assert only.beside is not None
    assert only.beside.sentence.startswith("dca reaches 1,024 tokens")
    worse = decide(made({**BROKEN, "yarn": -0.5, "dca": -0.1}), YES, RunFacts(engine="vllm", runs=runs, **APPLIED))
    assert worse.beside is None


def test_reach_is_the_last_stretch_that_is_shown() -> None:
    """Of the method that is recommended, else of plain; unknown of a model that is not fit."""
    assert decide(made({**BROKEN, "yarn": (-0.1, 0.05, 0.3)}, windows=2), NO).reach_loss == 768
    assert decide(made({"plain": (0.0, 0.5, 0.0), "yarn": 0.5}, windows=2), NO).reach_loss == 512
    assert decide(made({**BROKEN, "yarn": 0.5}), NO).reach_loss == 256
    assert decide(made(BROKEN, fit=1.0), NO).reach_loss is None


def test_within_the_trained_length_nothing_is_extended() -> None:
    """A model that is fit is kept, and needs no crop."""
    table = LossTable(
        trained=512, target=256, losses={"plain": [[3.0, 3.1, 2.9, 3.0]]}, frequencies=[[6.0, 6.1, 6.0, 6.1]],
        weights=[63, 64, 64, 64], within=4, texts=(0,),
    )  # fmt: skip
    found = decide(table)
    assert (found.action, found.length, found.reach_loss) == ("keep", 256, 256)
    assert "256 tokens lie within its trained length of 512" in found.headline
    assert decide(dataclasses.replace(table, frequencies=[[1.0, 1.1, 1.0, 1.1]])).action == "unfit"


def test_without_crop_nothing_is_decided() -> None:
    """A model that is trained to one token has none."""
    found = decide(made({**BROKEN, "yarn": -0.1}, crop=False))
    assert (found.action, found.next) == ("undecided", None)
    assert "crop was not measured" in found.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": {"yarn": [[3.0] * 32]}},
        {"losses": {"plain": [[3.0] * 32], "yarn": [[3.0] * 32] * 2}},
        {"losses": {"plain": [[3.0] * 31]}},
        {"losses": {"plain": []}},
        {"frequencies": []},
    ],
)
def test_numbers_that_do_not_pair_are_refused(changes: dict[str, object]) -> None:
    """Without plain, or with other windows or blocks, nothing can be paired."""
    with pytest.raises(RopeError, match="every method needs one loss for each block of its windows"):
        dataclasses.replace(made(BROKEN), **changes)  # type: ignore[arg-type]


def test_stretches_are_those_of_the_table() -> None:
    """The positions that a comparison names."""
    evidence = Evidence(made({**BROKEN, "yarn": -0.1}), YES)
    assert [evidence.reads("yarn", number).where for number in range(len(STRETCHES))] == [
        "256 to 512", "512 to 768", "768 to 1,024"]  # fmt: skip
    copied = evidence.copied("yarn", 1)
    assert copied is not None
    assert (copied.where, copied.difference, copied.result) == ("512 to 768 tokens before", -1.0, "shown")
