"""Every number, list and null of a config has its type and range, or is refused before it is used."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.checkpoints.load import read_config
from ropewalk.rope.config import ropes_of_layer_types
from ropewalk.rope.frequencies import attention_factor_of, columns_of

LLAMA = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.1, "truncate": True}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
LONG = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "short_mscale": 1.0,
    "long_mscale": 1.1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {**LLAMA, "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    "dynamic": {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "yarn": {**LLAMA, "rope_parameters": YARN},
    "llama3": {**LLAMA, "rope_parameters": LLAMA3},
    "longrope": {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 32, "rope_scaling": LONG},
    "axes": {**LLAMA, "model_type": "qwen2_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "layer types": {
        **LLAMA, "model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": YARN},
    },
    "latent": {**LLAMA, "model_type": "deepseek_v32", "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "rope_theta": 1e4},
    "neox": {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 1e4},
    "gptj": {"model_type": "gptj", "n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": 64},
    "tower": {"model_type": "qwen2_vl", "depth": 2, "embed_dim": 64, "num_heads": 4, "patch_size": 14},
    "lists": {**LLAMA, "model_type": "step3p5", "layer_types": ["full_attention", "sliding_attention"],
              "rope_theta": [1e4, 1e6], "partial_rotary_factors": [0.5, 1.0]},
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, "2", 2.0, 2.5, -1, 0, 1, True, 1e308, 1e-308, float("inf"), float("nan"), 30_000_000, 2**63, 10**23, 10**400,
    [], {}, [[]], ["a"], [1e308],
)  # fmt: skip


def places(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value."""
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def with_value(config: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed: Any = copy.deepcopy(config)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", CONFIGS)
def test_any_value_is_used_or_refused(name: str) -> None:
    """Odd values anywhere: the frequencies, or RopeError, and no memory for what a config only states."""
    config, refused, read = CONFIGS[name], 0, 0
    assert ropes_of_layer_types(config)
    for path in places(config):
        for value in ODD:
            changed = with_value(config, path, value)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    for rope in ropes_of_layer_types(changed).values():
                        if rope is not None:
                            assert all(map(abs, columns_of(rope, 20)))
                            assert attention_factor_of(rope, 20) > 0
                    read += 1
                except rw.RopeError:
                    refused += 1
    assert (read > 5, refused > 60) == (True, True)


def test_a_decoder_of_any_size_is_built_or_refused(tmp_path: Path) -> None:
    """Our own decoder's config.json, too."""
    for path in places(CONFIGS["plain"]):
        for value in ODD:
            (tmp_path / "config.json").write_text(json.dumps(with_value(CONFIGS["plain"], path, value)))
            with suppress(rw.RopeError):
                assert read_config(tmp_path).num_hidden_layers <= 2**20


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("plain", {"num_hidden_layers": "2"}, "`num_hidden_layers` must be a whole number from 1 to 1,048,576"),
        ("plain", {"num_hidden_layers": 2.0}, "`num_hidden_layers` must be a whole number"),
        ("plain", {"num_hidden_layers": 30_000_000}, "`num_hidden_layers` must be a whole number"),
        ("plain", {"max_position_embeddings": 2**63}, "`max_position_embeddings` must be a whole number"),
        ("plain", {"head_dim": 2**31}, "`head_dim` must be a whole number"),
        ("plain", {"partial_rotary_factor": 1e308}, "`partial_rotary_factor` must be a number above 0, at most 1"),
        ("neox", {"rotary_pct": 1.5}, "`rotary_pct` must be a number above 0, at most 1"),
        ("longrope", {"original_max_position_embeddings": 0}, "`original_max_position_embeddings` must be a whole"),
        ("lists", {"rope_theta": [[], 1e6]}, "`rope_theta` must be a finite number"),
        ("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 1e308}}, "`factor` must be a number from 1"),
        ("yarn", {"rope_parameters": {**YARN, "beta_fast": 1e308}}, "`beta_fast` must not be below"),
        ("yarn", {"rope_parameters": {**YARN, "mscale": 1e308}}, "`mscale` must be a number above 0, at most"),
        ("plain", {"rope_theta": 1e32}, "`theta` must be a number above 1, at most 1e.31"),
    ],
)
def test_numbers_have_a_range(name: str, change: dict[str, Any], message: str) -> None:
    """The key, its value and the range."""
    with pytest.raises(rw.RopeError, match=message):
        ropes_of_layer_types({**CONFIGS[name], **change})


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("plain", {"rope_theta": None}, "rope_theta"),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "rope_theta"),
        ("plain", {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": None}}, "rope_theta"),
        ("yarn", {"rope_parameters": {**YARN, "partial_rotary_factor": None}}, "partial_rotary_factor"),
        ("plain", {"model_type": "stablelm", "partial_rotary_factor": None}, "partial_rotary_factor"),
        ("plain", {"rope_parameters": {"rope_type": None, "rope_theta": 1e4}}, "rope_type"),
        ("longrope", {"original_max_position_embeddings": None}, "original_max_position_embeddings"),
        ("axes", {"rope_scaling": {"type": "mrope", "mrope_section": None}}, "mrope_section"),
        ("plain", {"model_type": "qwen3", "head_dim": None}, "head_dim"),
        ("latent", {"qk_rope_head_dim": None}, "qk_rope_head_dim"),
        ("gptj", {"rotary_dim": None}, "rotary_dim"),
        ("plain", {"model_type": "deepseek_v3", "rope_interleave": None}, "rope_interleave"),
    ],
)
def test_null_is_no_default(name: str, change: dict[str, Any], key: str) -> None:
    """transformers keeps the null and fails, or computes another rope; an absent key has the class's default."""
    with pytest.raises(rw.RopeError, match=f"`{key}` (is null|must be a string)"):
        ropes_of_layer_types({**CONFIGS[name], **change})


def test_a_fraction_of_one_head_may_exceed_it() -> None:
    """EfficientLoFTR rotates its whole width of eight heads, as four times a head on each of two axes."""
    sizes = {"model_type": "efficientloftr", "hidden_size": 256, "num_attention_heads": 8}
    for share, right in ((4.0, True), (9.0, False)):
        config = {**sizes, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": share}}
        with nullcontext() if right else pytest.raises(rw.RopeError, match="above 0, at most 8"):
            assert rw.RopeConfig.from_hf(config).rotary_dim == 256


def test_null_where_transformers_has_a_meaning_for_it() -> None:
    """`truncate: null` does not truncate; the others are as if they were absent."""
    without = {key: value for key, value in YARN.items() if key in list(YARN)[:4]}

    def read(block: dict[str, Any]) -> rw.RopeConfig:
        return rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": block})

    assert read({**without, "truncate": None}) == read({**without, "truncate": False}) != read(without)
    for key in list(YARN)[4:-1]:
        assert read({**without, key: None}) == read(without)
    assert rw.RopeConfig.from_hf({**LLAMA, "head_dim": None, "rope_theta": 1e4}).head_dim == 16
