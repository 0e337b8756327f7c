"""Examples of configs, each read as its class of transformers reads it; layers without rotation; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity import causal
from tests.parity.random_configs import compare
from tests.rope.models import fixture

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 8}
PLAIN = {"rope_type": "default", "rope_theta": 12_345.0}
LINEAR = {"rope_type": "linear", "rope_theta": 12_345.0, "factor": 2.0}
LAGUNA = fixture("laguna_s")
LAGUNA["rope_parameters"]["full_attention"]["truncate"] = False
TWO_TYPES = ("full_attention", "sliding_attention")


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
YARN_OF_1E4 = {**YARN, "rope_theta": 1e4}
LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 9 for i in range(32)],
    "long_factor": [1.0 + i for i in range(32)],
    "original_max_position_embeddings": 512,
}
RULES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "dynamic factor 1": {"rope_type": "dynamic", "factor": 1.0},
    "yarn": YARN,
    "yarn factor null": {**YARN, "factor": None},
    "yarn factor below the ratio": {**YARN, "factor": 2.0},
    "yarn not truncated": {**YARN, "truncate": False},
    "yarn attention_factor": {**YARN, "attention_factor": 1.5},
    "yarn mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3},
    "yarn one mscale": {**YARN, "mscale": 0.7},
    "yarn mscale 0": {**YARN, "mscale": 0.0, "mscale_all_dim": 0.3},
    "yarn betas": {**YARN, "beta_fast": 16, "beta_slow": 2},
    "yarn equal betas": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0},
    "yarn short": {**YARN, "original_max_position_embeddings": 8, "factor": 16.0},
    "llama3": {**LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "llama3 equal bands": {**LLAMA3, "low_freq_factor": 1.5, "high_freq_factor": 1.5},
    "longrope": LONGROPE,
    "longrope factor": {**LONGROPE, "factor": 16.0},
    "longrope attention_factor": {**LONGROPE, "attention_factor": 1.25},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.3},
    "proportional factor": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
}


STEP: dict[str, Any] = {
    "model_type": "step3p5",
    "num_hidden_layers": 8,
    "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2,
    "rope_theta": [5e6, 1e4, 1e4, 1e4] * 2,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 2,
}
EXAMPLES: list[dict[str, Any]] = [
    # every rule, with numbers that no checkpoint has
    *({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "head_dim": 64,
       "max_position_embeddings": 2048, "rope_parameters": {**rule, "rope_theta": theta}}
      for rule in RULES.values() for theta in (500.0, 5e6)),
    {"model_type": "mistral4"},
    {"model_type": "jetmoe", "hidden_size": 4096, "num_key_value_heads": 16},
    {"model_type": "zamba2", "use_mem_rope": True},
    {"model_type": "zamba2", "use_mem_rope": True, **SIZES, "kv_channels": 128},
    {"model_type": "zamba2", "use_mem_rope": True, **SIZES, "attention_head_dim": 192},
    {"model_type": "moonshine_streaming", "hidden_size": 320, "num_attention_heads": 8},
    {"model_type": "nemotron3_5_transcribe_asr_audio", **SIZES},
    *({"model_type": name, **SIZES, "rope_parameters": block}
      for name in ("moonshine_streaming", "nemotron3_5_transcribe_asr_audio") for block in (PLAIN, LINEAR)),
    {"model_type": "mimo_v2_flash"},
    *({"model_type": "mimo_v2_flash", "rope_parameters": dict.fromkeys(TWO_TYPES, block)}
      for block in (PLAIN, LINEAR, YARN_OF_1E4)),
    {"model_type": "laguna", "rope_parameters": dict.fromkeys(TWO_TYPES, LINEAR)},
    {"model_type": "glm4_moe_lite", "partial_rotary_factor": 1.0},
    {"model_type": "mellum", "partial_rotary_factor": 0.5},
    *({**fixture("deepseek_v3"), "rope_interleave": flag} for flag in (True, False)),
    # the theta of its flat block is not read
    *({"model_type": "deepseek_v4", key: 5e4, "rope_scaling": YARN_OF_1E4}
      for key in ("rope_theta", "compress_rope_theta")),
    {"model_type": "gpt_neox", **SIZES, "rope_theta": 5e5},
    {**fixture("olmo_3_1_32b"), "rope_theta": 123_456},
    {"model_type": "phi3", "hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 2048,
     "rope_parameters": {**LONGROPE, "rope_theta": 1e4}},
    {"model_type": "phi", **SIZES, "rope_parameters": {"rope_type": "proportional"}},
    {"model_type": "hunyuan_v1_dense", **SIZES, "head_dim": 128,
     "rope_scaling": {"type": "dynamic", "alpha": 1e3, "factor": 1.0}},
    # a rule runs over the rotated features
    *({"model_type": "phi", "hidden_size": 320, "num_attention_heads": 4, "max_position_embeddings": 2048,
       "rope_parameters": {**RULES[rule], "rope_theta": 1e4, "partial_rotary_factor": 0.4}}
      for rule in ("linear", "dynamic", "yarn", "llama3")),
    # `truncate` is read next to the nested blocks, and not in one of them
    *({**LAGUNA, "rope_parameters": {**LAGUNA["rope_parameters"], **outer}} for outer in ({}, {"truncate": False})),
    *({"model_type": name, **SIZES, "rope_theta": 54_321.0}  # beside a default block with its own theta
      for name in ("gpt_oss", "apertus", "cwm", "openai_privacy_filter", "nemotron3_5_transcribe_asr_audio")),
    # settings that lie in lists, one number for each layer, as in released files
    STEP,
    *({**STEP, **theta, "rope_scaling": {**LLAMA3, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0}}
      for theta in ({}, {"rope_theta": 12_345.0})),
    {"model_type": "dots3_note_text"},
    {"model_type": "dots3_note_text", "rope_theta": 1e6, "swa_rope_theta": 2e4},
    *({"model_type": name, **SIZES, "num_hidden_layers": 4, **lists} for name in ("granite_swa", "granitemoe_swa")
      for lists in ({}, {"layer_types": [*TWO_TYPES] * 2, "layer_rope_theta": [5e5, 0, 5e5, 0]})),
    # a fraction that rotates, in each spelling
    {"model_type": "phi", **SIZES, "partial_rotary_factor": 0.25},
    {"model_type": "phi", **SIZES, "rope_parameters": {"partial_rotary_factor": 0.75}},
    {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.5},
    {"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64},
    # a key that the class takes from its default block, one that it does not read, sizes of its own
    {"model_type": "neomme", "rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {}}},
    {"model_type": "deepseek_ocr2_text", **SIZES, "head_dim": 64},
    {"model_type": "efficientloftr", "hidden_size": 256, "num_attention_heads": 8,
     "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 4.0}},
    {"model_type": "clvp_encoder", "hidden_size": 768, "num_attention_heads": 12, "projection_dim": 1536},
    # towers as released: Llama 4, DINOv3 (facebook/dinov3-vits16-pretrain-lvd1689m), Gemma 4, SAM 2.1
    {"model_type": "llama4_vision_model", "hidden_size": 1408, "image_size": 336, "num_attention_heads": 16,
     "patch_size": 14, "rope_theta": 10_000},
    {"model_type": "dinov3_vit", "hidden_size": 384, "image_size": 224, "num_attention_heads": 6, "patch_size": 16,
     "pos_embed_jitter": None, "pos_embed_rescale": 2.0, "pos_embed_shift": None, "rope_theta": 100.0},
    {"model_type": "gemma4_vision"},
    *({"model_type": "sam2_video", "memory_attention_hidden_size": 256, "memory_attention_num_attention_heads": 1,
       "memory_attention_downsample_rate": 1, "memory_attention_rope_theta": theta} for theta in (10_000, 5_000)),
]  # fmt: skip


@pytest.mark.parametrize("fields", EXAMPLES, ids=[f"{at}-{each['model_type']}" for at, each in enumerate(EXAMPLES)])
def test_examples(fields: dict[str, Any]) -> None:
    """Read from the file, the object and the saved folder, as the class itself reads it."""
    found = compare(fields["model_type"], fields)
    sides = ["file"] if fields["model_type"] == "mellum" else ["file", "object", "folder"]
    assert [side for side in sides if not found[f"{side}: equal"]] == []


# --- layers without rotation

TINY: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "num_hidden_layers": 4}
NOPE: dict[str, tuple[str, dict[str, Any]]] = {
    "exaone4": ("exaone4", {}),
    "exaone4 without a window": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "exaone_moe": ("exaone_moe", {}),
    "kolibri1": ("kolibri1", {"layer_types": [*TWO_TYPES] * 2}),
    "llama4": ("llama4_text", {}),
    "llama4 by its list": ("llama4_text", {"no_rope_layers": [1, 0] * 2}),
    "llama4 with every layer": ("llama4_text", {"no_rope_layers": [1] * 4}),
    "cohere2": ("cohere2", {}),
    "cohere2, all sliding": ("cohere2", {"layer_types": ["sliding_attention"] * 4}),
    "afmoe": ("afmoe", {}),
    "flint": ("flint", {}),
}


def rotating_layers(model: Any) -> list[bool]:
    """Whether each layer's own attention module answers to the position embeddings that it is given."""
    found: dict[int, bool] = {}

    def ask(module: Any, args: Any, options: Any, out: Any) -> None:
        tables = options["position_embeddings"]
        other = tables.flip(1) if isinstance(tables, torch.Tensor) else tuple(table.flip(1) for table in tables)
        again = module.forward(*args, **{**options, "position_embeddings": other})
        found[module.layer_idx] = not torch.equal(again[0], out[0])

    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            module.register_forward_hook(ask, with_kwargs=True)
    causal.logits_of(model)
    return [found[layer] for layer in range(model.config.num_hidden_layers)]


