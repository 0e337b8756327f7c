"""Every trap fires on the config that falls into it, and is silent on the one that does not."""

from __future__ import annotations

import copy
import json
import math
import warnings
from typing import Any

import pytest
import torch

from ropewalk.audit.findings import Finding
from ropewalk.audit.traps import lint
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import inverse_frequencies
from ropewalk.rope.model_ropes import ModelRopes
from tests.rope.models import transformers_config
from tests.rope.test_config import CONFIGS, ODD, places, with_value

PLAIN: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}  # fmt: skip
LLAMA31: dict[str, Any] = PLAIN | {"max_position_embeddings": 131072, "rope_scaling": {
    "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}}  # fmt: skip
QWEN25: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}  # fmt: skip
LONGROPE: dict[str, Any] = {
    "model_type": "phi3", "hidden_size": 96, "num_attention_heads": 2, "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 24, "long_factor": [32.0] * 24},
}  # fmt: skip


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262144}
DEFAULT_MROPE: dict[str, Any] = {"type": "mrope", "mrope_section": [11, 11, 10]}


def qwen35(block: dict[str, Any]) -> dict[str, Any]:
    """A Qwen3.5 with a vision tower and this rope block."""
    text = {"model_type": "qwen3_5_text", "hidden_size": 5120, "num_attention_heads": 24, "head_dim": 256}
    text |= {"max_position_embeddings": 262144, "rope_parameters": {"rope_theta": 1e7, **block}}
    return {"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 2}}


QWEN35 = qwen35({"rope_type": "default", **DEFAULT_MROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.25})
del QWEN35["text_config"]["rope_parameters"]["type"]
STEP35: dict[str, Any] = {
    "model_type": "step3p5", "head_dim": 128, "num_attention_heads": 64, "max_position_embeddings": 262144,
    "sliding_window": 512, "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2,
    "rope_theta": [5e6, 1e4, 1e4, 1e4] * 2, "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 2,
    "yarn_only_types": ["full_attention"],
    "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072,
                     "low_freq_factor": 1.0, "high_freq_factor": 32.0},
}  # fmt: skip


