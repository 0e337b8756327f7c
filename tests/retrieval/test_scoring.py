"""Scores: equal to a full forward without any cache, by either way of trying the choices."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.scoring import choice_log_probs, choose, completes, is_correct, names_all
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
    found = choice_log_probs(reader_of(model), EXAMPLE, chunk=chunk, advance=tokens.append)
    assert found == pytest.approx(by_full_forward(model, EXAMPLE), abs=1e-4)
    assert sum(tokens) == len(EXAMPLE.input_ids)


def test_frequencies_are_those_of_the_example_s_length() -> None:
    """Dynamic NTK is fixed at input + longest choice, beyond the trained length of 16."""
    model = decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)))
    found = choice_log_probs(reader_of(model), EXAMPLE, chunk=9)
    assert found == pytest.approx(by_full_forward(model, EXAMPLE, seq_len=EXAMPLE.tokens), abs=1e-4)
    assert found != pytest.approx(by_full_forward(model, EXAMPLE, seq_len=20), abs=1e-3)


@pytest.mark.parametrize("method", ["rerope", "self-extend", "dca", "streaming", "log-n", "drope"])
def test_methods_in_attention_are_scored_as_well(method: str) -> None:
    """From a cache of unrotated keys, in chunks, at four times the trained length of 16."""
    model = under_method(decoder(ROPE), method, trained=16, target=64)
    found = choice_log_probs(reader_of(model), EXAMPLE, chunk=9)
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
    values = choice_log_probs(reader_of(model), EXAMPLE)
    best = max(range(len(values)), key=values.__getitem__)
    for index, answer in enumerate(EXAMPLE.choices):
        others = tuple(choice for choice in EXAMPLE.choices if choice != answer)
        asked = dataclasses.replace(EXAMPLE, answer_ids=answer, distractor_ids=others)
        assert is_correct(reader_of(model), tokenizer(), asked, scoring="choice") == (index == best)


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
    assert is_correct(
        reader_of(model), kit, dataclasses.replace(EXAMPLE, answers=(said,)), scoring="generate", advance=tokens.append
    )
    assert tokens == [len(ids)]
