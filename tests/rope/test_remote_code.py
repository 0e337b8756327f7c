"""Models whose code lies beside their weights: a config of each in its releases' keys, against that code's formulas."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.families import FAMILIES, SOURCES
from ropewalk.rope.model_ropes import ModelRopes
from tests import oracle
from tests.rope.models import transformers_config

WIDTHS = {"hidden_size": 4096, "num_attention_heads": 32}
QWEN = {**WIDTHS, "kv_channels": 128, "rotary_pct": 1.0, "rotary_emb_base": 10000, "max_position_embeddings": 32768}
CHATGLM = {**WIDTHS, "kv_channels": 128, "original_rope": True}
MINIMAX = {
    "hidden_size": 6144, "num_attention_heads": 64, "head_dim": 128, "rotary_dim": 64, "rope_theta": 10_000_000,
    "max_position_embeddings": 10_240_000,
}  # fmt: skip
KIMI = {
    "hidden_size": 7168, "num_attention_heads": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 5e4,
    "max_position_embeddings": 131_072,
}  # fmt: skip
# (model_type, its keys, head_dim, features that turn, how they pair, theta, tokens)
CASES: list[tuple[str, dict[str, Any], int, int, str, float, int | None]] = [
    ("internlm", {**WIDTHS, "max_position_embeddings": 4096}, 128, 128, "half", 1e4, 4096),
    ("internlm2", {**WIDTHS, "rope_theta": 1e6, "max_position_embeddings": 32768}, 128, 128, "half", 1e6, 32768),
    ("baichuan", {**WIDTHS, "max_position_embeddings": 4096}, 128, 128, "half", 1e4, 4096),
    ("bailing_moe", {**WIDTHS, "head_dim": 64, "rope_theta": 6e5}, 64, 64, "half", 6e5, None),
    ("deepseek", {"hidden_size": 2048, "num_attention_heads": 16, "rope_theta": 1e4}, 128, 128, "half", 1e4, None),
    ("minicpm", {"hidden_size": 2304, "num_attention_heads": 36}, 64, 64, "half", 1e4, None),
    ("qwen", {**QWEN, "use_dynamic_ntk": False}, 128, 128, "half", 1e4, 32768),
    ("llada", {"d_model": 4096, "n_heads": 32, "rope": True, "rope_theta": 5e5, "max_sequence_length": 4096},
     128, 128, "half", 5e5, 4096),
    ("minimax_text_01", MINIMAX, 128, 64, "half", 1e7, 10_240_000),
    ("minimax_m1", MINIMAX, 128, 64, "half", 1e7, 10_240_000),
    ("chatglm", {**CHATGLM, "seq_length": 32768}, 128, 64, "interleaved", 1e4, 32768),
    ("chatglm", {**CHATGLM, "seq_length": 131_072, "rope_ratio": 500}, 128, 64, "interleaved", 5e6, 131_072),
    ("kimi_k2", KIMI, 64, 64, "interleaved", 5e4, 131_072),
]  # fmt: skip
SARVAM = {**WIDTHS, "head_dim": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
# Families of transformers 5.24 with the class of a different family: Llama, GLM-4-MoE, DeepSeek-V3
NEWER: list[tuple[str, dict[str, Any], int, int, str, float, int | None]] = [
    ("exaone", {**WIDTHS, "num_layers": 32}, 128, 128, "half", 5e5, None),
    ("sarvam_moe", {**WIDTHS, "head_dim": 64}, 64, 64, "half", 8e6, None),
    ("sarvam_moe", {**WIDTHS, "head_dim": 64, "partial_rotary_factor": 0.5}, 64, 32, "half", 8e6, None),
    ("sarvam_mla", {**SARVAM, "max_position_embeddings": 131_072}, 64, 64, "interleaved", 1e4, 131_072),
]


@pytest.mark.parametrize(
    ("model_type", "fields", "head_dim", "width", "pairing", "theta", "longest"),
    CASES + NEWER,
    ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES + NEWER)],
)
def test_what_the_published_code_computes(
    model_type: str, fields: dict[str, Any], head_dim: int, width: int, pairing: str, theta: float, longest: int | None
) -> None:
    """Queries turned by the formula of the model's own file, in float64; the remaining features pass through."""
    config = rw.RopeConfig.from_hf({"model_type": model_type, **fields})
    assert (config.head_dim, config.max_position_embeddings, config.theta) == (head_dim, longest, theta)
    x, ids = torch.randn(1, 9, 2, head_dim, dtype=torch.float64), torch.randint(0, 5000, (9,))
    inv_freq = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = (ids[:, None] * inv_freq)[:, None]
    expected = oracle.rotate(x.numpy(), angles.numpy(), interleaved=pairing == "interleaved")
    actual = rw.RotaryEmbedding(config).rotate(x, position_ids=ids)
    torch.testing.assert_close(actual, torch.from_numpy(expected), rtol=0, atol=1e-10)


