"""`Decoder.with_positions`: the same weights under another rope, another extension in attention, or both."""

from __future__ import annotations

import pytest
import torch

from ropewalk import RopeError
from ropewalk.rope.extensions import ReRoPE
from ropewalk.rope.of_layers import Positions
from ropewalk.rope.scaling import Linear
from tests.layers.small_decoders import ids, make, rope


def test_with_positions_shares_weights() -> None:
    """The other model has the same weights, the first one its own rope; layers without a rope stay without."""
    model, tokens = make((rope(), None, rope())), ids(1, 30)
    before = model(tokens)
    other = model.with_positions(rope=rope(Linear(4.0)))
    assert other.config.ropes == (rope(Linear(4.0)), None, rope(Linear(4.0)))
    assert model.config.ropes == (rope(), None, rope())
    assert torch.equal(model(tokens), before)
    assert (other(tokens) - before).abs().max() > 1e-3
    assert {p.data_ptr() for p in other.parameters()} == {p.data_ptr() for p in model.parameters()}
    assert torch.equal(other.with_positions(rope=(rope(), None, rope()))(tokens), before)
    assert make(rope()).with_positions(rope=rope(Linear(4.0))).config.rope == rope(Linear(4.0))
    assert model.with_positions(rope=None).config.ropes == (None, None, None)
    with torch.no_grad():
        model.norm.weight.zero_()
    assert other(tokens).abs().max() == 0
    other.train()
    assert not model.training
    assert not model.layers[0].self_attn.training


def test_with_positions_sets_both_at_once() -> None:
    """A rope and an extension together, one alone, and neither; what is not named stays."""
    model, near, tokens = make(rope()), ReRoPE(window=4), ids(1, 30)
    both = model.with_positions(rope=rope(Linear(4.0)), extension=near)
    assert both.config.positions == Positions((rope(Linear(4.0)),) * 3, (near,) * 3, (None,) * 3)
    assert (both.config.rope, both.config.extension) == (rope(Linear(4.0)), near)
    one_by_one = model.with_positions(rope=rope(Linear(4.0))).with_positions(extension=near)
    assert torch.equal(both(tokens), one_by_one(tokens))
    assert (
        both.with_positions(extension=None).config.positions
        == model.with_positions(rope=rope(Linear(4.0))).config.positions
    )
    without = both.with_positions(rope=None, extension=None)  # neither order of two calls could do this for a layer
    assert without.config.positions == Positions((None,) * 3, (None,) * 3, (None,) * 3)
    back = without.with_positions(rope=(rope(),) * 3, extension=(near, None, None))
    assert back.config.positions == Positions((rope(),) * 3, (near, None, None), (None,) * 3)
    assert torch.equal(both.with_positions()(tokens), both(tokens))
    assert model.config.positions == Positions((rope(),) * 3, (None,) * 3, (None,) * 3)


@pytest.mark.rejects
def test_with_positions_refuses() -> None:
    """Other types, another number of layers, and a rope that an extension still needs."""
    model = make(rope())
    for settings, message in (
        ({"rope": (rope(),)}, "a tuple `rope` needs one entry per layer"),
        ({"extension": (None,)}, "a tuple `extension` needs one entry per layer"),
        ({"rope": 10_000.0}, "`rope` must be a RopeConfig"),
        ({"extension": "rerope"}, "`extension` must be a Extension"),
        ({"rope": None, "extension": ReRoPE(4)}, "no layer of this model has a rope"),
    ):
        with pytest.raises(RopeError, match=message):
            model.with_positions(**settings)
    with pytest.raises(RopeError, match="cannot be removed"):
        model.with_positions(extension=ReRoPE(4)).with_positions(rope=None)
    with pytest.raises(RopeError, match=r"Positions: a tuple `extensions` needs one entry per layer"):
        Positions((rope(),), (), (None,))