@pytest.mark.parametrize("name", NOPE)
def test_layers_without_rotation(name: str) -> None:
    """Each layer type has a rope exactly where the class's attention turns its queries; no silent choice among them."""
    model_type, changes = NOPE[name]
    model, fields = causal.small_model(model_type, **changes), {"model_type": model_type, **TINY, **changes}
    types = model.config.layer_types
    rotating = dict.fromkeys(types, False)
    for layer_type, rotates in zip(types, rotating_layers(model), strict=True):
        rotating[layer_type] |= rotates
    for source in (fields, model.config):
        ropes = ModelRopes.from_hf(source).by_type
        if all(rotating.values()):
            assert list(ropes) == [None]
        else:
            assert {label: rope is not None for label, rope in ropes.items()} == rotating
            with pytest.raises(rw.RopeError, match=r"`layer_type` is None|no layer of this"):
                rw.RopeConfig.from_hf(source)
        for layer_type, rotates in rotating.items():
            if rotates:
                rope = ropes.get(layer_type, ropes.get(None))
                assert rw.RopeConfig.from_hf(source, layer_type=layer_type) == rope
            else:
                with pytest.raises(rw.RopeError, match=r"no rotation|no layer of this"):
                    rw.RopeConfig.from_hf(source, layer_type=layer_type)


