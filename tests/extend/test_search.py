"""The factor search: never worse than its starts, right about its budget, resumable, and able to find an optimum."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.extend.evaluation import Evaluation, Objective
from ropewalk.extend.factors import Factors, FactorSpace, factor_space
from ropewalk.extend.held_out import HeldOut, held_out, search_record
from ropewalk.extend.point_search import SearchResult, search_points, text_objective
from ropewalk.families import Trained
from ropewalk.ledger import Ledger
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import LongRoPE, Proportional, YaRN
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder
from tests.extend.material import Shown

pytest.importorskip("cma")
TRAINED, TARGET = 16, 64
WINDOWS = random_ids(3 * TARGET).reshape(3, TARGET)
EMPTY = Evaluation(Factors("a", (), 1.0), (), (), 1.0).to_json()
REACH = Reach(TRAINED, TARGET)
ANALYTIC = [name for name, method in METHODS.items() if method.scales_frequencies]
OPTIMUM = np.log([0.9, 1.7, 2.2, 5.5])


def reader(rope: Any = ROPE, **changes: Any) -> DecoderReader:
    """The small model."""
    return DecoderReader(tiny_decoder(rope, **changes))


def extended(rope: RopeConfig, method: str, reach: Reach = REACH) -> RopeConfig:
    """A rope under a method."""
    return METHODS[method].rope(rope, reach)


def space_of(rope: Any = ROPE, reach: Reach = REACH, **changes: Any) -> FactorSpace:
    """What can be searched in a small model."""
    return factor_space(reader(rope, **changes).positions, reach)


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


def factors_of(candidate: Reader) -> LongRoPE:
    """The rule that a candidate's model carries."""
    rope = candidate.positions.ropes[0]
    assert rope is not None
    assert isinstance(rope.scaling, LongRoPE)
    return rope.scaling


def toy(model: Reader) -> list[float]:
    """A bowl about a known point: ln of the divisors at OPTIMUM, of the attention factor at ln 1.2."""
    rule = factors_of(model)
    off = np.log(rule.long_factor) - OPTIMUM
    return [float(off @ off + (math.log(rule.attention_factor or 1) - math.log(1.2)) ** 2)]


def one_item(cost: Callable[[Reader], Sequence[float]], name: str = "toy") -> Objective:
    """An objective of one item."""
    return Objective(name=name, items=1, cost=lambda model, _: cost(model)[0])


def run(objective: Callable[[Reader], Sequence[float]] | None = toy, **more: Any) -> SearchResult:
    """A search over factors in the small model, on a toy objective."""
    given = {"budget": 40, **more}
    lengths = {"trained": TRAINED, "target": TARGET, "unscaled_tokens": 0}
    reach = Reach(**{name: given.pop(name, length) for name, length in lengths.items()})
    name, model = given.pop("name", "toy"), given.pop("model", None) or reader()
    space = factor_space(model.positions, reach, monotone=given.pop("monotone", False))
    read = text_objective(WINDOWS, reach, constrained=False) if objective is None else one_item(objective, name)
    return search_points(model, space, read, **given)


def points(result: SearchResult) -> list[Any]:
    """Every point in order."""
    return [line.point for line in result.evaluations]


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


# --- stopped and resumed


class _Stop(BaseException):
    """Stands for Ctrl-C."""


