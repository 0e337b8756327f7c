"""A search on answers: what it costs, what it is made of, and what it is worth on other texts."""

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
    answer_losses,
    answer_objective,
    answer_texts,
    digest,
    held_out_answers,
)
from ropewalk.extend.factors import factor_space
from ropewalk.extend.point_search import SearchResult, search_points
from ropewalk.measure.questions import Question, QuestionSet, Wanted
from ropewalk.measure.retrieval import answers_of, candidate_log_probs
from ropewalk.methods import Reach
from ropewalk.readers.decoder import DecoderReader
from tests.diagnosis.models import random_ids, tiny_decoder

pytest.importorskip("cma")
TRAINED, TARGET = 32, 64
TEXT = "It was the best of times, it was the worst of times; some other words follow here. " * 8


def text(start: int = 0) -> QuestionSet:
    """Fifty tokens and two questions, the second with two answers; of other candidates nothing is asked."""
    ids = tuple(random_ids(99).tolist())[start:]
    questions = (
        Question(
            input_ids=ids[50:52], candidates=(0, 1), continuations=(ids[52:56], ids[70:73]),
            wanted=(Wanted(0, (1,), 0.5, 30),),
        ),
        Question(
            input_ids=(), candidates=(1, 2, 0), continuations=(ids[70:73], ids[60:61], ids[52:56]),
            wanted=(Wanted(1, (0,), 0.5, 30), Wanted(2, (0,), 0.7, 20)),
        ),
    )  # fmt: skip
    return QuestionSet(input_ids=ids[:50], questions=questions)


def reader() -> DecoderReader:
    """The small model."""
    return DecoderReader(tiny_decoder())


def run(**more: Any) -> SearchResult:
    """A search of 12 evaluations on one text, without any window."""
    space = factor_space(reader().positions, Reach(TRAINED, TARGET, **more))
    return search_points(reader(), space, answer_objective([text()]), budget=12)


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
    """Nats per token of each answer alone, after the text and its question, by plain forwards; their mean."""
    model, one = tiny_decoder(), text()
    asked = [(0, 0), (1, 0), (1, 1)]  # question and its continuation
    losses = []
    for number, place in asked:
        question = one.questions[number]
        answer = question.continuations[place]
        ids = (*one.input_ids, *question.input_ids, *answer)
        with torch.no_grad():
            logs = model(torch.tensor([ids])).log_softmax(-1)[0]
        start = len(ids) - len(answer) - 1
        losses.append(-sum(logs[start + n, token].item() for n, token in enumerate(answer)) / len(answer))
    assert answer_losses(DecoderReader(model), [one]) == pytest.approx([sum(losses) / 3], abs=2e-6)
    result = run()
    assert result.best.losses == pytest.approx(answer_losses(result.apply(reader()), [one]), abs=2e-6)
    assert result.best.loss <= result.best_start.loss


def test_tasks_take_turns() -> None:
    """Every length is kept, the same seed gives the same texts, and another one others."""
    tokenizer = TextTokenizer.bytes()

    def made(seed: int) -> list[QuestionSet]:
        return answer_texts(tokenizer, ["passkey", "numbers"], TEXT, length=900, count=4, seed=seed)

    found = made(1)
    assert all(one.tokens <= 900 for one in found)
    assert all(len(one.questions) >= 4 for one in found)
    assert digest(found) == digest(made(1)) != digest(made(2))
    assert {tokenizer.decode(list(one.input_ids)).count("pass key") > 0 for one in found[::2]} == {True}
    assert {tokenizer.decode(list(one.input_ids)).count("pass key") > 0 for one in found[1::2]} == {False}
    with pytest.raises(RopeError, match="fewer texts than tasks"):
        answer_texts(tokenizer, ["passkey", "numbers"], TEXT, length=700, count=1, seed=0)
    with pytest.raises(RopeError, match="unknown task"):
        answer_texts(tokenizer, ["pass"], TEXT, length=700, count=1, seed=0)


