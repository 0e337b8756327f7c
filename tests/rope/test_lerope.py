"""LeRoPE's learned factors, against the formula written out here and transformers' own Mistral Large 4."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.load import read_alpha
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import DynamicNTK, LeRoPE, Linear, Stacked, YaRN, rule_from_dict

ALPHA = (0.3, -0.2, 0.1, -0.7, 0.05, 0.0, 1.1, -0.4)
BLOCK = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 512,
         "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.25}  # fmt: skip
CONFIG: dict[str, Any] = {"model_type": "mistral_large4_text", "qk_rope_head_dim": 16, "rope_parameters": BLOCK,
                          "max_position_embeddings": 4096}  # fmt: skip


def rope(**changes: Any) -> rw.RopeConfig:
    """The rope of the config with our alpha."""
    return rw.RopeConfig.from_hf({**CONFIG, **changes}, alpha=ALPHA)


@pytest.mark.parametrize("block", [BLOCK, {"rope_type": "default", "rope_theta": 5e5}])
def test_it_is_what_transformers_computes(block):
    """The rotation of the live class, by its own tables and its own function, with alpha from the live module."""
    modeling = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    from transformers import AutoConfig

    fields = {**CONFIG, "rope_parameters": block}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    module = modeling.MistralLarge4TextRotaryEmbedding(config)
    module.alpha.data.copy_(torch.tensor(ALPHA))  # a buffer, or from transformers 5.24 on a parameter
    ours = rw.RopeConfig.from_hf(config, alpha=module.alpha)
    x, ids = torch.randn(2, 3, 7, 16), torch.randint(0, 500, (2, 7))
    turned, _ = modeling.apply_rotary_pos_emb_interleave(x, None, *module(x, ids))
    rotary, halves = rw.RotaryEmbedding(ours), partial(rw.convert_pairing, to="half")  # the order of its result
    found = halves(rotary.rotate(x, position_ids=ids, layout="bhsd"))
    torch.testing.assert_close(found, turned, rtol=0, atol=2e-4)  # its angles are float32
    plain = rw.RotaryEmbedding(replace(ours, scaling=ours.scaling.of))
    assert (halves(plain.rotate(x, position_ids=ids, layout="bhsd")) - turned).abs().max() > 0.5


def test_without_alpha_nothing_is_assumed():
    """The config alone is refused, with the call that reads alpha; so is an alpha that would have no effect."""
    for read in (rw.RopeConfig.from_hf, ModelRopes.from_hf):
        with pytest.raises(rw.RopeError, match=r"ropewalk\.checkpoints\.load\.read_alpha\(folder\)"):
            read(CONFIG)
        with pytest.raises(rw.RopeError, match="no effect"):
            read({"model_type": "llama", "head_dim": 16}, alpha=ALPHA)
        with pytest.raises(rw.RopeError, match="one `alpha` for each pair"):
            read(CONFIG, alpha=ALPHA[:-1])
    with pytest.raises(rw.RopeError, match="one finite number"):
        rw.RopeConfig.from_hf(CONFIG, alpha=(*ALPHA[:-1], math.nan))


def test_every_layer_type_and_none():
    """The composite's model_type too; zeros are plain YaRN."""
    zeros = [0.0] * 8
    composite = {"model_type": "mistral_large4", "text_config": {k: v for k, v in CONFIG.items() if k != "model_type"}}
    assert rw.RopeConfig.from_hf(composite, alpha=ALPHA) == rope()
    assert ModelRopes.from_hf(CONFIG, alpha=ALPHA).by_type == {None: rope()}
    plain = rw.RopeConfig.from_hf({**CONFIG, "model_type": "mistral4"})
    np.testing.assert_allclose(rw.RopeConfig.from_hf(CONFIG, alpha=zeros).columns_at(), plain.columns_at(), rtol=1e-15)


def test_a_method_starts_from_the_learned_frequencies():
    """A rule on top scales them; the length scaling alone can be removed."""
    learned = rope().scaling
    halved = replace(rope(), scaling=Stacked(learned, Linear(2.0)))
    np.testing.assert_allclose(halved.columns_at(), np.array(rope().columns_at()) / 2, rtol=1e-15)
    unscaled = rope().unscaled()
    np.testing.assert_allclose(unscaled.columns_at(), 1e4 ** (-np.arange(8) / 8) * np.exp(ALPHA), rtol=1e-14)
    assert unscaled.unscaled() == unscaled
    assert unscaled.scaling_is_trained is None
    trained = rope(rope_parameters={**BLOCK, "factor": 8.0})
    assert (trained.scaling_is_trained, trained.trained_length, trained.original_length) == (True, 4096, 512)


@pytest.mark.parametrize("of", [None, DynamicNTK(4.0), YaRN(4.0, 512)])
def test_it_takes_over_what_its_rule_needs(of):
    """Lengths act as in the rule without factors."""
    config = rw.RopeConfig(16, interleaved=True, scaling=LeRoPE(ALPHA, of), max_position_embeddings=64)
    plain = replace(config, scaling=of)
    for length in (32, 64, 300):
        expected = np.array(plain.columns_at(length)) * np.exp(ALPHA)
        np.testing.assert_allclose(config.columns_at(length), expected, rtol=1e-14)
    names = ("needs_seq_len", "switch_length", "original_length", "scaled_length")
    assert [getattr(config, name) for name in names] == [getattr(plain, name) for name in names]
    assert config.longest_at(100) == plain.longest_at(100)
    assert rule_from_dict(config.scaling.to_dict()) == config.scaling


def test_its_block_is_that_of_the_config():
    """Without the factors, which the class applies itself; a method on top of them has no block."""
    for block in (BLOCK, {"rope_type": "default", "rope_theta": 10_000.0}):
        written = rope(rope_parameters=block).to_hf()
        assert rope(rope_parameters=written) == rope(rope_parameters=block)
        assert written["rope_type"] == block["rope_type"]
    with pytest.raises(rw.RopeError, match="by them again"):
        replace(rope(), scaling=Stacked(rope().scaling, Linear(2.0))).to_hf()


@pytest.mark.parametrize("name", ["lerope.alpha", "model.language_model.rotary_emb.alpha"])
def test_alpha_is_read_from_a_checkpoint(name: str, tmp_path: Path):
    """From Mistral's own files and from transformers', whichever shard holds it."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"layers.0.attention.wq.weight": torch.randn(2, 2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(rw.RopeError, match="exactly one"):
        read_alpha(tmp_path)
    stored = torch.tensor(ALPHA, dtype=torch.float32)
    save_file({name: stored, f"{name}s": torch.zeros(8)}, tmp_path / "model-00002-of-00002.safetensors")
    assert read_alpha(tmp_path) == tuple(stored.double().tolist())
    save_file({name: stored}, tmp_path / "copy.safetensors")
    with pytest.raises(rw.RopeError, match="exactly one"):
        read_alpha(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(rw.RopeError, match="safetensors"):
        read_alpha(tmp_path / "empty")
