"""convert_pairing: the permutation between interleaved and half-split, of tensors and of state dicts."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

import ropewalk as rw
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity import causal


def of_llama(source: Any, **options: Any) -> Any:
    """Convert weights of a Llama with heads of 4 features."""
    return rw.convert_pairing(source, to="half", config={"model_type": "llama", "head_dim": 4}, **options)


@given(st.integers(1, 6), st.integers(0, 3), st.integers(1, 4), st.sampled_from(["half", "interleaved"]))
@settings(max_examples=40, deadline=None)
def test_commutes_with_rotation_and_comes_back(pairs, rest, heads, to):
    """Converting, then rotating in the new pairing, is rotating in the old one, then converting."""
    rotary_dim, head_dim = 2 * pairs, 2 * pairs + 2 * rest
    x = torch.randn(2, 5, heads, head_dim)
    cos, sin = torch.rand(5, pairs).cos(), torch.rand(5, pairs).sin()
    convert = {"to": to, "head_dim": head_dim, "rotary_dim": rotary_dim}
    new, old = to == "interleaved", to != "interleaved"
    before = rw.rotate(rw.convert_pairing(x, **convert), cos, sin, interleaved=new, rotary_dim=rotary_dim)
    after = rw.convert_pairing(rw.rotate(x, cos, sin, interleaved=old, rotary_dim=rotary_dim), **convert)
    torch.testing.assert_close(before, after)
    back = {**convert, "to": "half" if to == "interleaved" else "interleaved"}
    assert torch.equal(rw.convert_pairing(rw.convert_pairing(x, **convert), **back), x)


def of_gemma(name: str, **fields: Any) -> Any:
    """Convert no weights of a Gemma 4, whose keys may be its values."""
    return rw.convert_pairing({}, to="interleaved", config={"model_type": name, **fields})


# --- state dicts: every causal family of transformers, converted and run in its class with the other pairing

NORMS = {"use_qk_norm": True, "qk_layernorm": True}  # off by default
QK_NORMS = [f"{name} normed" for name in ("cohere", "glm4_moe", "phi", "solar_open", "stablelm")]
FAST = ["hunyuan_v1_dense", "lfm2", "moshi", "phi normed", "qwen3_5_text", "stablelm normed"]
LATENT = "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots3_note_text glm4_moe_lite"
LATENT += " glm_moe_dsa hy_v4 longcat_flash minicpm3 youtu"
FUSED = "codegen dbrx falcon gpt_neox gpt_neox_japanese jetmoe persimmon phi3 roformer zaya"  # or named query and key
NOT_CONVERTED = {
    **dict.fromkeys(["blt", "inkling2_text", "kimi_linear", "olmo_hybrid", *LATENT.split()], "family of a state dict"),
    **dict.fromkeys(FUSED.split(), "no separate q and k"),
    **dict.fromkeys(("hrm_text", "phi4_multimodal"), "several stacks"),
    "qwen4_exp_text": "may share features",
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "laguna"), "heads of different sizes"),
}
CAUSAL = {name for name in NAMES if family_name(name) and f"{name}_text" not in NAMES} | {*causal.TEXTS, *QK_NORMS}
TABLES = {"cos", "sin", "freqs_cis"}


@contextmanager
def other_pairing(model: Any, to: str) -> Iterator[list[str]]:
    """The class's function of rotation pairs the other way; the names of the functions that were called."""
    module, called = sys.modules[type(model).__module__], []
    ropes = [rope for rope in ModelRopes.from_hf(model.config).by_type.values() if rope is not None]

    def moved(x: torch.Tensor, width: int, back: bool) -> torch.Tensor:  # a pair's features to where the class has them
        known = {2 * rope.pairs for rope in ropes if rope.head_dim == x.shape[-1]} or {x.shape[-1]}
        rotary = width if width in known else max(known)  # `known`: some classes pass on the rotated features only
        first, rest = x[..., :rotary], x[..., rotary:]
        pairs = (2, rotary // 2) if (to == "half") != back else (rotary // 2, 2)
        return torch.cat([first.unflatten(-1, pairs).transpose(-1, -2).flatten(-2), rest], -1)

    def wrapped(name: str, function: Any) -> Any:
        count = next(place for place, key in enumerate(inspect.signature(function).parameters) if key in TABLES)

        def rotate(*args: Any, **options: Any) -> Any:
            called.append(name)
            width = args[count].shape[-1]
            out = function(*(moved(x, width, False) for x in args[:count]), *args[count:], **options)
            return tuple(moved(x, width, True) for x in out) if isinstance(out, tuple) else moved(out, width, True)

        return rotate

    functions = {name: function for name, function in vars(module).items() if re.match("apply.*rot", name)}
    with mock.patch.multiple(module, **{name: wrapped(name, function) for name, function in functions.items()}):
        yield called


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in sorted(CAUSAL)]
)
def test_every_causal_family(name, monkeypatch):
    """Converted weights in the class with the other pairing give the logits; unconverted ones do not."""
    family = name.removesuffix(" normed")
    wanted = {**causal.SMALL, **(NORMS if family != name else {}), "rotary_dim": 8 if "gptj" in name else 16}
    monkeypatch.setattr(causal, "SMALL", wanted)
    model = causal.small_model(family)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim <= 2 and re.search("norm|bias$", key):  # norms start as ones, which no order changes
                weight.add_(0.3 * torch.randn_like(weight))
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    to = "half" if family in FAMILIES and FAMILIES[family].interleaved else "interleaved"
    if family in NOT_CONVERTED:
        with pytest.raises(rw.RopeError, match=NOT_CONVERTED[family]):
            rw.convert_pairing(state, to=to, config=model.config)
        return
    expected = causal.logits_of(model)
    new = rw.convert_pairing(state, to=to, config=model.config)
    with other_pairing(model, to) as called:
        wrong = causal.logits_of(model)
        model.load_state_dict(new)
        size = max(1.0, float(expected.abs().max()))
        assert (causal.logits_of(model) - expected).abs().max() <= 2e-5 * size
        assert (wrong - expected).abs().max() > 1e-2 * size
    assert called


