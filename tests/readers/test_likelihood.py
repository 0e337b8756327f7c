"""Continuations: equal to one full forward for each row, whatever the batch and the chunk."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.readers.adapters import reader_of
from ropewalk.rope.scaling import DynamicNTK
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, window_losses

IDS = random_ids(400).tolist()
PAIRS = [(IDS[:5], IDS[5:9]), (IDS[20:21], IDS[21:60]), (IDS[60:100], IDS[100:101]), (IDS[3:8], IDS[8:12])]


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("chunk", [4, 1024])
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_row_is_as_alone(batch: int, chunk: int, dynamic: bool) -> None:
    """Padding, chunks and rows of other lengths change nothing, also where frequencies depend on length."""
    model = tiny_decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)) if dynamic else ROPE)
    found = reader_of(model).continuation_log_probs(PAIRS, batch=batch, chunk=chunk)
    for (context, continuation), (log_prob, greedy) in zip(PAIRS, found, strict=True):
        ids = torch.tensor([[*context, *continuation][:-1]])
        with torch.no_grad():
            likely = model(ids, seq_len=ids.shape[1] if dynamic else None)[0, len(context) - 1 :].log_softmax(-1)
        wanted = likely.gather(-1, torch.tensor(continuation)[:, None]).double().sum()
        assert log_prob == pytest.approx(float(wanted), abs=1e-4)
        assert greedy == (likely.argmax(-1).tolist() == continuation)


def test_it_is_the_loss_of_the_window() -> None:
    """Longer than the rows whose logits exist at one time."""
    model = tiny_decoder()
    [(found, _)] = reader_of(model).continuation_log_probs([(IDS[:1], IDS[1:])])
    assert found == pytest.approx(-float(window_losses(model, torch.tensor(IDS)).sum()), abs=1e-4 * len(IDS))


def test_greedy_is_said_of_greedy_continuations() -> None:
    """What the model itself goes on with is greedy; with one token changed it is not."""
    model, ids = tiny_decoder(), IDS[:4]
    for _ in range(5):
        with torch.no_grad():
            ids = [*ids, int(model(torch.tensor([ids]))[0, -1].argmax())]
    other = [*ids[4:8], (ids[8] + 1) % 50]
    order: list[int] = []
    found = reader_of(model).continuation_log_probs(
        [(ids[:4], ids[4:]), (ids[:4], other)], done=lambda index, result: order.append(index)
    )
    assert [greedy for _, greedy in found] == [True, False]
    assert sorted(order) == [0, 1]


def test_nothing_comes_before_the_first_token() -> None:
    """An empty context is refused, and so is an empty continuation."""
    for pair in (([], [1]), ([1], [])):
        with pytest.raises(RopeError, match="contexts and continuations must have at least one token"):
            reader_of(tiny_decoder()).continuation_log_probs([pair])
    with pytest.raises(RopeError, match="at least 1"):
        reader_of(tiny_decoder()).continuation_log_probs([([1], [2])], batch=0)
