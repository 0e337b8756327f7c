"""convert_pairing: the permutation between interleaved and half-split, of tensors and of state dicts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw


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


def test_state_dict_with_gqa_biases_and_norms():
    """A converted checkpoint gives the same scores under the other pairing; v, o and all else stay as they are."""
    head_dim, heads, kv_heads, hidden = 6, 4, 2, 10
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (heads * head_dim, hidden),
        "model.layers.0.self_attn.q_proj.bias": (heads * head_dim,),
        "model.layers.0.self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
        "model.layers.0.self_attn.k_proj.bias": (kv_heads * head_dim,),
        "model.layers.0.self_attn.q_norm.weight": (head_dim,),
        "model.layers.0.self_attn.k_norm.weight": (head_dim,),
        "model.layers.0.self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
        "model.norm.weight": (hidden,),
    }
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    new = rw.convert_pairing(state, head_dim=head_dim, to="interleaved")
    assert list(new) == list(state)
    for name in ("model.layers.0.self_attn.v_proj.weight", "model.norm.weight"):
        assert new[name] is state[name]

    def scores(state, interleaved):
        x, layer = torch.arange(50.0).reshape(1, 5, hidden).sin(), "model.layers.0.self_attn."
        turned = []
        for side, count in (("q", heads), ("k", kv_heads)):
            y = x @ state[f"{layer}{side}_proj.weight"].T + state[f"{layer}{side}_proj.bias"]
            y = y.view(1, 5, count, head_dim) * state[f"{layer}{side}_norm.weight"]
            turned.append(rw.apply_rotary_pos_emb(y, torch.arange(5), interleaved=interleaved))
        return torch.einsum("bqhd,bkhd->bhqk", turned[0], turned[1].repeat_interleave(heads // kv_heads, 2))

    torch.testing.assert_close(scores(new, True), scores(state, False), rtol=1e-4, atol=1e-4)
    assert (scores(state, True) - scores(state, False)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rw.convert_pairing(torch.zeros(5), to="half"), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", head_dim=6), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", rotary_dim=10), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="neox"), "unknown pairing"),
        (lambda: rw.convert_pairing(torch.zeros(0), to="half"), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", head_dim="4"), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", head_dim=4.0), "whole heads"),
        (lambda: rw.convert_pairing(torch.zeros(8), to="half", dim="0"), "whole heads"),
        (lambda: rw.convert_pairing([0.0, 1.0], to="half"), "must be a tensor or a state dict"),
        (lambda: rw.convert_pairing({"q_proj.weight": [1.0]}, to="half", head_dim=4), "q_proj.weight is not a tensor"),
        (lambda: rw.convert_pairing({1: torch.zeros(8)}, to="half", head_dim=4), "no separate q and k"),
        (lambda: rw.convert_pairing({"layers.0.q_proj.weight": torch.zeros(8, 2)}, to="half"), "head_dim"),
        (lambda: rw.convert_pairing({"h.qkv_proj.bias": torch.zeros(8)}, head_dim=4, to="half"), "no separate q and k"),
        (lambda: rw.convert_pairing({"norm.weight": torch.zeros(8)}, head_dim=4, to="half"), "no separate q and k"),
    ],
)  # fmt: skip
@pytest.mark.rejects
def test_bad_input(call, message):
    """What cannot be converted is refused, and never passed on unconverted."""
    with pytest.raises(rw.RopeError, match=message):
        call()
