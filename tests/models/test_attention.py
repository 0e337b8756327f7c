"""Attention: dropout, derivatives, biases, positions; test_each_way.py has its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk import RopeConfig
from ropewalk.models.attention import Attention
from ropewalk.positions import grid_positions
from ropewalk.rope.extensions import ReRoPE, SelfExtend
from tests.models.forms import make_decoder, make_layer

HIDDEN, HEADS, DIM, SEQ = 24, 4, 6, 11
ROPE = RopeConfig(DIM, interleaved=False)


def make(**changes: Any) -> Attention:
    """A small attention in float64 with biases that matter."""
    return make_layer(**{"rope": ROPE, "head_dim": DIM, **changes})


def test_dropout_only_in_training() -> None:
    """Both dropouts act while training and never otherwise."""
    x = torch.randn(1, 64, HIDDEN, dtype=torch.float64)
    attention, layer = make(attention_dropout=0.5), make_decoder(residual_dropout=0.5).layers[0]
    for module in (attention, layer):
        assert (module(x) == module(x)).all()
        module.train()
        assert (module(x) != module(x)).any()
    _, weights = attention(x, need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_sinks_learn_while_all_else_is_frozen() -> None:
    """Nothing else requires a gradient."""
    module = make(sinks=True).float().requires_grad_(False)
    assert module.sinks is not None
    module.sinks.requires_grad_()
    module(torch.randn(1, 6, HIDDEN)).sum().backward()
    assert module.sinks.grad.abs().min() > 0


def test_a_bias_is_added_after_the_cap() -> None:
    """ALiBi's slopes are not capped; a sink stands beside the biased logits."""
    torch.manual_seed(5)
    module = make(rope=None, encoding="alibi", softcap=0.5, sinks=True)
    plain = make(rope=None, softcap=0.5, sinks=True)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(1, SEQ, HIDDEN, dtype=torch.float64)
    weights, unbiased = (layer(x, need_weights=True)[1] for layer in (module, plain))
    slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1, dtype=torch.float64) / HEADS)
    distances = torch.arange(SEQ - 1, -1, -1, dtype=torch.float64)
    factors = weights[0, :, -1] / unbiased[0, :, -1]  # one number for each head times e^(-slope distance)
    expected = torch.exp(-slopes[:, None] * distances)
    torch.testing.assert_close(factors / factors[:, -1:], expected / expected[:, -1:])
    assert (weights.sum(-1) < 1).all()


def test_coordinates() -> None:
    """Axial attention takes one grid for all rows; text of an M-RoPE without positions is at equal coordinates."""
    axial, x, grid = Attention(32, 4, encoding="axial", causal=False), torch.randn(2, 6, 32), grid_positions(2, 3)
    assert torch.equal(axial(x, position_ids=grid), axial(x, position_ids=grid.expand(2, 6, 2)))
    mrope = make(rope=RopeConfig(DIM, interleaved=False, axes=(0, 1, 2)))
    x = torch.randn(2, 6, HIDDEN, dtype=torch.float64)
    equal = mrope(x, position_ids=torch.arange(6)[:, None].expand(6, 3))
    torch.testing.assert_close(mrope(x), equal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("encoding", ["alibi", "t5", "transformer_xl", "xpos", "sinusoidal"])
def test_narrow_positions_do_not_overflow(encoding: str, dtype: torch.dtype) -> None:
    """A distance of uint8 would be 255 for -1, and one of int8 wraps beyond 127."""
    module, x = make(rope=None, encoding=encoding), torch.randn(1, 3, HIDDEN, dtype=torch.float64)
    ids = torch.tensor([127, 0, 3] if dtype == torch.uint8 else [127, -127, 3])
    assert torch.equal(module(x, position_ids=ids.to(dtype)), module(x, position_ids=ids))


DERIVED: dict[str, dict[str, Any]] = {
    "biases": {"bias": True}, "window": {"sliding_window": 2, "bias": True}, "both ways": {"causal": False},
    "softcap": {"softcap": 0.5, "sliding_window": 3}, "sinks": {"sinks": True},
    "self-extend": {"extension": SelfExtend(group=2, window=3)}, "rerope": {"extension": ReRoPE(window=2)},
    "alibi": {"rope": None, "encoding": "alibi"}, "relative": {"rope": None, "encoding": "transformer_xl"},
}  # fmt: skip


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("case", DERIVED)
def test_derivatives(case: str, whole: bool) -> None:
    """To the input and each weight, in reverse and forward mode, against finite differences; padded and packed, too."""
    module, x = make(**DERIVED[case]), torch.randn(2, 6, HIDDEN, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6])
    given = {} if whole else {"attention_mask": real, "document_ids": torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)}
    names, weights = zip(*module.named_parameters(), strict=True)

    def output(x: Tensor, *weights: Tensor) -> Tensor:
        out = torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,), given)
        return out if whole else out * real[..., None]

    assert torch.autograd.gradcheck(output, (x, *weights), fast_mode=True, check_forward_ad=True)