def test_without_a_window() -> None:
    """By the attention classes Kolibri's layers rotate, and Cohere's not; their models do not run without a window."""
    fields = {**TINY, "sliding_window": None}
    assert list(ModelRopes.from_hf({"model_type": "kolibri1", **fields}).by_type) == [None]
    assert not any(ModelRopes.from_hf({"model_type": "cohere2", **fields}).by_type.values())


# --- what is refused

GRANITE = {"model_type": "granite_swa", **SIZES, "num_hidden_layers": 4, "layer_types": [*TWO_TYPES] * 2}
NEOMME = {"model_type": "neomme", "head_dim": 6, "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}


SLIDING, FULL = "sliding_attention", "full_attention"
REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    # a fraction, a theta or a rule that would be dropped, or with which the class cannot run
    ({"model_type": "mistral4", "rope_parameters": {"rope_type": "default"}}, None, "its class rotates whole heads"),
    ({"model_type": "glm4_moe_lite", "partial_rotary_factor": 0.5}, None, "means 32 rotated features, .* rotates 64"),
    ({"model_type": "glm4_moe_lite", "rope_parameters": {"partial_rotary_factor": 0.25}}, None, "means 16"),
    ({"model_type": "deepseek_v3", "partial_rotary_factor": 0.5}, None, "means 32 rotated features"),
    ({"model_type": "gpt_neox", **SIZES, "partial_rotary_factor": 0.5}, None, "means 64 .* rotates 32"),
    ({"model_type": "gptj", **SIZES, "rope_theta": 5e5}, None, "ignores rope blocks and `rope_theta`"),
    ({"model_type": "roformer", **SIZES, "rope_theta": 5e5}, None, "ignores rope blocks and `rope_theta`"),
    ({"model_type": "codegen", **SIZES, "rope_scaling": {"type": "linear", "factor": 2.0}}, None, "ignores rope"),
    ({"model_type": "efficientloftr", "hidden_size": 256, "num_attention_heads": 8,  # its fraction is one of a head
      "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 9.0}}, None, "above 0, at most 8"),
    # a type whose layers differ or do not exist, a list without types, settings that the class cannot mean
    ({"model_type": "cohere2", **TINY, "layer_types": [SLIDING] * 8}, FULL, "no rotation"),
    ({**GRANITE, "layer_rope_theta": [1e4, 1e4, 1e5, 1e4]}, SLIDING, "layers of one type differ"),
    ({**GRANITE, "layer_types": None, "layer_rope_theta": [1e4, 0, 1e4, 0]}, SLIDING, "but no `layer_types`"),
    ({**GRANITE, "model_type": "muse_spark_text"}, SLIDING, "4-th layer from the last unrotated"),
    ({**GRANITE, "model_type": "muse_spark_text", "layer_rope_theta": [1e4, 0, 1e4, 0]}, SLIDING,
     "and the config have different thetas; transformers' muse_spark_text ignores the list"),
    ({"model_type": "cohere2_moe", **TINY, "first_k_dense_replace": 1}, SLIDING, "its first dense layers rotate"),
    ({"model_type": "nanochat", **SIZES, "rope_parameters": LINEAR}, SLIDING, "scaling them is not supported"),
    (NEOMME, SLIDING, "their number must be even"),
    # a block of several axes is never read as one
    ({**SIZES, "model_type": "new_text", "rope_interleave": False, "rope_scaling": {"type": "mrope"}}, None,
     "the block has several axes"),
    ({**SIZES, "model_type": "llama", "rope_parameters": {"rope_type": "axial"}}, None, "the block has several axes"),
    ({**SIZES, "model_type": "llama", "rope_scaling": {"type": "mrope"}}, None, "the block has several axes"),
]  # fmt: skip


@pytest.mark.rejects
@pytest.mark.parametrize(("fields", "layer_type", "message"), REFUSED)
def test_what_no_rope_describes_is_refused(fields: dict[str, Any], layer_type: str | None, message: str) -> None:
    """Settings that the class does not read, or that no rope has."""
    with pytest.raises(rw.RopeError, match=message):
        rw.RopeConfig.from_hf(fields, layer_type=layer_type)


# --- vision towers

TOWERS = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm_ocr",
    "paddleocr_vl", "ernie4_5_vl_moe", "video_llama_3",
)  # fmt: skip


@pytest.mark.parametrize("model_type", TOWERS)
def test_vision_configs_under_the_name_of_their_composite(model_type: str) -> None:
    """As released: the vision_config carries the composite's model_type, and is still the tower's, not text M-RoPE."""
    fields = {"vision_config": {"hidden_size": 1280}} if model_type == "qwen2_5_vl" else {}
    config = transformers.AutoConfig.for_model(model_type, **fields).vision_config
    released = {**config.to_dict(), "model_type": model_type}
    rope = rw.RopeConfig.from_hf(released)
    assert rope == rw.RopeConfig.from_hf(config)
    assert (rope.num_axes, rope.axes_restart) == (2, True)


def test_a_stated_pairing_does_not_hide_the_axes() -> None:
    """`rope_interleave`, which our own message advises, says how features pair; the block's `axial` stands."""
    fields = {"hidden_size": 64, "num_heads": 2, "rope_interleave": False}
    rope = rw.RopeConfig.from_hf({**fields, "rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}})
    assert rope == rw.RopeConfig(32, interleaved=False, axes=rw.positions.axes_from_sections([8, 8]), axes_restart=True)
    assert rope.to_hf() == {"rope_type": "axial", "rope_theta": 1e4}


@pytest.mark.parametrize("sections", [(8, 12, 12), (24, 20, 20), (11, 11, 10), (1, 3, 3), (1, 5)])
def test_interleaved_sections_are_clamped(sections: tuple[int, ...]) -> None:
    """Qwen3-VL's own strided slices, which end at the last pair whatever a later section says."""
    total = sum(sections)
    expected = torch.zeros(total, dtype=torch.long)
    for axis, length in enumerate(sections[1:], start=1):
        expected[axis : length * len(sections) : len(sections)] = axis
    assert rw.positions.axes_from_sections(sections, interleaved=True) == tuple(expected.tolist())