def test_one_layer_and_several_stacks():
    """The layer of an output gate by itself; a tower or a second stack of layers, adapters, packed weights refused."""
    config = {"model_type": "qwen3_next", "head_dim": 16}
    shapes = {"q_proj.weight": (64, 8), "k_proj.weight": (16, 8), "o_proj.weight": (8, 32)}
    layer = {name: torch.randn(shape) for name, shape in shapes.items()}
    new = rw.convert_pairing(layer, to="interleaved", config=config)
    heads, old = (each["q_proj.weight"].view(2, 2, 16, 8) for each in (new, layer))
    assert torch.equal(heads[:, 1], old[:, 1])
    assert torch.equal(heads[:, 0, :4], old[:, 0, [0, 2, 1, 3]])  # a quarter of the head rotates
    assert new["o_proj.weight"] is layer["o_proj.weight"]
    hybrid = {"layers.0.mamba.in_proj.weight": torch.zeros(4)}
    for name in ("q_proj.weight", "k_proj.weight"):  # one at a time: shards may end inside a layer
        part = {**hybrid, f"layers.1.attn.{name}": layer[name]}
        part = rw.convert_pairing(part, to="interleaved", config=config)
        assert torch.equal(part[f"layers.1.attn.{name}"], new[name])
    towers = {f"{stack}.0.attn.{name}": x for stack in ("text.layers", "vision.layers") for name, x in layer.items()}
    for wrong, message in (
        (towers, "several stacks"),
        ({**layer, "q_proj.lora_A.weight": torch.zeros(16, 8)}, "may share"),
        ({**layer, "q_proj.weight_scale_inv": torch.zeros(1)}, "may share"),
    ):
        with pytest.raises(rw.RopeError, match=message):
            rw.convert_pairing(wrong, to="interleaved", config=config)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rw.convert_pairing(torch.zeros(5), to="half"), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", head_dim=6), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", rotary_dim=10), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="neox"), "unknown pairing"),
        (lambda: rw.convert_pairing(torch.zeros(0), to="half"), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", head_dim=4.0), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", dim="0"), "whole heads"),
        (lambda: of_llama({"q_proj.weight": [1.0]}), "q_proj.weight is not a tensor"),
        (lambda: of_llama({1: torch.zeros(8)}), "no separate q and k"),
        (lambda: of_llama({"h.qkv_proj.bias": torch.zeros(8)}), "no separate q and k"),
        (lambda: of_llama({"norm.weight": torch.zeros(8)}), "no separate q and k"),
        (lambda: of_llama({"q_proj.weight": torch.zeros(8)}, dim=1), "only `config`"),
        (lambda: of_llama(torch.zeros(8)), "only `config`"),
        (lambda: rw.convert_pairing({"q_proj.weight": torch.zeros(8, 2)}, to="half"), "only `config`"),
        (lambda: of_gemma("gemma4_text", attention_k_eq_v=True), "whole heads of q and k"),
        (lambda: of_gemma("diffusion_gemma_text"), "whole heads of q and k"),
        (lambda: of_gemma("gemma4_text"), "no separate q and k"),
        (lambda: rw.convert_pairing({}, config={"model_type": "own", "rope_interleave": True}, to="half"), "family"),
    ],
)  # fmt: skip
@pytest.mark.rejects
def test_bad_input(call, message):
    """What cannot be converted is refused, and never passed on unconverted."""
    with pytest.raises(rw.RopeError, match=message):
        call()
