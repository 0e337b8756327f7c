"""convert_pairing of state dicts: every causal family, converted and run in its class with the other pairing."""

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
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

import ropewalk as rw
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity import causal

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