def results(folder: Path) -> list[dict[str, Any]]:
    """Every line of the ledgers in a folder, in order."""
    files = sorted(folder.glob("*/results/*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("stop_at", [0, 1, 5, 6, 9, 14, 27])
def test_a_stopped_search_resumes_to_the_same(tmp_path: Path, stop_at: int) -> None:
    """Stopped within the starts, within a generation or between two: nothing is evaluated twice, all is the same."""
    calls = 0

    def stopping(model: Reader) -> list[float]:
        nonlocal calls
        if calls == stop_at:
            raise _Stop
        calls += 1
        return toy(model)

    with pytest.raises(_Stop):
        run(stopping, folder=tmp_path)
    assert [line["job"] for line in results(tmp_path)] == [str(number) for number in range(1, stop_at + 1)]
    shown = Shown()
    second = run(folder=tmp_path, resume=True, progress=shown)
    assert [text.split()[0] for text in shown.begun] == [f"{number}/40" for number in range(stop_at + 1, 41)]
    whole = run()
    assert points(second) == points(whole)
    assert [line.losses for line in second.evaluations] == [line.losses for line in whole.evaluations]


def test_a_finished_search_can_be_prolonged(tmp_path: Path) -> None:
    """The budget is no part of what a search is: 20 and then 40 is 40."""
    run(budget=20, folder=tmp_path)
    assert points(run(budget=40, folder=tmp_path, resume=True)) == points(run(budget=40))
    assert len(run(budget=20, folder=tmp_path, resume=True).evaluations) == 20
    assert len(results(tmp_path)) == 40


def test_another_search_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed, objective, length, limit or cma has a ledger of its own; without resume it is begun again."""
    run(budget=8, folder=tmp_path)
    (first,) = tmp_path.iterdir()
    changes = [{"seed": 5}, {"name": "answers"}, {"monotone": True}, {"trained": 8}, {"unscaled_tokens": 2},
               {"limit": 0.01}, {"model": reader(initializer_range=0.2)}]  # fmt: skip
    for number, other in enumerate(changes, 2):
        shown = Shown()
        run(folder=tmp_path, resume=True, progress=shown, **{"budget": 8, **other})
        assert (len(shown.begun), len(list(tmp_path.iterdir()))) == (8, number)
    with monkeypatch.context() as patch:
        patch.setattr("cma.__version__", "0.0")
        run(budget=8, folder=tmp_path, resume=True)
    assert len(list(tmp_path.iterdir())) == 9
    one, other = (text_objective(ids, REACH).name for ids in (WINDOWS, WINDOWS.flip(1)))
    assert one != other
    shown = Shown()
    run(budget=7, folder=tmp_path, progress=shown)
    assert len(shown.begun) == 7
    for path in [path for path in first.rglob("*") if path.is_file()]:
        path.unlink()
    (first / "letter.txt").write_text("dear reader")
    with pytest.raises(rw.RopeError, match="holds something else"):
        run(budget=8, folder=tmp_path)
    assert (first / "letter.txt").read_text() == "dear reader"


def test_a_kept_point_is_the_one_asked_for(tmp_path: Path) -> None:
    """Losses of other points are not taken: not a start's, not a candidate's; nor is what is no evaluation."""
    run(budget=20, folder=tmp_path)
    (path,) = tmp_path.glob("*/results/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    def changed(index: int, change: dict[str, Any]) -> None:
        rows = [
            {**line, "result": {**line["result"], **change}} if number == index else line
            for number, line in enumerate(lines)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    for index, change in ((1, {"name": "pi "}), (2, {"attention_factor": 1.3}), (15, {"divisors": [1.0] * 4})):
        changed(index, change)
        with pytest.raises(rw.RopeError, match="another point than this search asks for"):
            run(budget=20, folder=tmp_path, resume=True)
    for change in (EMPTY, {"losses": None}, {"divisors": "none"}):
        changed(3, change)
        with pytest.raises(rw.RopeError, match="has losses, and numbers above zero"):
            run(budget=20, folder=tmp_path, resume=True)
    changed(15, {"attention_factor": lines[15]["result"]["attention_factor"] * (1 + 1e-9)})
    assert len(run(budget=20, folder=tmp_path, resume=True).evaluations) == 20


def test_a_point_that_another_process_has_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches on one folder share their evaluations: a leased one is not evaluated twice."""
    whole = run(budget=8)
    run(budget=7, folder=tmp_path)
    (folder,) = tmp_path.iterdir()
    other = Ledger(folder, kind="search", key=folder.name)
    other.resume()
    monkeypatch.setattr("ropewalk.readers.workers.POLL_SECONDS", 0.05)
    with other.lease("8") as leased:
        assert leased
        later = threading.Timer(0.3, other.add, ("8", whole.evaluations[7].to_json()))
        later.start()
        found = run(lambda model: pytest.fail("evaluated"), budget=8, folder=tmp_path, resume=True)
        later.join()
    assert points(found) == points(whole)


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


# --- on text that it did not see


def searched_on_text(budget: int = 10) -> SearchResult:
    """A short search on random tokens."""
    return run(None, budget=budget)


def test_held_out_losses_are_those_of_the_models(tmp_path: Path) -> None:
    """Within and beyond, for the searched factors and every start, and again from the ledger, without measuring."""
    result = searched_on_text()
    windows = random_ids(2 * TARGET + 1)[1:].reshape(2, TARGET)
    found = held_out(reader(), result, windows, text="other", folder=tmp_path)
    assert list(found.beyond) == ["searched", *(start.name for start in result.space.starts)]
    for name, model in (("searched", result.apply(reader())), ("yarn", reader(extended(ROPE, "yarn")))):
        for index, ids in enumerate(windows):
            losses = model.window_losses(ids)
            assert found.within[name][index] == pytest.approx(losses[: TRAINED - 1].mean(), abs=2e-6)
            assert found.beyond[name][index] == pytest.approx(losses[TRAINED - 1 :].mean(), abs=2e-6)
    shown = Shown()
    again = held_out(reader(), result, windows, text="other", folder=tmp_path, resume=True, progress=shown)
    assert (again, shown.begun) == (found, [])
    held_out(reader(), result, windows, text="other", folder=tmp_path, progress=shown)
    assert len(shown.begun) == 2 * len(found.beyond)
    held_out(reader(), result, windows.flip(1), text="other", folder=tmp_path, resume=True)
    assert len(list(tmp_path.iterdir())) == 2


def verdict(gains: Sequence[float], *, better: bool = True) -> HeldOut:
    """A held-out result whose searched losses differ by `gains` from yarn's; pi is lower than yarn by 0.1."""
    yarn = tuple(3.0 + index for index in range(len(gains)))
    beyond = {
        "searched": tuple(a + b for a, b in zip(yarn, gains, strict=True)),
        "plain": tuple(9.0 for _ in gains),
        "yarn": yarn,
        "pi": tuple(value - 0.1 for value in yarn),
    }
    return HeldOut(
        text="book",
        chosen="yarn",
        found_better=better,
        keeping=("plain", "yarn", "pi"),
        limit=0.05,
        within=beyond,
        beyond=beyond,
    )


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((-0.2, -0.21, -0.19), "The gain is significant"),
        ((-0.2, 0.3, -0.19), "not significant: the 95 % interval contains zero"),
        ((0.2, 0.21, 0.19), "That is a loss, and significant"),
        ((-0.2,), "nothing is shown"),
    ],
)
def test_the_verdict_says_whether_a_gain_is_shown(gains: tuple[float, ...], said: str) -> None:
    """By the interval, not by the mean; and it names the harder rival, the best method on this very text."""
    found = verdict(gains)
    assert said in found.sentences()[1]
    assert found.standing.best == "pi"
    assert "against pi, the best analytic method on what was held out" in found.sentences()[0]
    assert found.gain[0] == pytest.approx(np.mean(gains))