def test_scaling_of_remote_code() -> None:
    """InternLM2's dynamic NTK and Kimi-K2's YaRN are transformers' formulas, which their files hold copies of."""
    internlm = {"model_type": "internlm2", **WIDTHS, "max_position_embeddings": 32768, "rope_theta": 1e6}
    block = {"type": "dynamic", "factor": 2.0}
    assert rw.RopeConfig.from_hf({**internlm, "rope_scaling": block}).scaling == rw.scaling.DynamicNTK(2.0)
    yarn = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    kimi = rw.RopeConfig.from_hf({"model_type": "kimi_k2", **KIMI, "rope_scaling": yarn})
    deepseek = rw.RopeConfig.from_hf({"model_type": "deepseek_v3", **KIMI, "rope_scaling": yarn})
    assert kimi == deepseek
    assert rw.RotaryEmbedding(kimi).attention_factor == 1.0
    sarvam = {"model_type": "sarvam_mla", **KIMI, "rope_scaling": {**yarn, "type": "deepseek_yarn"}}
    assert rw.RopeConfig.from_hf(sarvam) == deepseek


def test_layers_of_families_of_5_24() -> None:
    """Dory has two thetas, Lara Mini rotates only layers with a window, and both have other layers between them."""
    dory = {"model_type": "dory", "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"]}
    ropes = ModelRopes.from_hf(dory).by_type
    assert {label: (rope.head_dim, rope.theta) for label, rope in ropes.items() if rope} == {
        "sliding_attention": (256, 1e4),
        "full_attention": (256, 1e7),
    }
    lara = {"model_type": "lara_mini", "layer_types": ["linear_attention", "sliding_attention", "full_attention"]}
    ropes = ModelRopes.from_hf(lara).by_type
    assert [label for label, rope in ropes.items() if rope] == ["sliding_attention"]
    with pytest.raises(rw.RopeError, match="no rotation"):
        rw.RopeConfig.from_hf(lara, layer_type="full_attention")


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40}, "only the 7B models rotate"),
        ({"model_type": "chatglm", **CHATGLM, "position_encoding_2d": True}, "by different positions"),
        ({"model_type": "chatglm", **CHATGLM, "original_rope": False}, "false pairs otherwise"),
        ({"model_type": "chatglm", **CHATGLM, "_name_or_path": "THUDM/chatglm2-6b-32k"}, "divides positions"),
        ({"model_type": "chatglm", **CHATGLM, "rope_ratio": "500"}, "`rope_ratio` must be a finite number"),
        ({"model_type": "qwen", **QWEN, "use_dynamic_ntk": True}, "change in steps"),
        ({"model_type": "internlm", **WIDTHS, "rotary": {"base": 10000, "type": "dynamic"}}, "`rotary` block"),
        ({"model_type": "minicpm", **WIDTHS, "rope_scaling": {"type": "longrope"}}, "LongRoPE also scales"),
        ({"model_type": "minicpm", **WIDTHS, "rope_parameters": {"rope_type": "longrope"}}, "LongRoPE also scales"),
        ({"model_type": "llada", "d_model": 64, "n_heads": 4, "rope": False}, "this llada has no rotation"),
    ],
)
def test_configs_that_another_formula_belongs_to(fields: dict[str, Any], message: str) -> None:
    """One model_type, several formulas: where the config says that it is another one, it is refused with the reason."""
    with pytest.raises(rw.RopeError, match=message):
        rw.RopeConfig.from_hf(fields)


def test_every_source_is_of_a_family() -> None:
    """Each remote family says where it was read, and each source has its family and a test above."""
    tested = {case[0] for case in CASES}
    assert set(SOURCES) == tested
    assert set(SOURCES) <= set(FAMILIES)


# --- lengths and theta in places of their own


def test_lengths_of_dbrx_and_falcon() -> None:
    """DBRX calls it max_seq_len; Falcon's releases are silent, and its class takes 2048. Both as transformers reads."""
    dbrx = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "max_seq_len": 32768}
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "alibi": False}
    for fields, expected in ((dbrx, 32768), (falcon, 2048), ({**falcon, "max_position_embeddings": 8192}, 8192)):
        assert rw.RopeConfig.from_hf(fields).max_position_embeddings == expected
        assert transformers_config(fields).max_position_embeddings == expected
    del dbrx["max_seq_len"]
    assert rw.RopeConfig.from_hf(dbrx).max_position_embeddings == 2048


def test_deviation_dbrx_theta() -> None:
    """transformers 5.23 drops the rope_theta inside DBRX's attn_config, which its releases state; here it counts."""
    fields = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8, "rope_theta": 5e5}}
    assert transformers_config(json.loads(json.dumps(fields))).rope_parameters["rope_theta"] == 10_000.0
    assert rw.RopeConfig.from_hf(fields).theta == 5e5
