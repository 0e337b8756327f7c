"""Losses in chunks equal one full forward; crop equals a naive loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load_decoder
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.losses import crop_steps, cropped_losses
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


@pytest.mark.parametrize(
    ("tokens", "trained", "stride"), [(64, 16, 4), (61, 16, 4), (50, 16, 3), (20, 16, 1), (10, 16, 4)]
)
def test_crop_is_the_naive_loop(tokens: int, trained: int, stride: int) -> None:
    """Each token's loss from the window of `trained` tokens that ends where its stride does, or where the text does."""
    model, ids = tiny_decoder(), random_ids(tokens)
    expected = list(full_forward(model, ids[: min(trained, tokens)], trained))
    window, losses = (0, 0), np.empty(0)
    for token in range(trained, tokens):
        end = min(trained + ((token - trained) // stride + 1) * stride, tokens)
        start = end - trained
        assert trained - stride <= token - start <= trained - 1
        if (start, end) != window:
            window, losses = (start, end), full_forward(model, ids[start:end], trained)
        expected.append(losses[token - start - 1])
    found = cropped_losses(reader_of(model), ids, trained_length=trained, stride=stride, chunk=7)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_crop_takes_what_plain_has() -> None:
    """Given plain's losses, the first window is not run again, and the result is the same."""
    model, ids = tiny_decoder(), random_ids(64)
    plain = window_losses(model, ids, chunk=16)
    seen: list[int] = []
    short = cropped_losses(
        reader_of(model), ids, trained_length=16, stride=4, beginning=plain, chunk=16, advance=seen.append
    )
    assert sum(seen) == 12 * 16
    np.testing.assert_array_equal(short, cropped_losses(reader_of(model), ids, trained_length=16, stride=4, chunk=16))


@pytest.mark.parametrize("first", [1, 15, 16, 17, 40, 63])
def test_crop_may_begin_later(first: int) -> None:
    """`first` drops the earlier losses, changes none of the others, and reads no window that holds only those."""
    model, ids = tiny_decoder(), random_ids(64)
    whole = cropped_losses(reader_of(model), ids, trained_length=16, stride=4)
    seen: list[int] = []
    later = cropped_losses(
        reader_of(model), ids, trained_length=16, stride=4, first=first, chunk=16, advance=seen.append
    )
    np.testing.assert_allclose(later, whole[first - 1 :], atol=1e-5)
    assert sum(seen) == 16 * (sum(end > first for end in range(20, 65, 4)) + (first < 16))
    given_beginning = cropped_losses(
        reader_of(model), ids, trained_length=16, stride=4, first=first, beginning=window_losses(model, ids)
    )
    np.testing.assert_allclose(given_beginning, later, atol=1e-5)


@pytest.mark.parametrize("first", [0, 40])
def test_crop_refuses_a_first_token_outside(first: int) -> None:
    """Nothing comes before token 0, and there is none after the last."""
    with pytest.raises(RopeError, match="one of the window's tokens"):
        cropped_losses(reader_of(tiny_decoder()), random_ids(40), trained_length=16, stride=4, first=first)


@given(st.integers(2, 60), st.integers(2, 40), st.integers(1, 39))
def test_crop_scores_every_token_once(tokens: int, trained: int, stride: int) -> None:
    """Beyond the first window, steps are `trained` long and score consecutive tokens to the end."""
    if stride >= trained:
        return
    scored = list(range(1, min(trained, tokens)))
    for start, end, first in crop_steps(tokens, trained, stride):
        assert end - start == trained
        assert start <= first - (trained - stride) or end == tokens
        scored += range(first, end)
    assert scored == list(range(1, tokens))


def test_crop_refuses_a_stride_that_sees_nothing() -> None:
    """A stride of the whole window would score tokens without any context."""
    with pytest.raises(RopeError, match="stride must be between 1 and trained_length - 1"):
        cropped_losses(reader_of(tiny_decoder()), random_ids(40), trained_length=16, stride=16)


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
