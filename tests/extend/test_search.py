"""The factor search: never worse than its starts, right about its budget, and able to find an optimum."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.extend.factors import Factors
from ropewalk.extend.point_search import text_objective
from ropewalk.families import Trained
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import Proportional, YaRN
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.extend.factor_searches import (
    OPTIMUM,
    REACH,
    TARGET,
    TRAINED,
    WINDOWS,
    extended,
    factors_of,
    points,
    reader,
    run,
    space_of,
    toy,
)

pytest.importorskip("cma")
ANALYTIC = [name for name, method in METHODS.items() if method.scales_frequencies]


def test_a_search_starts_from_the_scaling_that_belongs_to_the_model() -> None:
    """Its points act on top of it: each start is its method, and 1 everywhere is the model as it is."""
    own = dataclasses.replace(ROPE, scaling=YaRN(4.0, 4), max_position_embeddings=16, trained=Trained(True))
    space = space_of(own)
    assert {start.name for start in space.starts} == {"plain", "pi", "ntk", "yarn", "llama3", "resonance"}
    for start in space.starts:
        expected, actual = extended(own, start.name), space.rope(start)
        assert columns_of(actual, TARGET) == pytest.approx(columns_of(expected, TARGET), rel=1e-12)
        assert attention_factor_of(actual, TARGET) == pytest.approx(attention_factor_of(expected, TARGET))
    assert columns_of(space.rope(Factors("none", (1.0,) * 4, 1.0)), TARGET) == pytest.approx(columns_of(own), rel=1e-12)


# --- where it starts


def test_every_analytic_method_is_a_start() -> None:
    """With its frequencies and attention factor at the target; methods that are the same there are one start."""
    rope = dataclasses.replace(ROPE, head_dim=64, rotary_dim=64)
    far = Reach(TRAINED, 4096)
    space = space_of(rope, far, head_dim=64)
    assert [start.name for start in space.starts] == ["plain", *(name for name in ANALYTIC if name != "dynamic")]
    for start in space.starts:
        same = extended(rope, start.name, far)
        ours = space.rope(start)
        assert columns_of(ours, 4096) == pytest.approx(columns_of(same, 4096), rel=1e-14)
        assert columns_of(ours, 1) == columns_of(ours, 4096)
        assert attention_factor_of(ours, 4096) == pytest.approx(attention_factor_of(same, 4096), rel=1e-14)


def test_the_losses_of_the_starts_are_the_methods_own() -> None:
    """On text: the mean loss beyond the trained length of each window, as the doctor measures it."""
    result = run(None, budget=6)
    for line in result.evaluations:
        model = reader(extended(ROPE, line.point.name))
        expected = [model.window_losses(ids)[TRAINED - 1 :].mean() for ids in WINDOWS]
        assert line.losses == pytest.approx(expected, abs=2e-6)


def test_a_scaled_checkpoint_starts_from_its_own_rope_too() -> None:
    """And the other starts are of its unscaled rope."""
    own = YaRN(2.0, TRAINED, attention_factor=1.5)
    space = space_of(dataclasses.replace(ROPE, scaling=own, max_position_embeddings=32))
    assert [start.name for start in space.starts][:2] == ["plain", "as-is"]
    assert space.starts[0].divisors == (1.0,) * 4
    assert space.starts[1].attention_factor == 1.5


def test_layers_that_see_no_further_keep_their_rope() -> None:
    """Short sliding windows and layers without a rope are left alone, unscaled."""
    model = reader((ROPE, None, ROPE), num_hidden_layers=3, sliding_window=(8, None, None))
    result = run(lambda _: [1.0], model=model, budget=8)
    first, second, third = result.apply(model).positions.ropes
    assert (first, second) == (ROPE, None)
    assert third == result.rope
    assert third.trained_length == TRAINED


def test_a_method_that_does_not_apply_is_left_out_and_said() -> None:
    """One pair alone leaves NTK nothing, and no base reaches far: the others are still starts."""
    one = rw.RopeConfig(8, interleaved=False, rotary_dim=2, max_position_embeddings=TRAINED)
    space = space_of(one)
    assert {name for name, _ in space.left_out} >= {"ntk", "dynamic", "abf"}
    assert "pi" in [start.name for start in space.starts]


# --- what it guarantees


def test_never_worse_than_the_best_start() -> None:
    """An objective that punishes every point but the starts, ever more: the best start is returned, as it is."""
    calls = 0

    def adversary(model: Reader) -> list[float]:
        nonlocal calls
        calls += 1
        return [{3: 1.0}.get(calls, 2.0 + 0.1 * calls)]

    result = run(adversary)
    assert result.best == result.best_start == result.evaluations[2]
    assert result.apply(reader()).positions.ropes[0] == result.rope
    assert result.best_so_far[2:] == [1.0] * 38


def test_the_best_is_the_lowest_of_all_evaluations() -> None:
    """Not of the last generation."""
    result = run(lambda model: [toy(model)[0] + np.sin(1e4 * sum(factors_of(model).long_factor))])
    assert result.best.loss == min(line.loss for line in result.evaluations)
    assert result.best_so_far[-1] == result.best.loss
    assert result.best.loss <= result.best_start.loss


@pytest.mark.parametrize("budget", [6, 7, 13, 14, 15, 40])
def test_the_budget_is_respected_exactly(budget: int) -> None:
    """Neither one more, within a generation or between two, nor one fewer."""
    calls = 0

    def counted(model: Reader) -> list[float]:
        nonlocal calls
        calls += 1
        return toy(model)

    result = run(counted, budget=budget)
    assert (calls, len(result.evaluations), result.ended_by) == (budget, budget, "budget")


def test_the_time_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of 2 s each end a search of 21 s after eleven; all starts are evaluated in any case."""
    clock = iter(np.arange(0, 1e4, 2.0))
    monkeypatch.setattr("ropewalk.extend.point_search.time.perf_counter", lambda: float(next(clock)))
    assert (len(run(budget=None, seconds=21).evaluations), run(seconds=21).ended_by) == (11, "time")
    assert len(run(budget=None, seconds=1).evaluations) == len(run(budget=6).evaluations)


