"""Extending models that transformers computes: written folders give the same logits; what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ropewalk import serving
from ropewalk.checkpoints.opening import open_reader
from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.serving.writable import in_dtype
from tests.checkpoints.random_models import folder_of, random_model

IDS = torch.randint(3, 256, (1, 120), generator=torch.Generator().manual_seed(4))
REACH = Reach(32, 128)


def own_losses(folder: Path) -> Any:
    """Nats of every token but the first, by transformers' own forward on a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        likely = model(IDS, use_cache=False).logits[0].double().log_softmax(-1)
    return -likely[:-1].gather(-1, IDS[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize(
    ("family", "method", "length"),
    [
        ("gemma3_text", "yarn", None), ("granite", "ntk", 96), ("gpt_neox", "pi", None), ("glm4", "yarn", None),
        ("cohere", "yarn", None), ("phi3", "yarn", 96), ("phi3", "ntk", None), ("qwen3", "yarn", None),
        ("smollm3", "llama3", None),
    ],
)  # fmt: skip
def test_a_written_folder_computes_the_same(family: str, method: str, length: int | None, tmp_path: Path) -> None:
    """Loaded by transformers alone: partial rotation, blocks by layer type; with the tokenizer beside it.

    A shorter length is stated, and the frequencies stay those of the target.
    """
    folder = folder_of(family, tmp_path / "source")
    settings = serving.ApplySettings(method=method, target=128, length=length)
    done = serving.apply(folder, tmp_path / "out", settings)
    assert done.config["max_position_embeddings"] == (length or 128)
    reader = open_reader(folder)
    under = reader.under(METHODS[method].positions(reader.positions, REACH))
    wanted = under.window_losses(IDS[0])
    assert abs(own_losses(tmp_path / "out") - wanted).max() < 1e-3
    assert abs(reader.window_losses(IDS[0]) - wanted).max() > 1e-2
    written = open_reader(tmp_path / "out")
    assert abs(written.window_losses(IDS[0]) - wanted).max() < 1e-4
    assert written.tokenizer is not None
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == done.config
    assert "rope_parameters" in (tmp_path / "out" / "README.md").read_text()


def test_what_no_config_says_is_refused(tmp_path: Path) -> None:
    """A method in attention, Gemma 2's one block for windowed and full layers, GPT-J."""
    granite = folder_of("granite", tmp_path / "granite")
    with pytest.raises(RopeError, match="inside attention"):
        serving.apply(granite, tmp_path / "out", serving.ApplySettings(method="rerope", target=128))
    with pytest.raises(RopeError, match="gives different ropes"):  # Phi-3's class takes LongRoPE alone
        serving.apply(random_model("phi3"), tmp_path / "out", serving.ApplySettings(method="dynamic", target=128))
    with pytest.raises(RopeError, match="one rope for all layers"):
        serving.apply(random_model("gemma2"), tmp_path / "out", serving.ApplySettings(method="yarn", target=128))
    gptj = random_model("gptj", n_embd=32, n_head=4, n_layer=2, rotary_dim=4, max_position_embeddings=64)
    with pytest.raises(RopeError, match="rotation cannot be replaced"):
        serving.apply(gptj, tmp_path / "out", serving.ApplySettings(method="pi", target=256))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads the folder back: here its config says nothing of the method."""
    monkeypatch.setattr("ropewalk.attachment.Attachment.rope_fields", lambda handle: {})
    with pytest.raises(RopeError, match="computes different logits"):
        serving.apply(random_model("granite"), tmp_path / "out", serving.ApplySettings(method="pi", target=128))
    assert not (tmp_path / "out").exists()


def test_the_model_stays_as_it_was(tmp_path: Path) -> None:
    """A live model is written from a copy, on request in another dtype."""
    model = random_model("granite")
    reader = Reader(model)
    half = in_dtype(reader, torch.bfloat16)
    assert (half.dtype, reader.dtype, model.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert in_dtype(reader, torch.float32) is reader
    serving.apply(model, tmp_path / "out", serving.ApplySettings(method="pi", target=128))
    assert "save_pretrained" not in vars(model)
