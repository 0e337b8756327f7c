"""The search over a rule's few numbers: the best point, the limit within, halving, resuming, and what is written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from scipy.stats import qmc

import ropewalk as rw
from ropewalk.extend.evaluation import Objective
from ropewalk.extend.numbers import FAMILIES, POPULATION, NumberSpace, number_space
from ropewalk.extend.point_search import SearchResult, search_points
from ropewalk.extend.spaces import OVER, space_named
from ropewalk.methods import METHODS, Reach
from ropewalk.models.positions import Positions
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import NTK, Llama3, YaRN
from tests.diagnosis.models import tiny_decoder
from tests.extend.material import Shown

TRAINED, TARGET = 64, 256
REACH = Reach(TRAINED, TARGET)
ROPE = RopeConfig(64, interleaved=True, max_position_embeddings=TRAINED)
BEST = {
    "yarn": {"factor": 6.0, "beta_fast": 12.0, "beta_slow": 0.5},
    "yarn-attention": {"factor": 6.0, "beta_fast": 12.0, "beta_slow": 0.5, "attention_factor": 1.2},
    "ntk": {"factor": 9.0},
    "llama3": {"factor": 6.0, "low_freq_factor": 0.5, "high_freq_factor": 12.0},
}
STARTS = ["plain", "pi", "ntk", "yarn", "llama3"]


def reader() -> DecoderReader:
    """A small model with 32 pairs."""
    return DecoderReader(tiny_decoder(ROPE, head_dim=64, hidden_size=64, num_attention_heads=1, num_key_value_heads=1))


READER = reader()


def scaling_of(model: Reader) -> Any:
    """The rule that a candidate's model carries."""
    rope = model.positions.ropes[0]
    assert rope is not None
    return rope.scaling


def off(model: Reader, best: dict[str, float], like: type) -> float:
    """How far the rule's numbers are from the best ones, in logarithms; rules of another kind are at 9."""
    rule = scaling_of(model)
    if type(rule) is not like:
        return 9.0
    given = {key: getattr(rule, key) or 0.1 * math.log(rule.factor) + 1 for key in best}
    return sum(math.log(given[key] / best[key]) ** 2 for key in best)


KINDS = {"yarn": YaRN, "yarn-attention": YaRN, "ntk": NTK, "llama3": Llama3}


def run(over: str = "yarn", *, items: int = 1, within: Callable[[Reader, int], float] | None = None,
        cost: Callable[[Reader, int], float] | None = None, **more: Any) -> SearchResult:  # fmt: skip
    """A search in the small model, by default for BEST."""
    space = number_space(over, READER.positions, REACH)
    objective = Objective(
        name=more.pop("name", "toy"),
        items=items,
        cost=cost or (lambda model, item: off(model, BEST[over], KINDS[over]) + 0.01 * item),
        within=within,
        windows=0 if within is None else items,
    )
    return search_points(READER, space, objective, **{"budget": 5 + 6 * POPULATION, **more})


def numbers(point: Any) -> dict[str, float]:
    """The numbers of a point."""
    return dict(point.numbers)


# --- the best point is found


@pytest.mark.parametrize("over", FAMILIES)
def test_a_known_best_point_is_found(over: str) -> None:
    """Each number within a few percent after six generations, where the published numbers are far from it."""
    result = run(over)
    assert result.best_start.loss > 0.3
    for key, value in BEST[over].items():
        assert numbers(result.best.point)[key] == pytest.approx(value, rel=0.25 if over == "yarn-attention" else 0.15)
    assert result.found_better


def test_without_smaller_boxes_it_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds it is the zoom: as many draws from the whole box stay further away."""
    found = run().best.loss
    monkeypatch.setattr("ropewalk.extend.numbers.LatinHypercube.tell", lambda *_: None)
    assert run().best.loss > 5 * found


def test_a_start_of_another_rule_may_win() -> None:
    """Then nothing better is found, and the published method is returned as it is."""
    result = run(cost=lambda model, _: 0.0 if type(scaling_of(model)) is NTK else 1.0, budget=5 + POPULATION)
    assert (result.best.point.name, result.found_better) == ("ntk", False)
    assert result.apply(READER).positions == METHODS["ntk"].positions(READER.positions, REACH)


@pytest.mark.parametrize("over", FAMILIES)
def test_points_are_a_latin_hypercube(over: str) -> None:
    """By scipy's own measure no worse spread than its sampler; each number has one point in each part of its range."""
    space = number_space(over, READER.positions, REACH)
    start = space.starts[3]
    drawn = np.array(space.sampler(start, seed=3).ask())
    low, high = np.log(np.array(list(space.ranges.values()))).T
    places = (drawn - low) / (high - low)
    assert places.shape == (POPULATION, len(low))
    for column in places.T:
        assert sorted((column * POPULATION).astype(int)) == list(range(POPULATION))
    theirs = [
        qmc.discrepancy(qmc.LatinHypercube(len(low), rng=np.random.default_rng(seed)).random(POPULATION))
        for seed in range(20)
    ]
    assert qmc.discrepancy(places) < 1.5 * max(theirs)
    assert np.array_equal(space.sampler(start, seed=3).ask(), drawn)
    assert not np.array_equal(space.sampler(start, seed=4).ask(), drawn)


