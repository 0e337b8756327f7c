"""Float32 copies of models in bfloat16, on a CPU that multiplies that slowly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.readers.loading import fast_copy, reader_of
from ropewalk.rotation.backends import widened
from tests.readers.random_models import random_model


def made(kind: str) -> Any:
    """A model in bfloat16."""
    return load("tiny", dtype=torch.bfloat16) if kind == "decoder" else random_model("phi3").bfloat16()


@pytest.mark.parametrize("kind", ["decoder", "transformers"])
def test_a_copy_measures_as_the_model_in_float32(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied weights stay tied, the model keeps its dtype, and the copy's losses are those of its weights in float32.

    The frequencies that `.bfloat16()` has rounded are exact again, as in the model itself once it is attached.
    """
    monkeypatch.setattr(widened, "fast_bfloat16", lambda device: False)
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
    """A copy needs 1.5 times its bytes."""
    monkeypatch.setattr(widened, "fast_bfloat16", lambda device: False)
    model = made("decoder")
    needed = 6 * sum(weight.numel() for weight in model.parameters())
    for free, copied in ((needed, False), (needed + 1, True)):
        monkeypatch.setattr("psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free))
        fast, sentence = fast_copy(model)
        assert (fast is not model) == copied
        assert sentence is not None
        assert ("float32 is several times faster; a float32 copy needs 0.0 GB" in sentence) == (not copied)
    pair = (model, None)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0))
    assert fast_copy(pair)[0] is pair


def test_a_fast_dtype_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does what is no model."""
    monkeypatch.setattr(widened, "fast_bfloat16", lambda device: True)
    model = made("decoder")
    assert fast_copy(model) == (model, None)
    monkeypatch.setattr(widened, "fast_bfloat16", lambda device: False)
    wide = model.float()
    assert fast_copy(wide) == (wide, None)
    assert fast_copy("tiny") == ("tiny", None)
