"""The table of model families is plain data, and each family stands in it once."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.audit.findings import blocks
from ropewalk.audit.traps import lint, query_scale
from ropewalk.errors import NoRotation
from ropewalk.families import FAMILIES, NO_ROTATION, REFUSED, Condition, Trained
from ropewalk.families.family import HALF, FamilyTable
from ropewalk.families.trained import FACTS
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import RULES
from tests.rope.models import fixture, fixture_names, transformers_config


def test_every_row_is_plain_data() -> None:
    """Numbers, strings, lists and dicts, as JSON has them; functions only for what single families do differently."""
    for family in FAMILIES.values():
        row = asdict(family)
        functions = row.pop("adjust"), row.pop("finish")
        assert json.loads(json.dumps(row))
        assert all(one is None or one.__module__ == "ropewalk.families.adjustments" for one in functions)


def test_families_are_spelled_once() -> None:
    """No family is both described and refused, and no row is written over another."""
    assert set(FAMILIES) & {*REFUSED, *NO_ROTATION} == set()
    table = FamilyTable()
    table.add("one two", HALF, theta=5.0)
    assert table["two"].theta == 5.0
    with pytest.raises(AssertionError, match="described twice"):
        table.add("two", HALF)


@pytest.mark.parametrize(
    ("condition", "passes", "fails"),
    [
        (Condition("", values=(None, False, 0)), [None, 0], [1, ""]),
        (Condition("", values=(False,)), [False], [None, 0]),
        (Condition("", without="chatglm2"), [None, "x/chatglm3"], ["x/ChatGLM2-6B"]),
        (Condition("", rope_types=("linear",)), [None, {"type": "linear"}, [1]], [{}, {"rope_type": "yarn"}]),
    ],
)
def test_conditions(condition: Condition, passes: list[Any], fails: list[Any]) -> None:
    """They ask for a value, a rule, or what a text must not contain; 0 is not False where only False is meant."""
    assert all(map(condition.holds, passes))
    assert not any(map(condition.holds, fails))


# --- what each published configuration was trained to

K = 1024
# For each published configuration: tokens of its longest training sequences, and whether the scaling that it carries
# (None: it carries none, or nothing published says) was there. Sources: src/ropewalk/families/trained.py, and for those
# without a fact the model's own card or report, which says the length that its config states.
PUBLISHED: dict[str, tuple[int, bool | None]] = {
    "aya_23_8b": (8 * K, None),  # arXiv:2405.15032: context 8,192
    "command_r": (128 * K, None),  # card: 128K; max_position_embeddings says 8,192
    "deepseek_v2_lite": (32 * K, True),  # arXiv:2405.04434: YaRN at 32K
    "deepseek_v3": (128 * K, True),  # arXiv:2412.19437: YaRN at 32K, then 128K
    "gemma_2_2b": (8 * K, None),  # arXiv:2408.00118
    "gemma_3_1b": (32 * K, None),  # arXiv:2503.19786: the 1B model stays at 32K
    "gemma_3_27b": (128 * K, True),  # arXiv:2503.19786: scaled by 8 at the end of pre-training
    "gemma_4_e4b": (128 * K, None),  # card: 128K
    "glm_4_32b": (32 * K, None),  # card: 32K
    "gpt_j_6b": (2 * K, None),  # card: 2,048
    "gpt_oss_120b": (128 * K, True),  # arXiv:2508.10925
    "internlm2_5_7b_dynamic": (32 * K, False),  # arXiv:2403.17297: 32K; dynamic NTK beyond
    "laguna_s": (8 * K, None),  # no report of its long-context training was found: the length before its scaling
    "llama_2_7b": (4 * K, None),  # arXiv:2307.09288
    "llama_3_1_8b": (128 * K, True),  # arXiv:2407.21783
    "llama_3_2_1b": (128 * K, True),  # card: 128K
    "llama_4_scout": (256 * K, True),  # Meta AI 2025: 256K, and length generalisation to 10M
    "ministral_3_3b": (256 * K, True),  # arXiv:2601.08584
    "mistral_7b_v0_1": (8 * K, None),  # arXiv:2310.06825, table 1
    "mistral_7b_v0_3": (32 * K, None),  # card: 32K
    "modernbert_base": (8 * K, None),  # arXiv:2412.13663
    "olmo_3_1_32b": (64 * K, True),  # arXiv:2512.13961
    "phi_3_5_mini": (128 * K, True),  # arXiv:2404.14219
    "phi_3_5_vision_su": (128 * K, True),
    "phi_4_mini": (128 * K, True),  # arXiv:2503.01743
    "pythia_1b": (2 * K, None),  # arXiv:2304.01373
    "qwen2_0_5b": (32 * K, None),  # arXiv:2407.10671
    "qwen2_5_7b_yarn": (32 * K, False),  # arXiv:2412.15115: YaRN at inference
    "qwen2_5_vl_7b": (32 * K, None),  # arXiv:2502.13923, table 2; the config says 128,000
    "qwen2_vl_7b": (32 * K, None),
    "qwen3_0_6b": (32 * K, None),  # arXiv:2505.09388; the config says 40,960
    "qwen3_5_9b": (256 * K, None),  # card: 262,144
    "qwen3_8b": (32 * K, None),
    "qwen3_next_80b": (256 * K, None),  # card: 262,144
    "qwen3_vl_4b": (256 * K, None),  # card: 256K
    "redpajama_3b": (2 * K, None),  # card: 2,048
    "smollm2_135m": (8 * K, None),  # arXiv:2502.02737: extended to 8K
    "smollm3_3b": (64 * K, None),  # card: 64K
    "stablelm_3b": (4 * K, None),  # card: 4,096
    "starcoder2_7b": (16 * K, None),  # arXiv:2402.19173: 16,384, windows of 4,096
}


def furthest(config: Any) -> rw.RopeConfig:
    """The rope of the full layers, or the only one."""
    ropes = {label: rope for label, rope in ModelRopes.from_hf(config).by_type.items() if rope is not None}
    return ropes.get("full_attention") or next(iter(ropes.values()))


@pytest.mark.parametrize("name", fixture_names())
def test_what_published_models_were_trained_to(name: str) -> None:
    """The length and the scaling, from the config.json and from transformers' object."""
    for config in (fixture(name), *(() if name == "phi_3_5_vision_su" else (transformers_config(fixture(name)),))):
        rope = furthest(config)
        assert (rope.trained_length, rope.scaling_is_trained) == PUBLISHED[name]
        kept = PUBLISHED[name][1] is True
        assert rope.as_trained() == (rope if kept else rope.unscaled())


LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1}
VICUNA = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "trained"),
    [
        ({**VICUNA, "max_sequence_length": 16_384}, (16_384, True)),
        (VICUNA, (4096, None)),  # PI may be anybody's: it is measured
        ({"rope_parameters": YARN, "max_position_embeddings": 65_536}, (4096, None)),
        ({"rope_parameters": {**YARN, "finetuned": True}, "max_position_embeddings": 65_536}, (65_536, True)),
        ({"rope_parameters": {**YARN, "finetuned": False}, "max_position_embeddings": 65_536}, (4096, False)),
        # what `ropewalk extend --method llama3` writes of SmolLM2 is not Llama 3.1's
        ({"rope_parameters": {**LLAMA3, "rope_theta": 1e5}, "max_position_embeddings": 32_768}, (8192, None)),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4096}, (4096, False)),
        ({"model_type": "qwen3", "rope_parameters": YARN, "max_position_embeddings": 40_960}, (4096, False)),
        ({"model_type": "qwen3", "max_position_embeddings": 262_144}, (262_144, None)),  # the 2507 models
        ({"model_type": "cohere", "max_position_embeddings": 8192, "model_max_length": 131_072}, (131_072, None)),
        ({"model_type": "gpt_oss"}, (131_072, True)),
        ({}, (None, None)),
    ],
)
def test_variants_of_one_model_type(fields: dict[str, Any], trained: tuple[int | None, bool | None]) -> None:
    """A fact holds of the configs that it is about, and of no others."""
    rope = rw.RopeConfig.from_hf({**LLAMA, **fields})
    assert (rope.trained_length, rope.scaling_is_trained) == trained


def test_every_fact_has_its_source() -> None:
    """Known families and rules, a source, and something said."""
    for fact in FACTS:
        assert set(fact.families.split()) <= set(FAMILIES), fact
        assert set(fact.rules.split()) <= {
            "default",
            *(rule.hf_names[0] for rule in RULES.values() if rule.hf_names),
        }, fact
        assert fact.trained.source, fact
        assert fact.trained.with_scaling is not None or fact.trained.length or fact.length_key, fact
        assert fact.trained.with_scaling is None or fact.rules != "default", fact


def test_ropes_that_differ_in_their_training_alone_are_equal() -> None:
    """They turn alike, so one table serves both."""
    one, other = (rw.RopeConfig(8, interleaved=False, trained=trained) for trained in (None, Trained(True, 64)))
    assert one == other
    assert (hash(one), repr(one)) == (hash(other), repr(other))
    assert (one.trained_length, other.trained_length) == (None, 64)


def test_a_fact_needs_the_block_that_was_trained_with() -> None:
    """Another factor in the same family is another checkpoint, or somebody's own: neither its fact nor its source."""
    for fact in FACTS:
        if fact.trained.with_scaling and fact.length_key is None:
            assert fact.where, fact
    block = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16_384, "rope_theta": 1e6}
    base = {**LLAMA, "model_type": "ministral3", "max_position_embeddings": 262_144}
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": block}).trained is not None
    medium = {**block, "factor": 64.0, "original_max_position_embeddings": 4096}  # Mistral Medium 3.5
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": medium}).trained is None
    scaled = {key: value for key, value in block.items() if key != "factor"} | {"llama_4_scaling_beta": 0.1}
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": {**scaled, "rope_type": "default"}}).scaling is None