# --- the limit within the trained length


def slowed(model: Reader, _: int) -> float:
    """A loss within that grows with the factor: 0.1 nats for each doubling."""
    rule = scaling_of(model)
    return 3.0 if rule is None else 3.0 + 0.1 * math.log2(rule.factor)


def test_the_limit_is_kept() -> None:
    """The cheapest point costs 0.26 nats within: what is found keeps 0.15, and costs more than without a limit."""
    free, limited = run(within=slowed, limit=math.inf), run(within=slowed, limit=0.15)
    assert numbers(free.best.point)["factor"] == pytest.approx(6.0, rel=0.15)
    assert limited.best.cost_within <= 0.15
    assert numbers(limited.best.point)["factor"] <= 2**1.5
    assert limited.best.loss > free.best.loss
    assert limited.keeping == ("plain",)
    assert free.best.cost_within == 0.0  # not measured


def test_a_point_beyond_the_limit_is_not_read_further() -> None:
    """Its loss within is looked at first, and its own cost never; plain is held against itself."""
    asked: list[Any] = []

    def cost(model: Reader, item: int) -> float:
        asked.append(scaling_of(model))
        return 1.0

    result = run(within=slowed, cost=cost, limit=0.15, budget=5 + POPULATION)
    assert all(rule is None or rule.factor <= 2**1.5 for rule in asked)
    assert len(asked) == sum(line.cost_within <= 0.15 for line in result.evaluations) < len(result.evaluations)
    assert all(not line.losses for line in result.evaluations if line.cost_within > 0.15)


def test_where_every_method_costs_too_much_plain_is_left() -> None:
    """It is held against itself, and so always keeps the limit."""
    result = run(within=lambda model, _: 0.0 if scaling_of(model) is None else 1.0, budget=5 + POPULATION, items=2)
    assert result.best.point.name == result.best_start.point.name == "plain"
    assert len(result.best.losses) == 2


# --- successive halving


def test_halving_reads_poor_points_less() -> None:
    """Of 16 points all read the first item, 8 the second, 4 the third and fourth, 2 the last: the best among them."""
    result = run(items=5, budget=5 + POPULATION)
    read = [len(line.losses) for line in result.evaluations]
    assert sorted(read[:5]) == [1, 1, 2, 4, 5]
    assert sorted(read[5:]) == [1] * 8 + [2] * 4 + [4] * 2 + [5] * 2
    first = [line.losses[0] for line in result.evaluations[5:]]
    assert result.best.losses[0] == min(first)
    whole = run(items=5, budget=5 + POPULATION, halving=False)
    assert [len(line.losses) for line in whole.evaluations] == [5] * 21
    assert whole.best.point == result.best.point


def test_a_point_left_early_cannot_win() -> None:
    """However low its mean over the little that it read; and no mean over fewer items is called the best."""
    seen: dict[Any, int] = {}

    def cost(model: Reader, item: int) -> float:
        number = seen.setdefault(scaling_of(model), len(seen))
        return float(number) if item == 0 else 100.0

    result = run(items=4, cost=cost, budget=5 + POPULATION)
    assert len(result.best.losses) == 4
    assert min(line.loss for line in result.evaluations) < result.best.loss
    assert result.best_so_far[-1] == result.best.loss


def test_a_point_that_goes_beyond_the_limit_later_makes_room() -> None:
    """The next best takes its place, so that each round has as many points that keep the limit."""
    order: dict[Any, int] = {}

    def cost(model: Reader, item: int) -> float:
        return float(order.setdefault(scaling_of(model), len(order)))

    def within(model: Reader, index: int) -> float:
        return 1.0 if index == 1 and order.get(scaling_of(model), 0) in (1, 2, 3) else 0.0

    result = run(items=2, cost=cost, within=within, budget=5)
    assert [len(line.within) for line in result.evaluations] == [2, 2, 2, 2, 2]
    assert [len(line.losses) for line in result.evaluations] == [2, 1, 1, 1, 2]
    assert result.keeping == ("plain", "llama3")


# --- stopped and resumed


