"""A search on answers: what it costs, what it is made of, and what it is worth on other examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.extend.answers import (
    HeldOutAnswers,
    answer_examples,
    answer_losses,
    answer_objective,
    digest,
    held_out_answers,
)
from ropewalk.extend.factor_search import SearchResult, search_factors
from ropewalk.methods import Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.retrieval.example import Example
from tests.diagnosis.models import random_ids, tiny_decoder

pytest.importorskip("cma")
TRAINED, TARGET = 32, 64
TEXT = "It was the best of times, it was the worst of times; some other words follow here. " * 8


def example(start: int = 0) -> Example:
    """Fifty tokens and an answer of four."""
    ids = tuple(random_ids(80).tolist())[start : start + 60]
    return Example(
        input_ids=ids[:50], answer_ids=ids[50:54], distractor_ids=(ids[55:59],), answers=("a",), distractors=("b",),
        positions=(3,), depth=0.0, new_tokens=4,
    )  # fmt: skip


def reader() -> DecoderReader:
    """The small model."""
    return DecoderReader(tiny_decoder())


def run(**more: Any) -> SearchResult:
    """A search of 12 evaluations on one example, without any window of text."""
    objective = answer_objective([example()])
    return search_factors(
        reader(), None, Reach(TRAINED, TARGET, **more), budget=12, objective=objective, objective_name="answers"
    )


class Shown:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.tokens = 0

    def begin(self, description: str, tokens: int) -> None:
        """A piece of work begins."""
        self.begun.append(description)

    def advance(self, tokens: int) -> None:
        """Tokens have gone through."""
        self.tokens += tokens


def test_the_loss_is_that_of_the_answers_tokens() -> None:
    """Nats per token of the answer alone, after the whole input, by one plain forward; distractors have no part."""
    model, one = tiny_decoder(), example()
    ids = one.input_ids + one.answer_ids
    with torch.no_grad():
        logs = model(torch.tensor([ids])).log_softmax(-1)[0]
    expected = -sum(logs[49 + index, token].item() for index, token in enumerate(one.answer_ids)) / 4
    assert answer_losses(DecoderReader(model), [one]) == pytest.approx([expected], abs=2e-6)
    result = run()
    assert result.best.losses == pytest.approx(answer_losses(result.apply(reader()), [one]), abs=2e-6)
    assert result.best.loss <= result.best_start.loss


def test_tasks_and_depths_take_turns() -> None:
    """Every length is kept, the same seed gives the same examples, and another one others."""
    tokenizer = TextTokenizer.bytes()

    def made(seed: int) -> list[Example]:
        return answer_examples(tokenizer, ["passkey", "niah_single"], TEXT, length=700, count=6, seed=seed)

    found = made(1)
    assert all(one.tokens <= 700 for one in found)
    assert [round(one.depth or 0, 1) for one in found] == pytest.approx([0, 0, 0.25, 0.25, 0.5, 0.5], abs=0.1)
    assert digest(found) == digest(made(1)) != digest(made(2))
    assert {tokenizer.decode(list(one.input_ids)).count("pass key") > 0 for one in found[::2]} == {True}
    assert {tokenizer.decode(list(one.input_ids)).count("pass key") > 0 for one in found[1::2]} == {False}
    with pytest.raises(RopeError, match="fewer examples than tasks"):
        answer_examples(tokenizer, ["passkey", "vt"], TEXT, length=700, count=1, seed=0)
    with pytest.raises(RopeError, match="unknown task"):
        answer_examples(tokenizer, ["pass"], TEXT, length=700, count=1, seed=0)


def test_held_out_losses_are_those_of_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and example, kept in a file of their own; resumed, nothing is measured again."""
    result, model, shown = run(), reader(), Shown()
    others = [example(3), example(11)]
    found = held_out_answers(model, result, others, text="book", folder=tmp_path, progress=shown)
    total = 2 * len(found.losses)
    assert [text.split()[0] for text in shown.begun] == [f"{number}/{total}" for number in range(1, total + 1)]
    assert shown.tokens >= total * 50
    assert list(found.losses) == ["searched", *(start.name for start in result.space.starts)]
    assert found.losses["plain"] == pytest.approx(answer_losses(model, others), abs=2e-6)
    assert found.losses["searched"] == pytest.approx(answer_losses(result.apply(model), others), abs=2e-6)
    shown.begun.clear()
    again = held_out_answers(model, result, others, text="book", folder=tmp_path, resume=True, progress=shown)
    assert (again.losses, shown.begun) == (found.losses, [])
    assert len(list(tmp_path.iterdir())) == 1
    held_out_answers(model, run(unscaled_tokens=3), others, text="book", folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(RopeError, match="no example"):
        held_out_answers(model, result, [], text="book")
    monkeypatch.setattr("ropewalk.extend.answers.answer_losses", lambda *_, **__: [float("nan")])
    with pytest.raises(RopeError, match="not a finite number"):
        held_out_answers(model, result, others, text="book")


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([-0.5, -0.6, -0.4, -0.5, -0.45], "The gain is significant"),
        ([0.5, 0.6, 0.4, 0.5, 0.45], "the search has fitted its own examples; yarn is better"),
        ([-0.5, 0.6, 0.1, -0.2, 0.05], "The gain is not significant"),
        ([-0.5], "One example: no interval"),
    ],
)
def test_the_verdict_says_whether_a_gain_is_shown(gains: list[float], said: str) -> None:
    """By the interval over examples; the same numbers stand in the record."""
    base = np.linspace(2, 3, len(gains))
    losses = {"searched": tuple(base + gains), "plain": tuple(base + 1), "yarn": tuple(base)}
    found = HeldOutAnswers(text="book", chosen="yarn", found_better=True, losses=losses)
    assert said in found.sentences()[0]
    assert f"On {len(gains)} other example" in found.sentences()[0]
    assert found.to_json()["gain"] == pytest.approx(np.mean(gains))
    assert found.to_json()["rows"][1]["name"] == "plain"
    assert HeldOutAnswers(text="b", chosen="yarn", found_better=False, losses=losses).sentences() == []
