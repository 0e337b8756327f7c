"""The reader against our own decoder with the same weights, and a decoder as a model to read."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk import precision
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.opening import fast_copy, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from ropewalk.rope.scaling import DynamicNTK
from ropewalk.tokenizer import TextTokenizer
from tests.checkpoints.random_models import random_model
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_decoder_is_read_as_transformers_llama(interleaved: bool) -> None:
    """With its own weights, half-split if they are interleaved; one that no config describes is refused."""
    rope = dataclasses.replace(ROPE, interleaved=interleaved, scaling=DynamicNTK(2.0))
    model, ids = tiny_decoder(rope), random_ids(40)
    reader: Any = reader_of(model)
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(model(ids[None], seq_len=40)[0, :-1], ids[1:], reduction="none")
    assert abs(reader.window_losses(ids, chunk=7) - wanted.numpy()).max() < 1e-4
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