def test_held_out_losses_are_those_of_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and text, kept in a file of their own; resumed, nothing is measured again."""
    result, model, shown = run(), reader(), Shown()
    others = [text(3), text(11)]
    found = held_out_answers(model, result, others, text="book", folder=tmp_path, progress=shown)
    total = 2 * len(found.losses)
    assert [text.split()[0] for text in shown.begun] == [f"{number}/{total}" for number in range(1, total + 1)]
    assert shown.tokens >= total * 50
    assert list(found.losses) == ["searched", *(start.name for start in result.space.starts)]
    assert found.losses["plain"] == pytest.approx(answer_losses(model, others), abs=2e-6)
    assert found.losses["searched"] == pytest.approx(answer_losses(result.apply(model), others), abs=2e-6)
    for name in ("plain", "searched"):
        held = model if name == "plain" else result.apply(model)
        answers = [answers_of(one, candidate_log_probs(held, one)) for one in others]
        assert found.found[name] == tuple(sum(each.found for each in of) / 3 for of in answers)
    shown.begun.clear()
    again = held_out_answers(model, result, others, text="book", folder=tmp_path, resume=True, progress=shown)
    assert (again.losses, shown.begun) == (found.losses, [])
    assert len(list(tmp_path.iterdir())) == 1
    held_out_answers(model, run(unscaled_tokens=3), others, text="book", folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(RopeError, match="no text"):
        held_out_answers(model, result, [], text="book")
    monkeypatch.setattr("ropewalk.extend.answers.answers_read", lambda *_, **__: (float("nan"), 0.0))
    with pytest.raises(RopeError, match="not a finite number"):
        held_out_answers(model, result, others, text="book")


@pytest.mark.parametrize(
    ("gains", "said", "outcome"),
    [
        ([-0.5, -0.6, -0.4, -0.5, -0.45], "The gain is significant", "wins"),
        ([0.5, 0.6, 0.4, 0.5, 0.45], "the search has fitted its own texts; yarn is better", "loses"),
        ([-0.5, 0.6, 0.1, -0.2, 0.05], "The gain is not significant", "undecided"),
        ([-0.5], "One text: no interval", "undecided"),
    ],
)
def test_the_verdict_says_whether_a_gain_is_shown(gains: list[float], said: str, outcome: str) -> None:
    """By the interval over texts; the same numbers stand in the record."""
    base = np.linspace(2, 3, len(gains))
    losses = {"searched": tuple(base + gains), "plain": tuple(base + 1), "yarn": tuple(base)}
    found = {name: tuple(1 - 0.1 * values) for name, values in ((name, np.array(row)) for name, row in losses.items())}
    how: dict[str, Any] = {"text": "book", "chosen": "yarn", "keeping": ("plain", "yarn"), "losses": losses}
    answers = HeldOutAnswers(found_better=True, found=found, **how)
    by_share, by_loss, against = answers.sentences()
    assert said in against
    assert f"in {len(gains)} other text" in against
    words = {"wins": "The search wins: ", "loses": "The search loses: ", "undecided": "Undecided: "}[outcome]
    assert by_share.startswith(words)
    assert by_loss.startswith(words + "the loss of these answers")
    assert (answers.standing.outcome, answers.standing_by_loss.outcome) == (outcome, outcome)
    assert ("against yarn" in by_share, "Use yarn" in by_share) == (True, outcome == "loses")
    assert answers.to_json()["gain"] == pytest.approx(np.mean(gains))
    assert answers.to_json()["rows"][1]["name"] == "plain"
    assert HeldOutAnswers(found_better=False, found=found, **how).sentences() == [
        "Of the analytic methods yarn is best by the share of far answers found in texts made of book."
    ]


def test_only_far_answers_are_asked_for() -> None:
    """Needles that lie further back than the trained length; a text without one is refused."""
    far = text().beyond(25)
    assert [len(one.wanted) for one in far.questions] == [1, 1]
    assert far.input_ids == text().input_ids
    assert text().beyond(30).questions == ()
    tokenizer = TextTokenizer.bytes()
    how: dict[str, Any] = {"length": 900, "count": 1, "seed": 0}
    [every] = answer_texts(tokenizer, ["numbers"], TEXT, **how)
    [some] = answer_texts(tokenizer, ["numbers"], TEXT, beyond=450, **how)
    distances = [wanted.distance or 0 for one in every.questions for wanted in one.wanted]
    assert 0 < len(some.questions) == sum(distance > 450 for distance in distances) < len(distances)
    with pytest.raises(RopeError, match="no answer of `numbers` lies beyond"):
        answer_texts(tokenizer, ["numbers"], TEXT, beyond=900, **how)