def test_a_known_optimum_is_found() -> None:
    """The bowl's bottom within 1e-3 of every logarithm, attention factor included; the starts are far from it."""
    result = run(budget=600)
    assert result.best_start.loss > 0.1
    assert np.log(result.best.point.divisors) == pytest.approx(OPTIMUM, abs=1e-3)
    assert result.best.point.attention_factor == pytest.approx(1.2, rel=1e-3)


def test_a_search_that_has_come_to_rest_begins_anew() -> None:
    """Long after the bottom is reached the budget is still spent, on finite points within the bounds."""
    result = run(budget=2500)
    assert len(result.evaluations) == 2500
    late = [np.abs(np.log(point.divisors) - OPTIMUM).max() for point in points(result)[1500:]]
    assert max(late) > 0.05
    for point in points(result):
        assert min(point.divisors) >= 0.5
        assert max(point.divisors) <= result.space.largest
        assert 0.5 <= point.attention_factor <= 2.0


def test_monotone_divisors() -> None:
    """With LongRoPE's constraint no candidate's divisor falls towards slower pairs, though the optimum's would."""
    falling = OPTIMUM[::-1]
    result = run(lambda model: [float(((np.log(factors_of(model).long_factor) - falling) ** 2).sum())], monotone=True)
    candidates = points(result)[len(result.space.starts) :]
    assert all(list(point.divisors) == sorted(point.divisors) for point in candidates)
    free = run(lambda model: [float(((np.log(factors_of(model).long_factor) - falling) ** 2).sum())])
    assert any(list(point.divisors) != sorted(point.divisors) for point in points(free))


def test_a_point_without_a_number_cannot_win() -> None:
    """NaN and infinity are kept as null and are worse than anything; the search goes on."""
    calls = 0

    def broken(model: Reader) -> list[float]:
        nonlocal calls
        calls += 1
        return [math.nan] if calls % 3 == 0 else toy(model)

    result = run(broken, budget=60)
    assert math.isfinite(result.best.loss)
    assert math.isinf(result.evaluations[2].loss)
    with pytest.raises(rw.RopeError, match="no analytic method gives a finite loss"):
        run(lambda model: [math.nan])


def test_seeds_differ_and_repeat() -> None:
    """The same seed gives the same points, whatever numpy's global generator does; another seed others."""
    np.random.seed(1)  # noqa: NPY002
    one = points(run(seed=1))
    np.random.seed(2)  # noqa: NPY002
    assert points(run(seed=1)) == one
    assert points(run(seed=2)) != one


def test_the_weights_are_never_copied_or_changed() -> None:
    """Every candidate is the same weights under another rope."""
    model = tiny_decoder()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    seen: set[int] = set()

    def cost(candidate: Reader) -> list[float]:
        assert isinstance(candidate, DecoderReader)
        seen.add(candidate.model.embed_tokens.weight.data_ptr())
        return toy(candidate)

    run(cost, model=DecoderReader(model), budget=12)
    assert seen == {model.embed_tokens.weight.data_ptr()}
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert model.config.ropes[0] == ROPE


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 5}, "does not cover the analytic methods"),
        ({"budget": 0}, "does not cover the analytic methods"),
        ({"seconds": 0.0}, "above zero"),
        ({"seconds": math.nan}, "above zero"),
        ({"seed": -1}, "must not be negative"),
        ({"target": TRAINED}, "beyond the trained length"),
        ({"trained": 1}, "beyond the trained length"),
        ({"limit": -0.1}, "0 or more"),
        ({"limit": math.nan}, "0 or more"),
        ({"unscaled_tokens": TARGET}, "below the target"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    """With its cure, before anything is evaluated."""
    with pytest.raises(rw.RopeError, match=message):
        run(lambda model: pytest.fail("evaluated"), **changes)


def test_windows_of_another_shape_are_refused() -> None:
    """They must reach the target."""
    for windows in (WINDOWS[:, :32], WINDOWS[0], WINDOWS.float(), WINDOWS[:0]):
        with pytest.raises(rw.RopeError, match="must be int64"):
            text_objective(windows, REACH)


def test_ropes_that_one_list_cannot_say_are_refused() -> None:
    """Layers with different thetas, standing pairs, and no rope at all."""
    other = dataclasses.replace(ROPE, theta=1e6)
    still = dataclasses.replace(ROPE, scaling=Proportional(0.5))
    for ropes in ((ROPE, other), still, None):
        with pytest.raises(rw.RopeError, match="one list of divisors needs one rope"):
            space_of(ropes)