def changed(config: dict[str, Any], scaling: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A copy with other keys; a value of ... removes the key; `scaling` changes the rope block the same way."""
    new = copy.deepcopy(config)
    block = new.setdefault("rope_scaling", {})
    for target, pairs in ((block, scaling or {}), (new, changes)):
        for key, value in pairs.items():
            target.pop(key, None)
            if value is not ...:
                target[key] = value
    if not block:
        del new["rope_scaling"]
    return new


def found_in(config: dict[str, Any]) -> list[Finding]:
    with warnings.catch_warnings():  # of keys that are not used
        warnings.simplefilter("ignore")
        return lint(config, ModelRopes.from_hf(config))


def codes(config: dict[str, Any]) -> list[str]:
    """The codes that fire."""
    return [finding.code for finding in found_in(config)]


MEDIUM35 = changed(
    QWEN25,
    {"factor": 64.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.0, "beta_fast": 4.0},
    model_type="ministral3", head_dim=128, max_position_embeddings=262144,
)  # fmt: skip
OLMO3 = {**PLAIN, "model_type": "olmo3"}
NESTED = {"full_attention": {**YARN, "original_max_position_embeddings": 8192, "rope_theta": 5e5},
          "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}  # fmt: skip
WRITTEN = {"rope_theta": 1e7, **DEFAULT_MROPE, **YARN, "mrope_interleaved": True, "partial_rotary_factor": 0.25}
del WRITTEN["type"]
# code: a config, and the same after its cure. The rope stays what transformers computes, or becomes that of a third.
CURED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None]] = [
    ("factor-vs-lengths", changed(QWEN25, max_position_embeddings=32768), QWEN25, None),
    ("factor-vs-lengths", qwen35(WRITTEN), {**qwen35(WRITTEN), "text_config": {
        **qwen35(WRITTEN)["text_config"], "max_position_embeddings": 1048576}}, None),
    ("factor-vs-lengths", changed(QWEN25, {"factor": 2.0}),
     changed(QWEN25, {"factor": 2.0}, max_position_embeddings=65536), None),
    ("old-spelling", changed(QWEN25, {"type": "linear"}), QWEN25, None),
    ("theta-missing", changed(PLAIN, rope_theta=...), changed(PLAIN, rope_theta=1e4), None),
    ("theta-elsewhere", {**PLAIN, "model_type": "gpt_neox"}, changed(
        PLAIN, model_type="gpt_neox", rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
     changed(PLAIN, model_type="gpt_neox", rope_theta=..., rotary_emb_base=5e5)),
    ("theta-elsewhere", {**OLMO3, "rope_theta": 1e6}, changed(OLMO3, rope_theta=..., rope_parameters={
        label: {"rope_type": "default", "rope_theta": 1e6} for label in NESTED}), {**PLAIN, "rope_theta": 1e6}),
    ("original-max-overridden", changed(LLAMA31, original_max_position_embeddings=4096),
     changed(LLAMA31, {"original_max_position_embeddings": ...}, original_max_position_embeddings=4096), None),
    ("mscale-one-sided", changed(QWEN25, {"mscale": 0.7}), QWEN25, None),
    ("mscale-one-sided", changed(QWEN25, {"mscale_all_dim": 1.0}), QWEN25, None),
    ("local-layers-scaled", changed(QWEN25, model_type="cohere2"), changed(PLAIN, model_type="cohere2", rope_theta=1e6),
     changed(PLAIN, model_type="cohere2", rope_theta=1e6)),
    ("block-outside-text", {**QWEN35, "rope_parameters": YARN}, qwen35(WRITTEN), qwen35(WRITTEN)),
    ("axes-unwritten", qwen35(YARN), qwen35(WRITTEN), None),
]  # fmt: skip
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("unread-settings", changed(PLAIN, use_fope=True), changed(PLAIN, use_fope=False)),
    (
        "dynamic-cache",
        changed(PLAIN, {"rope_type": "dynamic", "factor": 1.0}),
        changed(PLAIN, {"rope_type": "linear", "factor": 4.0}),
    ),
    (
        "softmax-mscale",
        changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 40.0}, model_type="deepseek_v3"),
        changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 40.0}),
    ),
    ("block-outside-text", {**QWEN35, "rope_parameters": YARN}, {**QWEN35, "rope_parameters": DEFAULT_MROPE}),
    (
        "axes-unwritten",
        {**qwen35(YARN)["text_config"], "head_dim": 128, "model_type": "qwen2_vl", "vision_config": {"depth": 2}},
        qwen35(YARN)["text_config"],
    ),
    ("longrope-switch", LONGROPE, changed(LONGROPE, {"long_factor": [1.0] * 24})),
]


@pytest.mark.parametrize(("code", "trapped", "clean"), [*CASES, *(case[:3] for case in CURED)])
def test_a_trap_fires_and_is_silent(code: str, trapped: dict[str, Any], clean: dict[str, Any]) -> None:
    """On a config that falls into it, and on one that does not."""
    assert code in codes(trapped)
    assert code not in codes(clean)


def test_findings_come_by_severity_and_name_their_layers() -> None:
    """Errors first; a nested block is named."""
    nested = {**NESTED, "full_attention": {**NESTED["full_attention"], "mscale": 0.7}}
    found = found_in({**OLMO3, "rope_parameters": nested})
    assert [f.severity for f in found] == ["warning", "note"]
    assert {f.layer_type for f in found} == {"full_attention"}
    assert all(isinstance(f, Finding) and f.message and f.cure for f in found)


def severity(code: str, config: dict[str, Any]) -> str:
    """Of a finding."""
    return next(finding.severity for finding in found_in(config) if finding.code == code)


@pytest.mark.parametrize(
    ("code", "wrong", "unusual"),
    [
        # a scaling that covers less than what is promised, and one that the model was trained with
        ("factor-vs-lengths", changed(QWEN25, max_position_embeddings=1_000_000), changed(LLAMA31, {"factor": 8.0})),
        ("factor-vs-lengths", changed(QWEN25, {"factor": 2.0}), changed(QWEN25, max_position_embeddings=32768)),
        # nothing resets the cache of a llama; Phi-3's generate does
        ("longrope-switch", changed(LONGROPE, model_type="llama"), LONGROPE),
    ],
)
def test_warnings_are_for_what_is_wrong(code: str, wrong: dict[str, Any], unusual: dict[str, Any]) -> None:
    """And notes for what is unusual."""
    assert (severity(code, wrong), severity(code, unusual)) == ("warning", "note")


def test_nobody_is_told_to_change_what_a_model_was_trained_with() -> None:
    """gpt-oss was trained with one scaling for both of its layer types."""
    own = {"factor": 32.0, "original_max_position_embeddings": 4096}
    shipped = changed(QWEN25, own, model_type="gpt_oss", head_dim=64)
    local = changed(shipped, layer_types=["sliding_attention", "full_attention"])
    assert "local-layers-scaled" not in codes(local)
    mistral = {
        **QWEN25,
        "model_type": "mistral",
        "sliding_window": 4096,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    }
    unknown = {key: value for key, value in mistral.items() if key != "max_position_embeddings"}
    assert "local-layers-scaled" not in codes(unknown)


def test_a_text_config_is_followed() -> None:
    """Multimodal configs hold the language model one level down."""
    text = changed(LLAMA31, {"factor": 8.0})
    for parts in ({"text_config": text}, {"language_config": text}, {"thinker_config": {"text_config": text}}):
        assert codes({"model_type": "some_vl", **parts}) == ["factor-vs-lengths"]


def test_a_clean_config_is_clean() -> None:
    """Llama 3 as it was released has no finding."""
    assert codes(PLAIN) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_any_value_is_linted(name: str) -> None:
    """Numbers, lists and nulls of any kind anywhere never raise, by the ropes of the config as it was."""
    ropes = ModelRopes.from_hf(CONFIGS[name])
    for path in places(CONFIGS[name]):
        for value in ODD:
            assert isinstance(lint(with_value(CONFIGS[name], path, value), ropes), list)


# --- cures, each followed


@pytest.mark.parametrize(("code", "config", "cured", "expected"), CURED)
def test_a_followed_cure_ends_its_finding(
    code: str, config: dict[str, Any], cured: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    """And leaves the rope that it promises: that of transformers' class before, or of the model as trained."""
    assert code not in codes(cured)
    rotating = ModelRopes.from_hf(cured).rotating
    full = rotating.get("full_attention") or next(iter(rotating.values()))
    wanted = next(iter(ModelRopes.from_hf(config if expected is None else expected).rotating.values()))
    for length in (100, 100_000):
        assert frequencies(full, length) == pytest.approx(frequencies(wanted, length), rel=1e-12)


def frequencies(rope: RopeConfig, length: int) -> list[float]:
    """With the attention factor, and the axis of each pair."""
    found = inverse_frequencies(rope, seq_len=length if rope.needs_seq_len else None)
    return [*found.inv_freq.flatten().tolist(), found.attention_factor]


def test_one_mscale_of_two() -> None:
    """Mistral Medium 3.5 has mscale 1 and mscale_all_dim 0: its class keeps 0.1 ln(64) + 1, and 1 at both."""
    from transformers.models.ministral3.modeling_ministral3 import Ministral3RotaryEmbedding as Own

    both = changed(MEDIUM35, {"mscale_all_dim": 1.0})
    factors = [Own(transformers_config(config)).attention_scaling for config in (MEDIUM35, both)]
    assert factors == pytest.approx([0.1 * math.log(64) + 1, 1.0])
    assert "mscale-one-sided" not in codes(MEDIUM35)
    assert next(iter(ModelRopes.from_hf(MEDIUM35).rotating.values())).trained is None  # its block is not Ministral 3's
    # vLLM 0.32.0's rotary_embedding/deepseek_scaling_rope.py, lines 44 to 60: DeepSeek's formula
    (found,) = [f for f in found_in(changed(MEDIUM35, {"mscale": 0.7})) if f.code == "mscale-one-sided"]
    assert (found.severity, f"{0.07 * math.log(64) + 1:.4f}" in found.message) == ("warning", True)


def test_settings_outside_the_text_config() -> None:
    """Qwen3.5's class leaves its language model as it was under a linear block, and stops at a yarn block."""
    from transformers import Qwen3_5Config

    text = {key: value for key, value in QWEN35["text_config"].items() if key != "model_type"}
    linear = {"rope_type": "linear", "factor": 4.0}
    outside = Qwen3_5Config(text_config=text, rope_parameters=dict(linear)).text_config.rope_parameters
    assert outside == Qwen3_5Config(text_config=text).text_config.rope_parameters
    with pytest.raises(AttributeError, match="max_position_embeddings"):
        Qwen3_5Config(text_config=text, rope_parameters=dict(YARN))
    assert "block-outside-text" in codes({**QWEN35, "rope_parameters": linear})
    assert "block-outside-text" in codes({**QWEN35, "rope_theta": 5e5})  # a theta, too


def test_axes_that_only_the_class_knows() -> None:
    """transformers fills in what vLLM 0.32.0 looks for in the block (rotary_embedding/__init__.py, line 259)."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding as Own

    own, lost = (Own(transformers_config(qwen35(block))) for block in (WRITTEN, YARN))
    assert own.mrope_section == lost.mrope_section == [11, 11, 10]
    assert torch.equal(own.inv_freq, lost.inv_freq)
    assert "mrope_section" not in lost.config.rope_parameters
    (found,) = [f for f in found_in(qwen35(YARN)) if f.code == "axes-unwritten"]
    assert json.loads("{" + found.cure.partition(": ")[2].rstrip(".") + "}").items() <= WRITTEN.items()


def test_the_block_of_step_3_5_is_for_full_layers() -> None:
    """As in its class, and in vLLM 0.32.0's models/step3p5.py, lines 155 to 158."""
    from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig

    stated = {key: value for key, value in STEP35.items() if key not in ("model_type", "yarn_only_types")}
    own = Step3p7TextConfig(**copy.deepcopy(stated), num_hidden_layers=8).rope_parameters
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ropes = ModelRopes.from_hf(STEP35)
    for label, rope in ropes.rotating.items():
        read = rope.to_hf()
        assert {key: read[key] for key in ("rope_type", "rope_theta")} == {
            key: own[label][key] for key in ("rope_type", "rope_theta")
        }
    assert codes(STEP35) == []