def test_a_method_beyond_the_limit_is_named_as_such() -> None:
    """It is the harder rival all the same; the best of those that keep the limit follows."""
    found = dataclasses.replace(verdict((-0.05, -0.06, -0.055)), keeping=("plain", "yarn"))
    standing = found.standing
    assert (standing.outcome, standing.best, standing.keeps_limit) == ("loses", "pi", False)
    assert standing.among_keeping is not None
    assert (standing.among_keeping.outcome, standing.among_keeping.best) == ("wins", "yarn")
    assert "The search loses" in found.sentences()[0]
    assert "pi (which costs more than the limit within)" in found.sentences()[0]
    assert "keep the limit yarn is best, and against it the search wins: -0.055" in found.sentences()[0]


def test_a_search_that_found_nothing_says_so() -> None:
    """It returns the start, and does not call it searched."""
    assert verdict((0.0, 0.0), better=False).sentences() == [
        "The search found nothing better than yarn, and returns it.",
        "Of the analytic methods pi is best by the loss on book beyond the trained length.",
    ]


def test_the_record_is_whole_and_its_block_is_the_rope() -> None:
    """JSON without NaN; rope_parameters read back as the searched frequencies and attention factor."""
    result = searched_on_text()
    found = held_out(reader(), result, WINDOWS, text="same")
    record = search_record(result, found, model="m", text="t", more={"seed": 0})
    read = json.loads(json.dumps(record, allow_nan=False))
    base = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1, "head_dim": 8}
    rope = rw.RopeConfig.from_hf(
        {**base, "max_position_embeddings": TARGET, "rope_parameters": read["rope_parameters"]}
    )
    for length in (1, TRAINED, TARGET):
        assert columns_of(rope, length) == columns_of(result.rope, length)
        assert attention_factor_of(rope, length) == attention_factor_of(result.rope, length)
    assert len(read["losses"]) == read["evaluations"] == 10
    assert read["held_out"]["gain"] == pytest.approx(found.gain[0])


def test_text_objective_scores_from_the_first_token_asked_for() -> None:
    """Beyond, from the trained length on; within, all tokens before."""
    model = reader()
    objective = text_objective(WINDOWS, Reach(30, TARGET))
    assert objective.within is not None
    for index, ids in enumerate(WINDOWS):
        losses = model.window_losses(ids)
        assert objective.cost(model, index) == pytest.approx(losses[29:].mean(), abs=2e-6)
        assert objective.within(model, index) == pytest.approx(losses[:29].mean(), abs=2e-6)


def test_the_page_quotes_the_record() -> None:
    """The gain on the search's own text and on another book, with its interval, as recorded."""
    root = Path(__file__).parents[2]
    record = json.loads((root / "benchmarks/results/search-tiny.json").read_text())
    held = record["held_out"]
    low, high = held["gain_ci"]
    page = " ".join((root / "docs/extending.md").read_text().split())
    windows = f"{record['evaluations']} evaluations on {record['windows']} windows change the loss there by"
    assert f"{windows} {record['gain_on_search_text']:+.3f} nats" in page
    assert f"on another book by {held['gain']:+.3f} [{low:+.3f}, {high:+.3f}]" in page
    assert record["best"]["loss"] == min(record["losses"]) <= min(start["loss"] for start in record["starts"])


def test_evaluations_come_back_from_json() -> None:
    """Infinite losses are null there."""
    line = Evaluation(Factors("a", (1.0, 2.5), 1.1), (3.0, math.inf), (0.25,), 0.5)
    content = json.loads(json.dumps(line.to_json(), allow_nan=False))
    assert Evaluation.from_json(content, space_of().read) == line
