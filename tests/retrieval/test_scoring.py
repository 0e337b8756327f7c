"""Scores: equal to a full forward without any cache, by either way of trying the choices."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.questions import Question, QuestionSet, Wanted
from ropewalk.retrieval.scoring import answers_of, calibrated, candidate_log_probs, choose, completes, names_all, score
from ropewalk.rope.scaling import DynamicNTK
from tests.diagnosis.models import ROPE, under_method
from tests.retrieval.material import decoder, tokenizer

EXAMPLE = Example(
    input_ids=tuple(range(40, 101)),
    answer_ids=(7, 8, 9),
    distractor_ids=((7, 8, 10), (200,), (11, 12)),
    answers=("7",),
    distractors=("8", "9", "10"),
    positions=(0,),
    depth=0.0,
    new_tokens=3,
)


def choice_log_probs(model: Decoder, **more: Any) -> list[float]:
    """Of the one question."""
    [found] = candidate_log_probs(reader_of(model), QuestionSet.of(EXAMPLE), **more)
    return found


def by_full_forward(model: Decoder, example: Example, seq_len: int | None = None) -> list[float]:
    """Each choice in a forward of its own, without a cache."""
    found = []
    for choice in example.choices:
        ids = torch.tensor([[*example.input_ids, *choice]])
        with torch.no_grad():
            likely = model(ids, seq_len=seq_len)[0].double().log_softmax(-1)
        start = len(example.input_ids)
        found.append(sum(float(likely[start + index - 1, token]) for index, token in enumerate(choice)))
    return found


@pytest.mark.parametrize("chunk", [1, 7, 60, 61, 1024])
def test_log_probs_are_those_of_a_full_forward(chunk: int) -> None:
    """Choices of unequal lengths, two of which begin alike."""
    model, tokens = decoder(), []
    found = choice_log_probs(model, chunk=chunk, advance=tokens.append)
    assert found == pytest.approx(by_full_forward(model, EXAMPLE), abs=1e-4)
    assert sum(tokens) == len(EXAMPLE.input_ids)


def test_frequencies_are_those_of_the_example_s_length() -> None:
    """Dynamic NTK is fixed at input + longest choice, beyond the trained length of 16."""
    model = decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)))
    found = choice_log_probs(model, chunk=9)
    assert found == pytest.approx(by_full_forward(model, EXAMPLE, seq_len=EXAMPLE.tokens), abs=1e-4)
    assert found != pytest.approx(by_full_forward(model, EXAMPLE, seq_len=20), abs=1e-3)


@pytest.mark.parametrize("method", ["rerope", "self-extend", "dca", "streaming", "log-n", "drope"])
def test_methods_in_attention_are_scored_as_well(method: str) -> None:
    """From a cache of unrotated keys, in chunks, at four times the trained length of 16."""
    model = under_method(decoder(ROPE), method, trained=16, target=64)
    found = choice_log_probs(model, chunk=9)
    assert found == pytest.approx(by_full_forward(model, EXAMPLE), abs=1e-4)


def test_the_answer_must_be_above_all_others() -> None:
    """A tie is no find, and a broken model is named."""
    assert choose([-1.0, -1.5, -3.0])
    assert not choose([-1.0, -0.5, -3.0])
    assert not choose([-1.0, -1.0])
    with pytest.raises(RopeError, match="not a number"):
        choose([-1.0, float("nan")])


def test_found_is_what_the_log_probs_say() -> None:
    """With the likeliest choice as the answer it is found, with another not."""
    model = decoder()
    values = choice_log_probs(model)
    best = max(range(len(values)), key=values.__getitem__)
    for index, answer in enumerate(EXAMPLE.choices):
        others = tuple(choice for choice in EXAMPLE.choices if choice != answer)
        asked = dataclasses.replace(EXAMPLE, answer_ids=answer, distractor_ids=others)
        [found] = score(reader_of(model), tokenizer(), asked, scoring="choice")
        assert (found.found, found.raw) == (index == best, index == best)
        assert found[2:] == (4, 0.0, 61)  # choices, depth, and tokens back to the needle


def test_a_completion_names_every_answer() -> None:
    """As whole words, in any order; half of them is not enough."""
    assert names_all(" WVUMG, RBWAO.", ("RBWAO", "WVUMG"))
    assert not names_all(" WVUMG, RBWAOX", ("RBWAO", "WVUMG"))
    assert not names_all(" WVUMG", ("RBWAO", "WVUMG"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_generation_is_greedy_and_as_long_as_the_answer(dynamic: bool) -> None:
    """What greedy decoding gives, step by step in full forwards, is found; anything else is not."""
    kit, ids, new = tokenizer(), list(EXAMPLE.input_ids), []
    model = decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(1.0) if dynamic else None))
    for _ in range(EXAMPLE.new_tokens):
        with torch.no_grad():
            seq_len = EXAMPLE.tokens if dynamic else None
            new.append(int(model(torch.tensor([ids + new]), seq_len=seq_len)[0, -1].argmax()))
    said = kit.decode(new)
    assert completes(reader_of(model), kit, dataclasses.replace(EXAMPLE, answers=(said,)))
    assert not completes(reader_of(model), kit, dataclasses.replace(EXAMPLE, answers=(said, "no such word")))
    tokens: list[int] = []
    [found] = score(
        reader_of(model), kit, dataclasses.replace(EXAMPLE, answers=(said,)), scoring="generate", advance=tokens.append
    )
    assert found == (True, True, 4, 0.0, 61)
    assert tokens == [len(ids)]
    with pytest.raises(RopeError, match="answered by choice"):
        score(reader_of(model), kit, ASKED, scoring="generate")


ASKED = QuestionSet(
    input_ids=(1, 2, 3),
    questions=tuple(
        Question(
            input_ids=(5,),
            candidates=candidates,
            continuations=tuple((6,) for _ in candidates),
            wanted=(Wanted(answer, others, 0.5, 10),),
        )
        for candidates, answer, others in (((0, 1, 2), 0, (1, 2)), ((0, 1, 2), 1, (0, 2)), ((2, 1), 2, (1,)))
    ),
)


def test_a_candidate_that_is_liked_anywhere_gains_nothing_by_it() -> None:
    """Each candidate less its mean over the questions that have it: number 2 is ever the likeliest, and never found."""
    log_probs = [[-4.0, -6.0, -1.0], [-5.0, -4.0, -1.0], [-1.0, -8.0]]
    fair = calibrated(ASKED, log_probs)
    assert fair[0] == {0: 0.5, 1: 0.0, 2: 0.0}
    assert fair[1] == {0: -0.5, 1: 2.0, 2: 0.0}
    assert fair[2] == {2: 0.0, 1: -2.0}
    answers = answers_of(ASKED, log_probs)
    assert [answer.found for answer in answers] == [True, True, True]
    assert [answer.raw for answer in answers] == [False, False, True]
    assert [answer.choices for answer in answers] == [3, 3, 2]


@given(st.lists(st.floats(-50, 0), min_size=6, max_size=6), st.lists(st.floats(-9, 9), min_size=5, max_size=5))
def test_calibration_forgets_what_depends_on_one_alone(values: list[float], shifts: list[float]) -> None:
    """A number added to a candidate in every question, or to a whole question, changes no difference."""
    asked = dataclasses.replace(ASKED, questions=ASKED.questions[:2])
    rows = [values[:3], values[3:]]
    moved = [[value + shifts[n] + shifts[3 + index] for n, value in enumerate(row)] for index, row in enumerate(rows)]
    for one, other in zip(calibrated(asked, rows), calibrated(asked, moved), strict=True):
        for left, right in itertools.pairwise(one):
            assert one[left] - one[right] == pytest.approx(other[left] - other[right], abs=1e-9)


def test_nan_is_named_in_any_question() -> None:
    """By a question that has it, not left out."""
    with pytest.raises(RopeError, match="not a number"):
        answers_of(ASKED, [[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0], [float("nan"), -1.0]])
