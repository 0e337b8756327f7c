"""Every fault that is put into a small live model's rotary modules is found and named; right models have no finding."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk.audit import check
from ropewalk.audit.live_check import examine
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import inverse_frequencies
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import DynamicNTK, LongRoPE, YaRN

pytest.importorskip("transformers")

from tests.parity.causal import causal_families, small_model
from tests.parity.classes import Part, config_of, reading_of, rotary_classes

YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64,
        "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}  # fmt: skip


def made(name: str, **more: Any) -> nn.Module:
    """A small model of a class of transformers; a class without a causal model is built from its own config."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 64}  # fmt: skip
    auto = AutoModel if name == "qwen2_vl_text" else AutoModelForCausalLM
    return auto.from_config(CONFIG_MAPPING[name](**sizes, **more))


def scaled(block: dict[str, Any], longest: int = 256, model: str = "llama") -> Callable[[], nn.Module]:
    """A maker of a small model with a rope block."""
    more = {"pad_token_id": 0, "original_max_position_embeddings": 64} if model == "phi3" else {"head_dim": 16}
    return lambda: made(model, max_position_embeddings=longest, **more, rope_parameters=dict(block))


def small(name: str) -> Callable[[], nn.Module]:
    return lambda: small_model(name)


def vision_language() -> nn.Module:
    """The text part of Qwen2-VL with M-RoPE."""
    return made(
        "qwen2_vl_text", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    )


def local_and_global() -> nn.Module:
    """Gemma 3 with layers of both types."""
    return made("gemma3_text", head_dim=16, layer_types=["sliding_attention", "full_attention"])


def rotary(model: nn.Module) -> nn.Module:
    """The first rotary module."""
    return next(module for module in model.modules() if hasattr(module, "rope_type"))


# --- faults


def built_with(block: dict[str, Any]) -> Callable[[nn.Module], None]:
    """The module is built from other rope parameters than the config's."""

    def change(model: nn.Module) -> None:
        module = rotary(model)
        config = copy.deepcopy(module.config)
        config.rope_parameters = {**config.rope_parameters, **block}
        other = type(module)(config)
        own = module.config
        vars(module).update(vars(other))
        module.config = own

    return change


def frequencies(change: Callable[[Tensor], Tensor], *names: str) -> Callable[[nn.Module], None]:
    """The numbers of `inv_freq` and its copy are changed."""

    def fault(model: nn.Module) -> None:
        module = rotary(model)
        for name in names or ("inv_freq", "original_inv_freq"):
            setattr(module, name, change(getattr(module, name)))

    return fault


def forward(change: Callable[..., Any]) -> Callable[[nn.Module], None]:
    """The forward is replaced; the buffers stay right."""

    def fault(model: nn.Module) -> None:
        module = rotary(model)
        own = module.forward
        module.forward = lambda x, position_ids: change(own, x, position_ids)

    return fault


def neighbours(own: Any, x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.chunk(2, dim=-1)[0].repeat_interleave(2, dim=-1) for t in own(x, ids))


def swapped(one: str, other: str) -> Callable[[nn.Module], None]:
    def fault(model: nn.Module) -> None:
        module = rotary(model)
        first, second = getattr(module, one), getattr(module, other)
        setattr(module, one, second)
        setattr(module, other, first)

    return fault


def attention(value: float) -> Callable[[nn.Module], None]:
    return lambda model: setattr(rotary(model), "attention_scaling", value)


def long_forward(model: nn.Module) -> None:
    """A sequence longer than the trained length has passed."""
    rotary(model)(torch.zeros(1, 1), torch.arange(200)[None])


def always_long(model: nn.Module) -> None:
    """The long factors are in place of the short ones, also in the copy for short sequences."""
    long_forward(model)
    rotary(model).original_inv_freq = rotary(model).inv_freq.clone()


