"""Every trap fires on the config that falls into it, and is silent on the one that does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ropewalk.audit.findings import Finding
from ropewalk.audit.traps import TRAPS, lint
from ropewalk.checkpoints.checkpoint import ropes_of
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


def codes(config: dict[str, Any], target: int = 32_768, *, known: bool = False) -> list[str]:
    """The codes that fire; `known` hands the RopeConfigs over as well."""
    return [finding.code for finding in lint(config, ropes=ropes_of(config) if known else None, target=target)]


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("factor-vs-lengths", changed(LLAMA31, {"factor": 8.0}), LLAMA31),
    ("factor-vs-lengths", changed(QWEN25, max_position_embeddings=32768), QWEN25),
    ("original-max-missing", changed(QWEN25, {"original_max_position_embeddings": ...}), QWEN25),
    (
        "original-max-overridden",
        changed(LLAMA31, original_max_position_embeddings=4096),
        changed(LLAMA31, original_max_position_embeddings=8192),
    ),
    ("old-spelling", changed(QWEN25, {"rope_type": ..., "type": "yarn"}), QWEN25),
    ("old-spelling", changed(QWEN25, {"type": "linear"}), changed(QWEN25, {"type": "yarn"})),
    ("renamed-type", changed(LONGROPE, {"rope_type": "su"}), LONGROPE),
    ("renamed-type", changed(PLAIN, {"type": "mrope", "mrope_section": [16, 24, 24]}), PLAIN),
    (
        "renamed-type",
        changed(PLAIN, {"rope_type": "dynamic", "alpha": 1000.0}),
        changed(PLAIN, {"rope_type": "dynamic", "factor": 2.0}),
    ),
    ("two-blocks", changed(QWEN25, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), QWEN25),
    ("theta-missing", changed(PLAIN, rope_theta=...), PLAIN),
    ("theta-null", changed(PLAIN, rope_theta=None), PLAIN),
    ("theta-null", changed(QWEN25, {"rope_theta": None}), QWEN25),
    ("unread-settings", changed(PLAIN, use_fope=True), changed(PLAIN, use_fope=False)),
    (
        "truncate-nested",
        changed(PLAIN, rope_parameters={"full_attention": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}),
        changed(QWEN25, {"truncate": False}),
    ),
    (
        "dynamic-factor",
        changed(PLAIN, {"rope_type": "dynamic", "factor": 4.0}),
        changed(PLAIN, {"rope_type": "dynamic", "factor": 1.0}),
    ),
    (
        "dynamic-cache",
        changed(PLAIN, {"rope_type": "dynamic", "factor": 1.0}),
        changed(PLAIN, {"rope_type": "linear", "factor": 4.0}),
    ),
    (
        "dynamic-original-ignored",
        changed(PLAIN, {"rope_type": "dynamic", "factor": 1.0, "original_max_position_embeddings": 2048}),
        changed(PLAIN, {"rope_type": "dynamic", "factor": 1.0, "original_max_position_embeddings": 8192}),
    ),
    ("attention-factor", changed(QWEN25, {"attention_factor": 1.5}), changed(QWEN25, {"attention_factor": 1.138629})),
    ("attention-factor", changed(QWEN25, {"attention_factor": 1, "factor": 1.0}), QWEN25),
    (
        "attention-factor",
        changed(LONGROPE, {"attention_factor": 1.0}),
        changed(LONGROPE, {"attention_factor": 1.190238}),
    ),
    ("mscale-one-sided", changed(QWEN25, {"mscale": 1.0}), changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 1.0})),
    ("mscale-one-sided", changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 0.0}), QWEN25),
    (
        "softmax-mscale",
        changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 40.0}, model_type="deepseek_v3"),
        changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 40.0}),
    ),
    ("longrope-switch", LONGROPE, changed(LONGROPE, {"long_factor": [1.0] * 24})),
    ("longrope-mscales", changed(LONGROPE, {"short_mscale": 1.2, "long_mscale": 1.2}), LONGROPE),
    (
        "partial-ignored",
        changed(PLAIN, partial_rotary_factor=0.5),
        changed(PLAIN, partial_rotary_factor=0.5, model_type="phi"),
    ),
    ("partial-ignored", changed(PLAIN, partial_rotary_factor=0.5, model_type="qwen2"), PLAIN),
    ("head-dim-null", changed(QWEN25, head_dim=None), changed(QWEN25, head_dim=128)),
    ("head-dim-null", changed(QWEN25, head_dim=None), changed(PLAIN, head_dim=None)),
    (
        "local-layers-scaled",
        changed(QWEN25, layer_types=["sliding_attention", "full_attention"]),
        changed(QWEN25, layer_types=["full_attention", "full_attention"]),
    ),
]


@pytest.mark.parametrize(("code", "trapped", "clean"), CASES)
def test_a_trap_fires_and_is_silent(code: str, trapped: dict[str, Any], clean: dict[str, Any]) -> None:
    """By the keys alone."""
    assert code in codes(trapped)
    assert code not in codes(clean)


COMPUTED: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("yarn-variants", QWEN25, PLAIN, 32_768),
    ("theta-elsewhere", {**PLAIN, "model_type": "gpt_neox"}, PLAIN, 32_768),
    ("theta-elsewhere", {**PLAIN, "model_type": "olmo3", "rope_theta": 1e6}, {**PLAIN, "model_type": "olmo3"}, 32_768),
    ("low-precision-cast", changed(PLAIN, torch_dtype="bfloat16"), changed(PLAIN, torch_dtype="float32"), 32_768),
    ("low-precision-cast", changed(PLAIN, dtype="torch.float16"), PLAIN, 32_768),
    (
        "float32-angles",
        changed(PLAIN, rope_theta=1e4),
        changed(PLAIN, rope_theta=1e4, max_position_embeddings=2048),
        1_000_000,
    ),
    ("theta-small", changed(PLAIN, rope_theta=1e4, max_position_embeddings=32768), PLAIN, 32_768),
    ("theta-small", changed(PLAIN, rope_theta=...), changed(PLAIN, rope_theta=1e4), 32_768),  # lost, and written
    (
        "theta-small",
        changed(PLAIN, rope_theta=1e4, max_position_embeddings=32768),
        changed(PLAIN, rope_theta=1e4, max_position_embeddings=32768, model_type="phi"),  # half of each head turns
        32_768,
    ),
    (
        "stated-length",
        changed(PLAIN, model_type="qwen3", max_position_embeddings=40960),
        changed(PLAIN, model_type="qwen3", max_position_embeddings=262144),
        32_768,
    ),
    (
        "partial-attention-factor",
        changed(QWEN25, model_type="phi", partial_rotary_factor=0.5),
        changed(QWEN25, {"attention_factor": 1.0}, model_type="phi", partial_rotary_factor=0.5),
        32_768,
    ),
]


@pytest.mark.parametrize(("code", "trapped", "clean", "target"), COMPUTED)
def test_a_trap_of_frequencies_fires_and_is_silent(
    code: str, trapped: dict[str, Any], clean: dict[str, Any], target: int
) -> None:
    """Only with the RopeConfig at hand."""
    assert code in codes(trapped, target, known=True)
    assert code not in codes(trapped, target)
    assert code not in codes(clean, 2048 if code == "float32-angles" else target, known=True)


def test_every_trap_has_a_case() -> None:
    """As many distinct codes are tested as there are traps."""
    assert len({case[0] for case in CASES} | {case[0] for case in COMPUTED}) == len(TRAPS)


@pytest.mark.parametrize(
    ("config", "apart"),
    [
        (QWEN25, "1.7x"),
        (
            changed(
                QWEN25,
                {"factor": 16.0, "original_max_position_embeddings": 4096},
                rope_theta=1e4,
                max_position_embeddings=65536,
            ),
            "3.0x",
        ),
    ],
)
def test_yarn_variants_differ_as_measured(config: dict[str, Any], apart: str) -> None:
    """The research note: 1.7x for Qwen at 4, 3.0x for Llama 2 at 16."""
    found = [f for f in lint(config, ropes=ropes_of(config)) if f.code == "yarn-variants"]
    assert apart in found[0].message


def test_deepseek_multiplies_its_softmax_by_1_874() -> None:
    """mscale_all_dim 1 at factor 40."""
    config = changed(QWEN25, {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 40.0}, model_type="deepseek_v3")
    assert any("1.874" in finding.message for finding in lint(config))


def test_dynamic_names_what_its_factor_does() -> None:
    """Factor 4 stretches by 5 at twice the trained length."""
    found = [f for f in lint(changed(PLAIN, {"rope_type": "dynamic", "factor": 4.0})) if f.code == "dynamic-factor"]
    assert "at twice the trained length by 5" in found[0].message


def test_findings_come_by_severity_and_name_their_layers() -> None:
    """Errors first; a nested block is named."""
    config = changed(PLAIN, rope_parameters={"full_attention": {"type": "yarn", "factor": 4.0, "truncate": False}})
    found = lint(config)
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=["error", "warning", "note"].index)
    assert {f.layer_type for f in found} == {"full_attention"}
    assert all(isinstance(f, Finding) and f.message and f.cure for f in found)


def severity(code: str, config: dict[str, Any]) -> str:
    """Of a finding, with the RopeConfigs at hand."""
    return next(finding.severity for finding in lint(config, ropes=ropes_of(config)) if finding.code == code)


@pytest.mark.parametrize(
    ("code", "wrong", "unusual"),
    [
        # a scaling that covers less than what is promised, and one that the model was trained with
        ("factor-vs-lengths", changed(QWEN25, max_position_embeddings=1_000_000), changed(LLAMA31, {"factor": 8.0})),
        ("factor-vs-lengths", changed(QWEN25, {"factor": 2.0}), changed(QWEN25, max_position_embeddings=32768)),
        # nothing resets the cache of a llama; Phi-3's generate does
        ("longrope-switch", changed(LONGROPE, model_type="llama"), LONGROPE),
        # a key that is not there, and one that is
        ("theta-small", changed(PLAIN, rope_theta=...), changed(PLAIN, rope_theta=1e4, max_position_embeddings=32768)),
    ],
)
def test_warnings_are_for_what_is_wrong(code: str, wrong: dict[str, Any], unusual: dict[str, Any]) -> None:
    """And notes for what is unusual."""
    assert (severity(code, wrong), severity(code, unusual)) == ("warning", "note")


def test_nobody_is_told_to_change_what_a_model_was_trained_with() -> None:
    """The same block asks one thing of a model whose scaling it is, and another of one that was given it."""
    shipped = changed(QWEN25, {"attention_factor": 1.5}, model_type="gpt_oss", head_dim=64)
    cures = [{f.code: f.cure for f in lint(config, ropes=ropes_of(config))} for config in (shipped, QWEN25)]
    assert "Keep it" in cures[0]["attention-factor"]
    local = changed(shipped, layer_types=["sliding_attention", "full_attention"])
    assert "local-layers-scaled" not in codes(local, known=True)


def test_a_text_config_is_followed() -> None:
    """Multimodal configs hold the language model one level down."""
    text = changed(LLAMA31, {"factor": 8.0})
    for parts in ({"text_config": text}, {"language_config": text}, {"thinker_config": {"text_config": text}}):
        assert codes({"model_type": "some_vl", **parts}) == ["factor-vs-lengths"]


def test_a_clean_config_is_clean() -> None:
    """Llama 3 as it was released has no finding."""
    assert codes(PLAIN, 8192, known=True) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_any_value_is_linted(name: str) -> None:
    """Numbers, lists and nulls of any kind anywhere never raise; `ropes` are unknown for most of them."""
    for path in places(CONFIGS[name]):
        for value in ODD:
            assert isinstance(lint(with_value(CONFIGS[name], path, value)), list)
