"""Agreement with transformers 5.23: its own frequencies, and its own modules turning the same queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ropewalk as rw
from tests.rope.models import Model, check_frequencies, fixture, fixture_names, transformers_config

transformers = pytest.importorskip("transformers")

TWO_TYPES = ("full_attention", "sliding_attention")
NESTED = ("gemma_3_1b", "gemma_3_27b", "gemma_4_e4b", "laguna_s", "modernbert_base", "olmo_3_1_32b")
FLAT_TYPES = {"llama_4_scout": "chunked_attention"}  # one block for all layers, and some layers do not rotate
CASES = [
    pytest.param(name, layer_type, id=f"{name}-{layer_type}" if layer_type else name)
    for name in fixture_names()
    for layer_type in (TWO_TYPES if name in NESTED else (FLAT_TYPES.get(name),))
]


def for_transformers(name: str) -> dict[str, Any]:
    """The fixture as transformers 5.23 can read it: "su" raises a KeyError there (see the deviations below)."""
    fields = fixture(name)
    if (fields.get("rope_scaling") or {}).get("type") == "su":
        fields["rope_scaling"]["type"] = "longrope"
    return fields


def rotations(model: Model, config: rw.RopeConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random queries turned by transformers and by ropewalk, every axis at its own positions."""
    q = torch.randn(2, 3, 7, config.head_dim)
    shape = (2, 7) if config.num_axes == 1 else (2, 7, config.num_axes)
    positions = torch.randint(0, 20, shape)
    expected = model.rotate(q, positions if config.num_axes == 1 else positions.movedim(-1, 0))
    seq_len = 20 if config.needs_seq_len else None
    actual = rw.RotaryEmbedding(config).rotate(q, position_ids=positions, seq_len=seq_len, layout="bhsd")
    return actual, expected


@pytest.mark.parametrize(("name", "layer_type"), CASES)
def test_published_configs(name: str, layer_type: str | None) -> None:
    """Frequencies and attention factor are the module's own within 1e-6; its apply function rotates alike.

    The config.json and the config object of transformers give equal RopeConfigs, and transformers computes the same
    frequencies from the block of `to_hf` in place of the published one.
    """
    config, fields = rw.RopeConfig.from_hf(fixture(name), layer_type=layer_type), for_transformers(name)
    theirs = transformers_config(fields)
    assert rw.RopeConfig.from_hf(theirs, layer_type=layer_type) == config
    model = Model(theirs, layer_type)
    torch.testing.assert_close(*rotations(model, config), rtol=0, atol=1e-5)
    check_frequencies(config, model)
    text, block = fields.get("text_config", fields), config.to_hf()
    if text["model_type"] == "gptj":  # its class has no rope_parameters
        return
    for key in ("rope_scaling", "rope_theta", "rotary_emb_base", "original_max_position_embeddings"):
        text.pop(key, None)
    text["rope_parameters"] = {**_other_types(name, layer_type), layer_type: block} if name in NESTED else block
    if text["model_type"] == "phi3":  # its class keeps the trained length outside the block
        text["original_max_position_embeddings"] = block["original_max_position_embeddings"]
    assert rw.RopeConfig.from_hf(fields, layer_type=layer_type) == config
    check_frequencies(config, Model(transformers_config(fields), layer_type))


def test_a_block_of_a_config_object() -> None:
    """Written into the object later it lacks what the class fills in: GLM-4 then rotates whole heads."""
    config = transformers_config({"model_type": "glm4"})
    assert rw.RopeConfig.from_hf(config).rotary_dim == 64
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    check_frequencies(rw.RopeConfig.from_hf(config), Model(config))
    config = transformers_config({"model_type": "gemma3_text", "rope_parameters": config.rope_parameters})
    for layer_type in TWO_TYPES:  # the block stays next to those of the layer types, without effect
        check_frequencies(rw.RopeConfig.from_hf(config, layer_type=layer_type), Model(config, layer_type))


def _other_types(name: str, layer_type: str | None) -> dict[str, Any]:
    others = [other for other in TWO_TYPES if other != layer_type]
    return {other: rw.RopeConfig.from_hf(fixture(name), layer_type=other).to_hf() for other in others}


# --- where transformers 5.23 is not followed: each of these says so when it changes


def test_deviation_su_raises_there() -> None:
    """Phi-3's "su": transformers renames it too late, misses the trained length and raises; here it reads."""
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        transformers_config(fixture("phi_3_5_vision_su"))
    assert isinstance(rw.RopeConfig.from_hf(fixture("phi_3_5_vision_su")).scaling, rw.scaling.LongRoPE)


def test_deviation_phimoe_beyond_the_switch() -> None:
    """Phi-3.5-MoE in transformers takes the long mscale with the short frequencies; here both switch."""
    fields = fixture("phi_3_5_mini") | {"model_type": "phimoe"}
    fields["rope_scaling"] |= {"short_mscale": 1.1, "long_mscale": 1.2}
    fields["rope_scaling"]["original_max_position_embeddings"] = fields.pop("original_max_position_embeddings")
    config, model = rw.RopeConfig.from_hf(fields), Model(transformers_config(fields))
    cos, sin = model.cos_sin(torch.tensor([[1, 9_999]]))
    short, long = rw.inverse_frequencies(config, 100), rw.inverse_frequencies(config, 10_000)
    angles = torch.atan2(sin, cos)[0, 0, :48].double()
    torch.testing.assert_close(angles, short.inv_freq[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(torch.hypot(cos, sin), torch.full_like(cos, 1.2))
    assert (short.attention_factor, long.attention_factor) == (1.1, 1.2)
    assert not torch.allclose(short.inv_freq, long.inv_freq, rtol=0.1)


def test_deviation_a_missing_trained_length() -> None:
    """transformers fills a missing original_max_position_embeddings in; here it is an error."""
    fields = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 2048}
    fields["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    assert transformers_config(fields).rope_parameters["original_max_position_embeddings"] == 2048
    with pytest.raises(rw.RopeError, match="needs the key `original_max_position_embeddings`"):
        rw.RopeConfig.from_hf(fields)
