"""What an attached model writes: a folder that transformers loads to the same logits, or a reason why not."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import ropewalk as rw
from ropewalk.methods import METHODS
from tests.attachment.families import outputs_of, small_model

IDS = torch.randint(3, 64, (1, 200), generator=torch.Generator().manual_seed(1))
SAID = [name for name, record in METHODS.items() if record.config is not None and not record.crops]


@pytest.mark.parametrize("method", [None, *SAID])
@torch.no_grad()
def test_a_saved_model_is_the_attached_one(tmp_path, method):
    """Loaded by transformers alone, with its float32 angles; the live config stays as it was."""
    model = small_model("llama")
    own, stated = outputs_of(model, IDS), dict(model.config.rope_parameters)
    with rw.attached(model, method, target=256):
        expected = outputs_of(model, IDS)
        model.save_pretrained(tmp_path)
        assert (model.config.rope_parameters, model.config.max_position_embeddings) == (stated, 64)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    if method == "dynamic":  # its class goes by each call's length, the handle by the target
        loaded.model.rotary_emb(torch.zeros(1, 1), torch.tensor([[255]]))
    assert (outputs_of(loaded, IDS) - expected).abs().max() <= 1e-3
    if method is not None and METHODS[method].extends:
        assert (own - expected).abs().max() > 0.1
    assert "save_pretrained" not in vars(model)


@torch.no_grad()
def test_blocks_by_layer_type(tmp_path):
    """Gemma 3: full layers get the method's block, windowed ones keep theirs."""
    model = small_model("gemma3_text")
    with rw.attached(model, "yarn", target=256):
        expected = outputs_of(model, IDS)
        model.save_pretrained(tmp_path)
    block = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    assert (block["full_attention"]["rope_type"], block["sliding_attention"]["rope_type"]) == ("yarn", "default")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (outputs_of(loaded, IDS) - expected).abs().max() <= 1e-3


@torch.no_grad()
def test_what_a_config_cannot_say_is_refused(tmp_path):
    """Methods in attention, and ropes that differ where a config has one; nothing is written."""
    with rw.attached(model := small_model("llama"), "self-extend", target=256):
        with pytest.raises(rw.RopeError, match="`self-extend` cannot be written"):
            model.save_pretrained(tmp_path / "a")
        assert outputs_of(model, IDS).isfinite().all()
    with rw.attached(model := small_model("gemma2"), "yarn", target=256) as handle:
        assert [rope.scaling is None for rope in handle.ropes] == [True, False, True, False]
        with pytest.raises(rw.RopeError, match="one rope for all layers"):
            model.save_pretrained(tmp_path / "b")
    assert not list(tmp_path.iterdir())
    model.save_pretrained(tmp_path / "b")
    assert (tmp_path / "b" / "config.json").exists()