class _Stop(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("stop_at", [0, 3, 7, 12, 21, 33, 50])
def test_a_stopped_search_resumes_to_the_same(tmp_path: Path, stop_at: int) -> None:
    """Stopped in any round: no item is read twice, and all points, losses and the best are the same."""
    calls = 0

    def toy(model: Reader, item: int) -> float:
        return off(model, BEST["yarn"], YaRN) + 0.01 * item

    def stopping(model: Reader, item: int) -> float:
        nonlocal calls
        if calls == stop_at:
            raise _Stop
        calls += 1
        return toy(model, item)

    def counted(model: Reader, item: int) -> float:
        nonlocal calls
        calls += 1
        return toy(model, item)

    how: dict[str, Any] = {"items": 3, "within": slowed, "limit": 0.3, "budget": 5 + 2 * POPULATION}
    with pytest.raises(_Stop):
        run(cost=stopping, folder=tmp_path, **how)
    kept = calls
    second = run(cost=counted, folder=tmp_path, resume=True, **how)
    calls, resumed = 0, calls
    whole = run(cost=counted, **how)
    assert calls - kept <= resumed - kept <= calls - kept + 2  # of the evaluation that was cut short
    same = [dataclasses.replace(line, seconds=0.0) for line in whole.evaluations]
    assert [dataclasses.replace(line, seconds=0.0) for line in second.evaluations] == same
    assert second.best.point == whole.best.point


def test_a_finished_search_can_be_prolonged(tmp_path: Path) -> None:
    """Half a generation and then more is the same as more at once; a finished one reads nothing."""
    how: dict[str, Any] = {"items": 3, "folder": tmp_path, "resume": True}
    run(budget=12, **how)
    longer = run(budget=30, **how)
    assert [line.losses for line in longer.evaluations] == [line.losses for line in run(items=3, budget=30).evaluations]
    shown = Shown()
    run(budget=30, progress=shown, **how)
    assert shown.begun == []
    run(budget=30, halving=False, progress=shown, **how)
    assert len(shown.begun) == 30


def test_a_kept_point_is_the_one_asked_for(tmp_path: Path) -> None:
    """Another point's losses are not taken, nor what is no point."""
    run(budget=8, folder=tmp_path)
    (path,) = tmp_path.glob("*/results/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for change, message in (
        ({"numbers": {"factor": 3.0, "beta_fast": 8.0, "beta_slow": 1.0}}, "another point than this search asks for"),
        ({"numbers": {"factor": -1.0}}, "numbers above zero"),
        ({"rule": "spiral"}, "numbers above zero"),
        ({"numbers": {"speed": 1.0}}, "numbers above zero"),
    ):
        rows = [*lines[:6], {**lines[6], "result": {**lines[6]["result"], **change}}, *lines[7:]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(rw.RopeError, match=message):
            run(budget=8, folder=tmp_path, resume=True)


# --- where it starts, and what is written


def test_starts_are_the_published_methods() -> None:
    """With the frequencies and the attention factor that they have as methods."""
    space = number_space("yarn", READER.positions, REACH)
    assert [start.name for start in space.starts] == STARTS
    for start in space.starts:
        theirs = METHODS[start.name].rope(ROPE, REACH)
        for length in (8, TRAINED, TARGET):
            assert columns_of(space.rope(start), length) == columns_of(theirs, length)
            assert attention_factor_of(space.rope(start), length) == attention_factor_of(theirs, length)
        assert space.read(json.loads(json.dumps(start.to_json()))) == start


def test_points_lie_within_their_ranges() -> None:
    """And have numbers of few digits, so that a config can be read."""
    space = number_space("yarn", READER.positions, REACH)
    far = space.point([99.0, -99.0, math.log(1.23456789)], "far")
    assert numbers(far) == {"factor": 16.0, "beta_fast": 4.0, "beta_slow": 1.235}


def test_a_method_that_does_not_apply_is_left_out() -> None:
    """One pair alone leaves NTK nothing."""
    rope = RopeConfig(8, interleaved=False, rotary_dim=2, max_position_embeddings=TRAINED)
    space = number_space("yarn", Positions((rope,), (None,), (None,)), REACH)
    assert [start.name for start in space.starts] == ["plain", "pi", "yarn", "llama3"]
    assert space.left_out[0][0] == "ntk"


def test_unscaled_first_tokens_are_kept() -> None:
    """Every point leaves them as they are, as under a method."""
    reach = Reach(TRAINED, TARGET, unscaled_tokens=4)
    space = number_space("yarn", READER.positions, reach)
    yarn = space.starts[3]
    assert space.rope(yarn) == METHODS["yarn"].rope(ROPE, reach)


@pytest.mark.rejects
def test_unknown_spaces_are_refused() -> None:
    """With the known names; an order of divisors belongs to factors."""
    assert OVER == ("yarn", "yarn-attention", "ntk", "llama3", "factors", "dpe")
    with pytest.raises(rw.RopeError, match="--over names"):
        space_named("longrope", READER.positions, REACH)
    with pytest.raises(rw.RopeError, match="--monotone orders"):
        space_named("yarn", READER.positions, REACH, monotone=True)
    assert isinstance(space_named("yarn", READER.positions, REACH), NumberSpace)


@pytest.mark.parametrize("over", FAMILIES)
def test_transformers_reads_the_found_block(over: str) -> None:
    """An ordinary `rope_parameters` block, not longrope: its frequencies there are the searched ones."""
    point = number_space(over, READER.positions, REACH).point([math.log(value) for value in BEST[over].values()], "x")
    rope = number_space(over, READER.positions, REACH).rope(point)
    block = rope.to_hf()
    assert block["rope_type"] == {"ntk": "default"}.get(over, over.split("-")[0])
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        head_dim=64,
        max_position_embeddings=TARGET,
        rope_parameters=block,
    )
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    assert columns_of(rope, TARGET) == pytest.approx(theirs.inv_freq.double().tolist(), rel=1e-6)
    assert attention_factor_of(rope, TARGET) == pytest.approx(theirs.attention_scaling, rel=1e-6)