# --- facts about classes, from transformers' own code


def modules() -> Iterator[tuple[str, Any, str]]:
    """The name of each family, with the modeling module of its class and the source of that module."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    for name in FAMILIES:
        for known in (name, name.removesuffix("_text")):
            folder = model_type_to_module_name(known)
            found = importlib.util.find_spec(f"transformers.models.{folder}")
            files = sorted(Path(found.submodule_search_locations[0]).glob("modeling_*.py")) if found else []
            if known in CONFIG_MAPPING_NAMES and files:
                yield name, f"transformers.models.{folder}.{files[0].stem}", files[0].read_text()
                break


@pytest.mark.parametrize(
    ("field", "code", "more"),
    [
        ("softmax_mscale", "mscale_all_dim", {"kimi_k2", "sarvam_mla"}),  # DeepSeek-V3's code under their own type
        ("resets_cache", "input_ids.shape[1] >= self.config.original_max_position_embeddings + 1", set()),
        ("query_scale", "_4_attn_scale(|attn_temperature_tuning and", set()),
    ],
)
def test_every_relative_is_listed(field: str, code: str, more: set[str]) -> None:
    """A field is set for each family whose class has this code, modular copies among them, and for no other."""
    asked = [(name, source) for name, _, source in modules() if "vision" not in name]
    has = {name for name, source in asked if any(part in source for part in code.split("|"))}
    assert len(asked) > 150
    assert {name for name, family in FAMILIES.items() if getattr(family.module, field)} == has | more


def test_the_second_mscale_acts_in_the_softmax() -> None:
    """The scale of a class's attention, measured with and without mscale_all_dim."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3Config

    block = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "rope_theta": 5e4}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "head_dim": 8}
    scales = [
        DeepseekV3Attention(DeepseekV3Config(**sizes, rope_parameters={**block, **more}), layer_idx=0).scaling
        for more in ({}, {"mscale": 1.0, "mscale_all_dim": 1.0})
    ]
    config = {"model_type": "kimi_k2", **sizes, "rope_parameters": {**block, "mscale": 1.0, "mscale_all_dim": 1.0}}
    (found,) = [finding for finding in lint(config, ModelRopes.from_hf(config)) if finding.code == "softmax-mscale"]
    assert f"softmax scale by {scales[1] / scales[0]:.3f}" in found.message


def test_the_scale_of_queries_by_position() -> None:
    """Ministral 3's function, and Llama 4's formula with its class's defaults."""
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    block = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16_384}
    block |= {"llama_4_scaling_beta": 0.1}
    slope, length = query_scale(next(blocks({"model_type": "ministral3", "rope_parameters": block})))
    own = get_llama_4_attn_scale(torch.tensor([[99_999]]), 0.1, 16_384).item()
    assert 1 + slope * math.log1p(99_999 // length) == pytest.approx(own)
    config = transformers_config({"model_type": "llama4_text"})
    assert query_scale(next(blocks(config.to_dict()))) == (config.attn_scale, config.floor_scale)


NOTHING: dict[str, dict[str, Any]] = {
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp"], "n_groups": 1, "mamba_num_heads": 4},
    "zamba": {"num_hidden_layers": 12},
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_class_that_rotates_nothing(name: str) -> None:
    """Its logits do not depend on position_ids; a config with a theta and a stated pairing is refused all the same."""
    auto = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 16, "pad_token_id": 0, "num_key_value_heads": 2}
    sizes |= {"num_attention_heads": 2, "use_mamba_kernels": False, "mamba_head_dim": 8, **NOTHING[name]}
    config = auto.AutoConfig.for_model(name, **sizes)
    torch.manual_seed(0)
    model = auto.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(1, 16, (1, 9))
    with torch.no_grad():
        here, there = (model(ids, position_ids=torch.arange(9)[None] * step).logits for step in (1, 7))
    assert torch.equal(here, there)
    assert not torch.equal(here[:, -1], model(ids.flip(-1)).logits[:, -1])
    with pytest.raises(NoRotation, match=f"{name} uses no positions in attention"):
        rw.RopeConfig.from_hf({**config.to_dict(), "rope_theta": 1e4, "rope_interleave": True})


def test_every_causal_family_without_rotation_is_listed() -> None:
    """transformers' causal models whose code calls no rotation, without composites, which have no attention."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    composite = {"gemma4_assistant", "gemma4_unified_assistant", "got_ocr2", "fuyu", "moss_transcribe_diarize", "emu3",
                 "mllama", "musicgen", "musicgen_melody"}  # fmt: skip
    for name in {*CAUSAL} - composite:
        folder = Path(importlib.util.find_spec("transformers.models").submodule_search_locations[0])
        files = (folder / model_type_to_module_name(name)).glob("modeling_*.py")
        calls = re.findall(
            r"(?<!def )\b(?:apply_rotary\w*|rotary_emb|rotary_fn)\(", "".join(map(Path.read_text, files))
        )
        assert calls or name in NO_ROTATION or name in FAMILIES, name
