"""Questions after one prefix: as if each had been read alone after it, in any order and in any company."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.layers.decoder import Decoder
from ropewalk.methods import METHODS, Reach
from ropewalk.readers import live_model as module
from ropewalk.readers.live_model import QuestionIds
from ropewalk.readers.loading import reader_of
from ropewalk.rope.scaling import DynamicNTK, LongRoPE
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, under_method

IDS = random_ids(200).tolist()
TEXT, FIXED = IDS[:45], 60
QUESTIONS: list[QuestionIds] = [
    (IDS[50:55], [IDS[60:64], [*IDS[60:63], 7], IDS[70:71], [*IDS[60:62], 9, 9]]),  # three of them begin alike
    (IDS[80:82], [IDS[60:64], IDS[90:92]]),
    (IDS[110:118], [IDS[120:121]]),
]
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dynamic": {"rope": dataclasses.replace(ROPE, scaling=DynamicNTK(1.0))},
    "longrope": {
        "rope": dataclasses.replace(
            ROPE, scaling=LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 16), max_position_embeddings=64
        )
    },
}
NAMES = ["plain", "dca", "self-extend", "log-n"]


def fresh(model: Decoder) -> list[list[float]]:
    """Each question and continuation as a single prompt, in one forward without a cache, at the same length."""
    found = []
    for question, continuations in QUESTIONS:
        found.append([])
        for continuation in continuations:
            ids = torch.tensor([[*TEXT, *question, *continuation]])
            with torch.no_grad():
                likely = model(ids, seq_len=FIXED)[0].double().log_softmax(-1)
            start = len(TEXT) + len(question) - 1
            found[-1].append(sum(float(likely[start + n, token]) for n, token in enumerate(continuation)))
    return found


def flat(found: list[list[float]]) -> list[float]:
    return [value for row in found for value in row]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("together", [1, 20, 256])
def test_a_question_is_as_in_a_fresh_prompt(monkeypatch: pytest.MonkeyPatch, name: str, together: int) -> None:
    """All at once, a few at a time, and one by one."""
    monkeypatch.setattr(module, "ASK_TOKENS", together)
    model = tiny_decoder(**MODELS[name])
    prefix = reader_of(model).prefix(TEXT, seq_len=FIXED, chunk=7)
    found = prefix.ask(QUESTIONS)
    assert [len(row) for row in found] == [4, 2, 1]
    assert flat(found) == pytest.approx(flat(fresh(model)), abs=1e-4)
    one_by_one = [prefix.ask([question])[0] for question in QUESTIONS]
    assert flat(one_by_one) == pytest.approx(flat(found), abs=1e-5)


@pytest.mark.parametrize("method", NAMES)
def test_so_it_is_under_methods_in_attention(method: str) -> None:
    """Which read unrotated keys, at three times the trained length."""
    model = tiny_decoder()
    reader = reader_of(model)
    reader = reader.under(METHODS[method].positions(reader.positions, Reach(16, 64)))
    found = reader.prefix(TEXT, seq_len=FIXED, chunk=7).ask(QUESTIONS)
    assert flat(found) == pytest.approx(flat(fresh(under_method(model, method, trained=16, target=64))), abs=1e-4)


def test_the_order_of_questions_changes_nothing() -> None:
    """Nor does asking again; the prefix itself stays where it was."""
    prefix = reader_of(tiny_decoder()).prefix(TEXT, seq_len=FIXED)
    first, top = prefix.ask(QUESTIONS), prefix.top(3)
    order = list(range(len(QUESTIONS)))
    random.Random(1).shuffle(order)
    mixed = prefix.ask([QUESTIONS[index] for index in order])
    assert flat(mixed) == pytest.approx(flat([first[index] for index in order]), abs=1e-5)
    assert prefix.ask(QUESTIONS) == first
    assert (prefix.tokens, prefix.top(3)) == (len(TEXT), top)


def test_what_begins_alike_is_read_once() -> None:
    """The tokens that go through the model: the question's, and of each continuation all but the last."""
    seen: list[int] = []
    prefix: Any = reader_of(tiny_decoder()).prefix(TEXT, seq_len=FIXED)
    embedding = prefix.live.model.get_input_embeddings()
    embedding.register_forward_hook(lambda _, inputs, out: seen.append(inputs[0].shape[1]))
    prefix.ask(QUESTIONS[:1])
    assert seen == [5 + 3 + 1]  # 60..62 of two, and one more third token
    kept = prefix.cache.layers[0]._buffers
    prefix.ask(QUESTIONS)
    assert prefix.cache.layers[0]._buffers is kept


@pytest.mark.parametrize("question", [([5, 6], [[1], []]), ([5, 6], []), ([], [[1]])])
def test_a_question_without_tokens_is_refused(question: QuestionIds) -> None:
    """With the question that it belongs to."""
    prefix = reader_of(tiny_decoder()).prefix(TEXT, seq_len=FIXED)
    with pytest.raises(RopeError, match="needs tokens"):
        prefix.ask([question])
