"""Losses in chunks equal one full forward; crop equals a naive loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ropewalk.checkpoints.load import load_decoder
from ropewalk.errors import RopeError
from ropewalk.layers.decoder import Decoder
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.loading import reader_of
from ropewalk.readers.texts import read_text
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import DynamicNTK, LongRoPE, YaRN
from tests.diagnosis.models import random_ids, tiny_decoder, window_losses

ROPE = RopeConfig(8, interleaved=False, max_position_embeddings=16)
ROPES = [
    ROPE,
    dataclasses.replace(ROPE, scaling=YaRN(4.0, 16)),
    dataclasses.replace(ROPE, scaling=DynamicNTK()),
    dataclasses.replace(ROPE, scaling=LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 16), max_position_embeddings=64),
]


def full_forward(model: Decoder, ids: torch.Tensor, seq_len: int) -> np.ndarray:
    """Minus the log of the softmax, in float64, from one forward without a cache."""
    with torch.no_grad():
        logits = model(ids[None], seq_len=seq_len)[0].double()
    chosen = logits[:-1].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
    return -chosen.numpy()


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("chunk", [1, 7, 16, 63, 64, 1000])
def test_chunks_equal_one_full_forward(rope: RopeConfig, chunk: int) -> None:
    """Whatever the chunk and the rule, every token's loss is that of the full forward."""
    model, ids = tiny_decoder(rope), random_ids(64)
    np.testing.assert_allclose(window_losses(model, ids, chunk=chunk), full_forward(model, ids, 64), atol=2e-5)


@pytest.mark.parametrize("first", [1, 2, 13, 39])
def test_scoring_may_begin_later(first: int) -> None:
    """`first` drops the earlier losses and changes none of the others."""
    model, ids = tiny_decoder(), random_ids(40)
    np.testing.assert_allclose(
        window_losses(model, ids, first=first, chunk=9), window_losses(model, ids)[first - 1 :], atol=1e-5
    )


def test_progress_counts_every_token() -> None:
    """The sum of what `advance` is told is what went through the model."""
    seen: list[int] = []
    window_losses(tiny_decoder(), random_ids(40), chunk=16, advance=seen.append)
    assert seen == [16, 16, 8]


@pytest.mark.parametrize(("tokens", "first", "chunk"), [(1, 1, 8), (10, 0, 8), (10, 10, 8), (10, 1, 0)])
def test_impossible_calls_are_refused(tokens: int, first: int, chunk: int) -> None:
    """A single token has no loss, and nothing comes before token 0."""
    with pytest.raises(RopeError, match="at least two, and `first` one of them"):
        window_losses(tiny_decoder(), random_ids(tokens), first=first, chunk=chunk)


def test_bfloat16_measures_what_float32_measures() -> None:
    """The built-in model: the mean loss to 0.002 nats, and so the gain of a method over another."""
    reader = reader_of(load_decoder("tiny", dtype=torch.float32), "tiny")
    windows = torch.tensor(reader.tokenizer.encode(read_text(None)[1][30_000:60_000]))[: 2 * 1024].view(2, 1024)
    means = {}
    for dtype in (torch.float32, torch.bfloat16):
        reader = reader_of(load_decoder("tiny", dtype=dtype))
        assert reader.dtype == dtype
        for method in ("plain", "ntk", "dca"):
            variant = reader.under(METHODS[method].positions(reader.positions, Reach(256, 1024)))
            means[dtype, method] = np.mean([variant.window_losses(window) for window in windows])
    off = [means[torch.bfloat16, method] - means[torch.float32, method] for method in ("plain", "ntk", "dca")]
    assert max(map(abs, off)) < 0.002
    assert max(off) - min(off) < 0.002


@pytest.mark.parametrize("most", [15, 16, 40])
def test_a_window_is_given_up(most: int) -> None:
    """`until` gets the losses so far after each chunk; its True ends the window."""
    model, ids = tiny_decoder(), random_ids(64)
    seen: list[int] = []

    def enough(losses: np.ndarray) -> bool:
        seen.append(len(losses))
        return len(losses) >= most

    whole, part = window_losses(model, ids, chunk=16), window_losses(model, ids, chunk=16, until=enough)
    assert len(part) == seen[-1] == next(length for length in (16, 32, 48, 63) if length >= most)
    np.testing.assert_allclose(part, whole[: len(part)], atol=1e-6)
