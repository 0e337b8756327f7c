"""Losses in chunks, and from hidden states: to within rounding, whatever the weights are kept in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ropewalk.checkpoints.live_model import half_losses
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from tests.diagnosis.models import random_ids, tiny_decoder, window_losses


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
    reader = reader_of(load("tiny", dtype=torch.float32), "tiny")
    windows = torch.tensor(reader.tokenizer.encode(read_text(None)[1][30_000:60_000]))[: 2 * 512].view(2, 512)
    means = {}
    for dtype in (torch.float32, torch.bfloat16):
        reader = reader_of(load("tiny", dtype=dtype))
        assert reader.dtype == dtype
        for method in ("plain", "dca"):
            variant = reader.under(METHODS[method].positions(reader.positions, Reach(256, 512)))
            means[dtype, method] = np.mean([variant.window_losses(window) for window in windows])
    off = [means[torch.bfloat16, method] - means[torch.float32, method] for method in ("plain", "dca")]
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


# --- from hidden states

VOCAB, HIDDEN, TOKENS = 700, 64, 300


def material(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, a head and targets with logits around 20, as language models have, and losses of a few nats."""
    weight = (torch.randn(VOCAB, HIDDEN) + 1.0).to(dtype)
    targets = torch.randint(VOCAB, (TOKENS,))
    towards = weight[targets].float() - 1.0
    return (torch.randn(TOKENS, HIDDEN) * 0.1 + towards * 0.08 + 0.3).to(dtype), weight, targets


def exact_losses(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Minus the log of the softmax, in float64."""
    likely = (hidden.double() @ weight.double().t()).log_softmax(-1)
    return -likely[torch.arange(len(targets)), targets]


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 3e-3), (torch.float16, 4e-4)])
def test_losses_are_exact_whatever_the_weights(dtype: torch.dtype, error: float) -> None:
    """In a half type a logit of 20 is off by up to 0.06; a loss is not, because its own differences are small."""
    hidden, weight, targets = material(dtype)
    exact = exact_losses(hidden, weight, targets)
    found = half_losses(hidden, weight, targets)
    assert found.dtype == torch.float32
    assert (found - exact).abs().square().mean().sqrt() < error
    if dtype == torch.bfloat16:
        assert float((hidden.double() @ weight.double().t()).amax(-1).mean()) > 15
        rounded = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
        assert (rounded - exact).abs().square().mean().sqrt() > 3 * error
