"""convert_pairing: the permutation between interleaved and half-split, of tensors and of state dicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw


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


def of_gemma(name: str, weights: Any = (), **fields: Any) -> Any:
    """Convert weights of a Gemma 4, whose keys may be its values."""
    return rw.convert_pairing(dict(weights), to="interleaved", config={"model_type": name, **fields})


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
        (lambda: of_gemma("gemma4_text", weights={"q_proj.weight": torch.zeros(8, 2)}), "heads of different sizes"),
        (lambda: rw.convert_pairing({}, config={"model_type": "own", "rope_interleave": True}, to="half"), "family"),
    ],
)  # fmt: skip
@pytest.mark.rejects
def test_bad_input(call, message):
    """What cannot be converted is refused, and never passed on unconverted."""
    with pytest.raises(rw.RopeError, match=message):
        call()
