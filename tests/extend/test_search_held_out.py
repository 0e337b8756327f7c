"""What a factor search says: losses of a text that it did not see, the verdict, and the record."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.extend.evaluation import Evaluation
from ropewalk.extend.factors import Factors
from ropewalk.extend.held_out import HeldOut, held_out, search_record
from ropewalk.extend.point_search import SearchResult, text_objective
from ropewalk.methods import Reach
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from tests.diagnosis.models import ROPE, random_ids
from tests.extend.factor_searches import (
    TARGET,
    TRAINED,
    WINDOWS,
    extended,
    reader,
    run,
    space_of,
)
from tests.extend.material import Shown

pytest.importorskip("cma")


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
    assert len(shown.begun) == 2 * (len(found.beyond) - (not result.found_better))
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


def test_a_start_that_is_returned_is_measured_once() -> None:
    """Its numbers stand under both names."""
    result = searched_on_text()
    starts = result.evaluations[: len(result.space.starts)]
    best = min((line for line in starts if line.point.name != "plain"), key=lambda line: line.loss)
    returned = dataclasses.replace(result, evaluations=starts)
    assert returned.best.point == best.point
    shown = Shown()
    found = held_out(reader(), returned, WINDOWS, text="same", progress=shown)
    assert len(shown.begun) == len(WINDOWS) * len(starts)
    assert not any(str(line).endswith(best.point.name) for line in shown.begun)
    assert found.beyond["searched"] == found.beyond[best.point.name]


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
