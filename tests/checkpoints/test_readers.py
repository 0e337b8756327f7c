"""The reader against our own decoder with the same weights, and a decoder as a model to read."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ropewalk as rw
from ropewalk import precision
from ropewalk.checkpoints.live_model import half_losses
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.opening import fast_copy, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.scaling import DynamicNTK
from ropewalk.tokenizer import TextTokenizer
from tests.checkpoints.random_models import random_model
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, window_losses


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_decoder_is_read_as_transformers_llama(interleaved: bool) -> None:
    """With its own weights, half-split if they are interleaved; one that no config describes is refused."""
    rope = dataclasses.replace(ROPE, interleaved=interleaved, scaling=DynamicNTK(2.0))
    model, ids = tiny_decoder(rope), random_ids(40)
    reader: Any = reader_of(model)
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(model(ids[None], seq_len=40)[0, :-1], ids[1:], reduction="none")
    assert abs(reader.window_losses(ids, chunk=1) - wanted.numpy()).max() < 1e-4
    theirs = reader.model.model.layers[0].self_attn.v_proj.weight
    assert theirs.data_ptr() == model.layers[0].self_attn.v_proj.weight.data_ptr()
    with pytest.raises(RopeError, match="only decoders in Llama's layout"):
        reader_of(tiny_decoder(rope=None))


def test_what_a_reader_is() -> None:
    """A Decoder becomes one, a reader stays one, anything else is refused with its type."""
    reader = reader_of(tiny_decoder(), "mine")
    assert isinstance(reader, Reader)
    assert reader.name == "mine"
    assert reader_of(reader) is reader
    for other in (torch.nn.Linear(2, 2), 3, None):
        with pytest.raises(RopeError, match=f"cannot be measured[\\s\\S]*{type(other).__name__}"):
            reader_of(other)
    with pytest.raises(RopeError, match="applies only to a live model"):
        rw.doctor("tiny", tokenizer=TextTokenizer.bytes())


# --- float32 copies of models in bfloat16, on a CPU that multiplies that slowly


def made(kind: str) -> Any:
    """A model in bfloat16."""
    return load("tiny", dtype=torch.bfloat16) if kind == "decoder" else random_model("phi3").bfloat16()


@pytest.mark.parametrize("kind", ["decoder", "transformers"])
def test_a_copy_measures_as_the_model_in_float32(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied weights stay tied, the model keeps its dtype, and the copy's losses are those of its weights in float32.

    The frequencies that `.bfloat16()` has rounded are exact again, as in the model itself once it is attached.
    """
    monkeypatch.setattr(precision, "fast_bfloat16", lambda device: False)
    model = made(kind)
    fast, sentence = fast_copy(model)
    assert sentence == "Measured in a float32 copy: bfloat16 products are slow on this CPU."
    assert isinstance(fast, torch.nn.Module)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in fast.parameters()} == {torch.float32}
    assert sum(weight.numel() for weight in fast.parameters()) == sum(weight.numel() for weight in model.parameters())
    ids = torch.randint(3, 250, (40,), generator=torch.Generator().manual_seed(1))
    found = reader_of(fast).window_losses(ids)
    assert reader_of(fast).dtype == torch.float32
    exact = load("tiny", dtype=torch.bfloat16).float() if kind == "decoder" else random_model("phi3")
    for ours, theirs in zip(exact.parameters(), model.parameters(), strict=True):
        ours.data.copy_(theirs)
    assert (found == reader_of(exact).window_losses(ids)).all()
    (copied, tokenizer), _ = fast_copy((model, "a tokenizer"))  # type: ignore[misc]
    assert tokenizer == "a tokenizer"
    assert copied is not model


def test_without_memory_the_model_is_measured_and_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or in a pair with its tokenizer."""
    monkeypatch.setattr(precision, "fast_bfloat16", lambda device: False)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0))
    model = made("decoder")
    for given in (model, (model, None)):
        fast, sentence = fast_copy(given)
        assert fast is given
        assert "float32 is several times faster; a float32 copy needs 0.0 GB" in str(sentence)


def test_a_fast_dtype_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does what is no model."""
    model = made("decoder")
    for fast, given in ((True, model), (False, model.float()), (False, "tiny")):
        monkeypatch.setattr(precision, "fast_bfloat16", lambda device, fast=fast: fast)
        assert fast_copy(given) == (given, None)


# --- losses of windows


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
    """`until` gets the losses so far after each chunk; its True ends the window. `advance` counts every token."""
    model, ids = tiny_decoder(), random_ids(60)
    seen, passed = list[int](), list[int]()

    def enough(losses: np.ndarray) -> bool:
        seen.append(len(losses))
        return len(losses) >= most

    whole = window_losses(model, ids, chunk=16, advance=passed.append)
    part = window_losses(model, ids, chunk=16, until=enough)
    assert passed == [16, 16, 16, 12]
    assert len(part) == seen[-1] == next(length for length in (16, 32, 48, 59) if length >= most)
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