def tables(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    """Each layer's table of GPT-J's form is changed."""

    def fault(model: nn.Module) -> None:
        for module in model.modules():
            if "embed_positions" in module._buffers or "embed_positions" in module._parameters:
                held = module._buffers if "embed_positions" in module._buffers else module._parameters
                held["embed_positions"] = change(held["embed_positions"].detach())

    return fault


MSCALE = 0.1 * math.log(4) + 1
FAULTS: list[tuple[str, Callable[[], nn.Module], Callable[[nn.Module], None], str, str]] = [
    ("theta", small("llama"), built_with(block={"rope_theta": 5e5}), "frequencies", "theta 500000 in place of 10000"),
    ("no scaling", scaled(YARN), built_with(block={"rope_type": "default"}), "frequencies", ": no scaling"),
    ("linear for yarn", scaled(YARN), built_with(block={"rope_type": "linear"}), "frequencies", ": pi 4 (linear)"),
    ("linear twice", scaled(LINEAR), frequencies(lambda f: f / 4), "frequencies", "scaling twice"),
    ("all divided", small("llama"), frequencies(lambda f: f / 3), "frequencies", ": pi 3 (linear)"),
    ("not a number", small("qwen2"), frequencies(lambda f: f * math.nan), "uninitialised", "8 of 8 numbers are NaN"),
    ("zeros", small("llama"), frequencies(torch.zeros_like), "uninitialised", "every number is 0, as after to_empty()"),
    ("garbage", small("llama"), frequencies(lambda f: torch.randn(8, generator=torch.Generator().manual_seed(0)) * 1e9),
     "uninitialised", "after to_empty()"),
    ("cast", small("llama"), lambda model: model.to(torch.bfloat16), "dtype", "has dtype bfloat16, expected float32"),
    ("half", small("qwen3"), lambda model: model.half(), "dtype", "has dtype float16, expected float32"),
    ("cast back", small("llama"), lambda model: model.bfloat16().float(), "frequencies", ": inv_freq in bfloat16"),
    ("factor missing", scaled(YARN), attention(1.0), "attention-factor", f"1, expected {MSCALE:.6g}: yarn without its"),
    ("factor twice", scaled(YARN), attention(MSCALE**2), "attention-factor", "yarn with its attention factor twice"),
    ("factor added", small("llama"), attention(1.2), "attention-factor", "1.2, expected 1"),
    ("late positions", small("llama"), forward(lambda own, x, ids: own(x, ids + 1)), "tables", "at position"),
    ("slow forward", small("llama"), forward(lambda own, x, ids: own(x, ids / 4)), "tables", ": pi 4 (linear)"),
    ("clamped", small("llama"), forward(lambda own, x, ids: own(x, ids.clamp(max=31))), "tables", "at position 63"),
    ("sines first", small("llama"), forward(lambda own, x, ids: own(x, ids)[::-1]), "pairing", "sines first, expected"),
    ("neighbours", small("llama"), forward(neighbours), "pairing", "are repeated, expected doubled"),
    ("width", small("glm"), built_with(block={"partial_rotary_factor": 1.0}), "width",
     "16 rotated features, expected 8 of 16: partial factor ignored"),
    ("width", small("gpt_neox"), built_with(block={"partial_rotary_factor": 1.0}), "width", "expected 4 of 16"),
    ("all features", small("glm"), frequencies(lambda f: 1e4 ** (-torch.arange(0, 8, 2) / 16)), "frequencies",
     "theta's exponents over the whole head"),
    ("theta", small("gpt_neox"), built_with(block={"rope_theta": 1e6}), "frequencies", "theta 1000000 in place"),
    ("theta", small("deepseek_v3"), built_with(block={"rope_theta": 1e6}), "frequencies", "theta 1000000 in place"),
    ("theta", small("llama4_text"), built_with(block={"rope_theta": 1e4}), "frequencies", "theta"),
    ("stale", scaled(DYNAMIC, 64), long_forward, "stale-state", "after a sequence of 200 tokens"),
    ("stale", scaled(LONG, 256, "phi3"), long_forward, "stale-state", "this is the state after"),
    ("long factors", scaled(LONG, 256, "phi3"), always_long, "tables", "the long factors at every length"),
    ("swapped", local_and_global, swapped("sliding_attention_inv_freq", "full_attention_inv_freq"), "frequencies",
     "the full layers' rope on all layers"),
    ("swapped", small("modernbert-decoder"), swapped("sliding_attention_inv_freq", "full_attention_inv_freq"),
     "frequencies", "the sliding layers' rope on all layers"),
    ("theta", vision_language, built_with(block={"rope_theta": 1e6}), "frequencies", "theta 1000000 in place"),
    ("one axis", vision_language, forward(lambda own, x, ids: own(x, ids[:1].expand_as(ids))), "tables", "at position"),
    ("order of axes", vision_language, forward(lambda own, x, ids: own(x, ids.flip(0))), "tables", "at position"),
    ("table", small("gptj"), tables(lambda table: table.roll(1, dims=0)), "tables", "at position"),
    ("empty table", small("codegen"), tables(torch.zeros_like), "uninitialised", "after to_empty()"),
    ("cast table", small("gptj"), tables(Tensor.bfloat16), "dtype", "has dtype bfloat16"),
    ("short table", small("gptj"), tables(lambda table: table[:32]), "short-table", "32 positions, expected 64"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make", "fault", "code", "words"), FAULTS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_fault_in_a_transformers_model_is_found(
    name: str, make: Callable[[], nn.Module], fault: Callable[[nn.Module], Any], code: str, words: str
) -> None:
    """A model without the fault has no warning and no error; with it, the code and the words are in a finding."""
    model = make()
    assert [found for found in check(model) if found.severity != "note"] == []
    fault(model)
    found = check(model)
    assert [one for one in found if one.code == code and words in one.message], found
    assert all(one.severity != "note" for one in found if one.code == code)


def test_each_module_is_named_once() -> None:
    """Layers with the same fault share one finding, which names the first and counts the others."""
    model = nn.ModuleList(old(PLAIN) for _ in range(4))
    for module in model:
        module.cos_cached *= 1.5
        module.sin_cached *= 1.5
    (found,) = check(model, PLAIN)
    assert "of 0 (and 3 more modules): has attention factor 1.5" in found.message


def test_the_model_does_not_change() -> None:
    """A grown state stays as it was, to the bit, and so do all attributes."""
    model = scaled(DYNAMIC, 64)()
    long_forward(model)
    module = rotary(model)
    before, attributes = module.inv_freq.clone(), {k: v for k, v in vars(module).items() if k[0] != "_"}
    check(model)
    assert torch.equal(module.inv_freq, before)
    assert {k: v for k, v in vars(module).items() if k[0] != "_"} == attributes


def test_a_config_that_is_passed_counts() -> None:
    """A dict of a config.json, a transformers config and a RopeConfig all replace the model's own config."""
    model = small_model("llama")
    fields = model.config.to_dict()
    rope = RopeConfig.from_hf(fields)
    assert check(model, fields) == check(model, model.config) == check(model, rope) == ()
    fields["rope_parameters"]["rope_theta"] = 5e5
    (found,) = check(model, fields)
    assert "theta 10000 in place of 500000" in found.message
    assert check(model, RopeConfig.from_hf(fields))[0].code == "frequencies"


def test_strict_raises_errors_only() -> None:
    """`strict` raises what is wrong, and passes on notes and warnings."""
    model = scaled(DYNAMIC, 64)()
    long_forward(model)
    assert [found.severity for found in check(model, strict=True)] == ["warning"]
    rotary(model).inv_freq.zero_()
    with pytest.raises(RopeError, match=r"1\. uninitialised"):
        check(model, strict=True)


def test_the_config_inside_a_wrapper_counts() -> None:
    """As in data parallelism."""
    assert check(nn.Sequential(small_model("llama"))) == ()


def test_meta_tensors_are_a_note() -> None:
    """A model on the meta device is not checked, and says so."""
    with torch.device("meta"):
        model = small_model("llama")
    (found,) = check(model, strict=True)
    assert (found.code, found.severity) == ("meta", "note")
    assert "on the meta device; not checked" in found.message
    empty = model.to_empty(device="cpu")
    for buffer in empty.buffers():
        buffer.fill_(math.nan)
    assert check(empty)[0].code == "uninitialised"


def test_a_module_without_a_config_needs_one() -> None:
    """There is nothing to compare with."""
    with pytest.raises(RopeError, match="has no config"):
        check(nn.Linear(2, 2))


def test_an_attached_model_is_compared_with_its_attachment() -> None:
    """The ropes of `attach` are what an attached model should compute; a config that is passed is compared too."""
    import ropewalk as rw

    model = small_model("llama")
    rw.attach(model, "yarn", target=256)
    assert check(model) == ()
    assert {found.code for found in check(model, model.config)} >= {"tables"}


# --- other modules

PLAIN = RopeConfig(16, interleaved=False, theta=5e5, max_position_embeddings=64)
NEIGHBOURS = RopeConfig(16, interleaved=True, theta=5e5, max_position_embeddings=64)


def angles(rope: RopeConfig, rows: int = 64) -> Tensor:
    return torch.arange(rows)[:, None] * inverse_frequencies(rope, rows).inv_freq[0].float()


def with_buffers(**buffers: Tensor) -> nn.Module:
    module = nn.Module()
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer)
    return module


def old(rope: RopeConfig, rows: int = 64) -> nn.Module:
    """The module of remote code: cos and sin of all positions, doubled."""
    x = torch.cat((angles(rope, rows), angles(rope, rows)), dim=-1)
    return with_buffers(cos_cached=x.cos(), sin_cached=x.sin())


def vllm(rope: RopeConfig, rows: int = 64) -> nn.Module:
    x = angles(rope, rows)
    module = with_buffers(cos_sin_cache=torch.cat((x.cos(), x.sin()), dim=-1))
    module.is_neox_style = not rope.interleaved
    return module


def vllm_with_two_tables(*lengths: int) -> nn.Module:
    """The interface of vLLM's LongRoPE: 64 rows for short texts, then 256 for long ones."""
    tables = [vllm(LONG_TABLE, length).cos_sin_cache[:rows] for length, rows in zip(lengths, (64, 256), strict=True)]
    factor = inverse_frequencies(LONG_TABLE, 256).attention_factor
    return with_buffers(long_short_cos_sin_cache=factor * torch.cat(tables))


def torchtune(rope: RopeConfig, rows: int = 64) -> nn.Module:
    """The interface of torchtune's RotaryPositionalEmbeddings."""
    x = angles(rope, rows)
    theta = inverse_frequencies(rope, rows).inv_freq[0].float()
    return with_buffers(theta=theta, cache=torch.stack((x.cos(), x.sin()), dim=-1))


def torchtitan(rope: RopeConfig, rows: int = 64) -> nn.Module:
    """The interface of torchtitan's complex tables."""
    x = angles(rope, rows)
    return with_buffers(freqs_cis=torch.polar(torch.ones_like(x), x))


class CosSinRoPE(nn.Module):
    """Named as torchtitan's class: the name `cache` counts only in a rotary module."""


def torchtitan_halves(rope: RopeConfig, rows: int = 64) -> nn.Module:
    """The interface of torchtitan's CosSinRoPE: cos and sin, each doubled, in one tensor."""
    x = torch.cat((angles(rope, rows), angles(rope, rows)), dim=-1)
    module = CosSinRoPE()
    module.register_buffer("cache", torch.cat((x.cos(), x.sin()), dim=-1))
    return module


STAND_INS = [(old, PLAIN), (vllm, PLAIN), (vllm, NEIGHBOURS), (torchtune, NEIGHBOURS), (torchtitan, NEIGHBOURS),
             (torchtitan_halves, PLAIN)]  # fmt: skip


@pytest.mark.parametrize(("make", "rope"), STAND_INS)
def test_modules_of_other_packages(make: Callable[..., nn.Module], rope: RopeConfig) -> None:
    """Right tables have no finding; a wrong theta, too few rows, 16 bits and empty tables have one each."""
    from dataclasses import replace

    assert check(nn.ModuleDict({"rope": make(rope)}), rope) == ()
    (wrong,) = check(make(replace(rope, theta=1e4)), rope)
    assert "theta 10000 in place of 500000" in wrong.message
    short = check(make(rope, 32), rope)
    assert [found.code for found in short] == ["short-table"]
    assert "32 positions, expected 64" in short[0].message
    wide = check(make(replace(rope, rotary_dim=8)), rope)
    assert wide[0].code == "width"
    if not any(buffer.is_complex() for buffer in make(rope).buffers()):
        low = check(make(rope).bfloat16(), rope)
        assert {found.code for found in low} == {"dtype"}
        assert all("has dtype bfloat16" in found.message for found in low)
    empty = make(rope)
    for buffer in empty.buffers():
        buffer.zero_()
    assert {found.code for found in check(empty, rope)} == {"uninitialised"}


def repeated(rope: RopeConfig) -> nn.Module:
    """Tables for neighbouring features."""
    x = angles(rope).repeat_interleave(2, dim=-1)
    return with_buffers(cos_cached=x.cos(), sin_cached=x.sin())


def having(module: nn.Module, **attributes: Any) -> nn.Module:
    vars(module).update(attributes)
    return module


DYNAMIC_TABLE = RopeConfig(16, interleaved=False, max_position_embeddings=64, scaling=DynamicNTK(4.0))
LONG_TABLE = RopeConfig(16, interleaved=False, max_position_embeddings=256,
                        scaling=LongRoPE(tuple(LONG["short_factor"]), tuple(LONG["long_factor"]), 64))  # fmt: skip
YARN_TABLE = RopeConfig(16, interleaved=False, max_position_embeddings=64, scaling=YaRN(4.0, 16))


@pytest.mark.parametrize(
    ("make", "rope", "expected"),
    [
        (lambda: repeated(PLAIN), PLAIN, ("pairing", "error", "repeats each number")),
        (lambda: repeated(PLAIN), NEIGHBOURS, None),
        (lambda: old(PLAIN), NEIGHBOURS, ("pairing", "warning", "is doubled for features (i, i + 8)")),
        (lambda: having(vllm(PLAIN), is_neox_style=False), PLAIN,
         ("pairing", "error", "is_neox_style: is False, expected True")),
        (lambda: having(old(PLAIN, 32), _set_cos_sin_cache=None), PLAIN,  # old classes of transformers lengthen it
         ("short-table", "note", "the module extends it for longer sequences")),
        (lambda: vllm(DYNAMIC_TABLE, 256), DYNAMIC_TABLE, ("one-length", "note", "256 tokens at every length")),
        (lambda: vllm(YARN_TABLE), YARN_TABLE,
         ("attention-factor", "error", "1, expected 1.13863: yarn without its attention factor")),
        (lambda: vllm_with_two_tables(64, 256), LONG_TABLE, None),
        (lambda: vllm_with_two_tables(65, 256), LONG_TABLE, ("tables", "error", "(short factors)")),
        (lambda: nn.Linear(2, 2), PLAIN, ("no-rotary-module", "warning", "so nothing was checked")),
    ],
)  # fmt: skip
def test_other_modules_have_one_finding(
    make: Callable[[], nn.Module], rope: RopeConfig, expected: tuple[str, str, str] | None
) -> None:
    """Its code, severity and words; a module without rotation is never silent."""
    found = check(make(), rope)
    assert [(one.code, one.severity) for one in found] == ([expected[:2]] if expected else [])
    assert all(expected is not None and expected[2] in one.message for one in found)


@pytest.mark.parametrize(
    "shape", [(0,), (0, 16), (1,), (8,), (64, 15), (64, 16), (2, 3, 64, 16), (1, 1, 64, 16), (64, 8, 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8, torch.complex64, torch.bool])
def test_any_tensor_under_these_names_has_a_finding(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Tensors of other forms never raise, and are never right."""
    for names in (("inv_freq",), ("cos_cached", "sin_cached"), ("cos_sin_cache",), ("freqs_cis",)):
        module = with_buffers(**{name: torch.ones(shape).to(dtype) for name in names})
        assert check(module, PLAIN), names


def test_modules_without_layer_types_have_one_of_the_ropes() -> None:
    """In a model with two ropes, a module with plain buffers must agree with one of them."""
    model = local_and_global()
    local, full = RopeConfig(16, interleaved=False), RopeConfig(16, interleaved=False, theta=1e6)
    rows = model.config.max_position_embeddings
    for rope, right in ((local, True), (full, True), (PLAIN, False)):
        for name, make in (("table", lambda rope: old(rope, rows)), ("frequencies", frequencies_only)):
            model.add_module(name, make(rope))
        assert [finding.severity for finding in check(model)] == ([] if right else ["error", "error"])
    both = frequencies_only(full)  # the frequencies of one, and a table of the other under torchtune's names
    both.register_buffer("theta", frequencies_only(local).inv_freq)
    both.register_buffer("cache", torchtune(local, rows).cache)
    model.add_module("frequencies", both)
    del model.table
    assert check(model) == ()


def frequencies_only(rope: RopeConfig) -> nn.Module:
    return with_buffers(inv_freq=inverse_frequencies(rope).inv_freq[0].float())


# --- no false finding


class SinesFirst(nn.Module):
    """The rotary module of GPT-J and CodeGen from transformers 5.24 on, which returns (sin, cos)."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(64)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
        self.register_buffer("embed_positions", torch.cat((angles.sin(), angles.cos()), dim=-1))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, ...]:
        return self.embed_positions[position_ids].to(x.dtype).chunk(2, dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forward_that_returns_sines_first(dtype: torch.dtype) -> None:
    """It is right where the family's table has sines first, also in 16 bits; the other order is then an error."""
    module = SinesFirst().to(dtype)
    config = {"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary_dim": 8, "n_positions": 64}
    assert [found.code for found in check(module, config)] == ([] if dtype == torch.float32 else ["dtype"])
    assert check(module, config, strict=True) is not None
    module.forward = lambda x, position_ids: SinesFirst.forward(module, x, position_ids)[::-1]
    assert "are once, expected once, sines first" in check(module, config)[0].message


@pytest.mark.parametrize("name", ["gemma3_text", "deepseek_v3"])
def test_a_model_loaded_in_16_bits_is_right(tmp_path: Path, name: str) -> None:
    """from_pretrained in bfloat16 keeps the frequencies in float32."""
    from transformers import AutoModelForCausalLM

    small_model(name).save_pretrained(tmp_path)
    assert check(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)) == ()


def class_findings(part: Part) -> tuple[bool, list[str]]:
    """Whether a new module of a rotary class is checked; and its warnings and errors."""
    try:
        config = config_of(part)
        module = part.cls(config)
        ropes = ModelRopes.from_hf(reading_of(config))
    except Exception:  # some default configs do not fit their class, and some have no rope that we know
        return False, []
    family = FAMILIES.get(family_name(config.model_type) or "")
    found = [finding for _, finding in examine(module, ropes, family and family.module.looked_up)]
    bad = [one.message for one in found if one.severity != "note"]
    return not any(one.code == "not-checked" for one in found), bad


@pytest.mark.thorough
def test_no_false_finding_for_any_class() -> None:
    """Every rotary class of transformers with its default config: most are checked, and none has a false finding."""
    found = {part.name: class_findings(part) for part in rotary_classes()}
    assert {name: bad for name, (checked, bad) in found.items() if checked and bad} == {}
    assert sum(checked for checked, _ in found.values()) >= 0.92 * len(found)


@pytest.mark.thorough
def test_no_false_finding_for_any_causal_family() -> None:
    """A small model of every causal family has neither a warning nor an error."""
    families = causal_families()
    bad = {name: [one for one in check(small_model(name)) if one.severity != "note"] for name in families}
    assert {name: found for name, found in bad.items() if found} == {}
    assert len(families) > 100
