"""Attention: dropout, gradients, biases, what is refused; test_each_way.py has its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk import RopeConfig, RopeError
from ropewalk.models.attention import Attention
from ropewalk.models.cache import KVCache
from ropewalk.models.forward_inputs import ForwardInputs
from ropewalk.positions import grid_positions
from ropewalk.rope.extensions import ReRoPE, SelfExtend
from ropewalk.rope.scaling import DynamicNTK
from tests.models.forms import make_decoder, make_layer

HIDDEN, HEADS, DIM, SEQ = 24, 4, 6, 11
ROPE = RopeConfig(DIM, interleaved=False)


def make(**changes: Any) -> Attention:
    """A small attention in float64 with biases that matter."""
    return make_layer(**{"rope": ROPE, "head_dim": DIM, **changes})


def close(actual: Tensor, wanted: Tensor, atol: float = 1e-11) -> None:
    """Equal within float64 rounding."""
    torch.testing.assert_close(actual, wanted, rtol=0, atol=atol)


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


@pytest.mark.parametrize(
    "form",
    [{"bias": True}, {"sliding_window": 2, "bias": True}, {"softcap": 0.5, "sliding_window": 3},
     {"sinks": True}, {"extension": SelfExtend(group=2, window=3)}],
    ids=str,
)  # fmt: skip
def test_gradients(form: dict[str, Any]) -> None:
    """To the input and to each weight, against finite differences."""
    module, x = make(**form), torch.randn(1, 6, HIDDEN, dtype=torch.float64, requires_grad=True)
    names, weights = zip(*module.named_parameters(), strict=True)

    def output(x: Tensor, *given: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, given, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, (x, *weights), fast_mode=True)


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


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "multiple of `num_key_value_heads`"),
        ({"hidden_size": 25}, "`hidden_size` is not a multiple"),
        ({"hidden_size": 32, "rope": ROPE}, "different head_dim"),
        ({"sliding_window": 0}, "`sliding_window` must be a whole number from 1"),
        ({"attention_dropout": 1.0}, "`attention_dropout` must be a probability"),
        *(({"softcap": softcap}, "`softcap` must be") for softcap in (0.0, -1.0, float("inf"))),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each is named."""
    with pytest.raises(RopeError, match=message):
        Attention(**{"hidden_size": HIDDEN, "num_attention_heads": HEADS, **changes})


@pytest.mark.rejects
def test_what_is_refused() -> None:
    """Arguments that do not fit are named."""
    module, x = make(), torch.zeros(2, 5, HIDDEN, dtype=torch.float64)
    sizes: dict[str, Any] = {"num_layers": 1, "batch": 2, "num_key_value_heads": 2, "head_dim": DIM, "dtype": x.dtype}
    cache, dynamic = KVCache(**sizes), make(rope=replace(ROPE, max_position_embeddings=4, scaling=DynamicNTK(2.0)))
    known = KVCache(**sizes, ropes=[dynamic.rope], seq_len=7)
    dynamic(x, cache=known)
    calls: list[tuple[Attention, Tensor, dict[str, Any], str]] = [
        (module, x[0], {}, r"must be \[batch, seq, hidden\]"),
        (module, x, {"attention_mask": torch.ones(2, 9).bool()}, r"`attention_mask` must be bool or integer"),
        (module, x, {"document_ids": torch.ones(2, 5)}, r"`document_ids` must be integers"),
        (module, x, {"document_ids": torch.ones(2, 5).long(), "cache": cache}, "packed documents do not support a"),
        (dynamic, x, {"cache": cache, "seq_len": 9}, "not made for this layer's rope"),
        (dynamic, x, {"cache": known}, "exceeds the `seq_len`"),
        (module, x, {"cache": known}, "not made for this layer's rope"),
        (make(causal=False), x, {"cache": cache}, "a cache needs causal attention"),
    ]
    for layer, given, arguments, message in calls:
        with pytest.raises(RopeError, match=message):
            layer(given, **arguments)


def test_nothing_given_is_ignored() -> None:
    """Arguments that ready inputs stand for are refused, not dropped; so are inputs of a call of another shape."""
    attention, x = make(), torch.randn(1, 4, HIDDEN, dtype=torch.float64)
    inputs = ForwardInputs(x)
    assert torch.equal(attention(x, inputs=inputs), attention(x))
    cache = KVCache(num_layers=1, batch=1, num_key_value_heads=2, head_dim=DIM, dtype=torch.float64)
    given: dict[str, Any] = {
        "attention_mask": torch.ones(1, 4, dtype=torch.long), "document_ids": torch.zeros(1, 4, dtype=torch.long),
        "position_ids": torch.arange(4), "seq_len": 4, "cache": cache,
    }  # fmt: skip
    for name, value in given.items():
        with pytest.raises(RopeError, match=rf"`inputs` is already built, so `{name}` would be ignored"):
            attention(x, inputs=inputs, **{name: value})
    with pytest.raises(RopeError, match="`position_ids` and `seq_len` would be ignored"):
        attention(x, inputs=inputs, position_ids=torch.arange(4), seq_len=4)
    bias = torch.zeros(1, HEADS, 4, 4, dtype=torch.float64)
    with pytest.raises(RopeError, match="`bias` requires `inputs`"):
        attention(x, bias=bias)
    with pytest.raises(RopeError, match="built for a different shape"):
        attention(x[:, :3], inputs=inputs)


@pytest.mark.rejects
def test_a_cache_of_several_layers_requires_the_layer() -> None:
    """Without it, every layer would write to layer 0, and no token would ever count."""
    module, x = make(), torch.zeros(1, 3, HIDDEN, dtype=torch.float64)
    cache = KVCache(num_layers=2, batch=1, num_key_value_heads=2, head_dim=DIM, dtype=torch.float64)
    with pytest.raises(RopeError, match=r"(?s)`layer` is required.*layer=i"):
        module(x, cache=cache)
    with pytest.raises(RopeError, match="`layer` is required"):
        module(x, inputs=ForwardInputs(x, cache=cache))
    assert cache.lengths.tolist() == [0]


@pytest.mark.rejects
def test_coordinates_are_not_guessed() -> None:
    """Axial attention needs each patch's row and column; one number for both axes would be the diagonal."""
    axial = Attention(32, 4, encoding="axial", causal=False)
    x, grid = torch.randn(2, 6, 32), grid_positions(2, 3)
    with pytest.raises(RopeError, match=r"(?s)`position_ids` is required: .*grid_positions"):
        axial(x)
    assert torch.equal(axial(x, position_ids=grid), axial(x, position_ids=grid.expand(2, 6, 2)))
    mrope = make(rope=RopeConfig(DIM, interleaved=False, axes=(0, 1, 2)))  # its text is at equal coordinates
    x = torch.randn(2, 6, HIDDEN, dtype=torch.float64)
    close(mrope(x), mrope(x, position_ids=torch.arange(6)[:, None].expand(6, 3)))


@pytest.mark.rejects
@pytest.mark.parametrize("changes", [{}, {"rope": None, "encoding": "alibi"}, {"rope": None, "encoding": "sinusoidal"}])
@pytest.mark.parametrize(
    "ids", [torch.arange(4), torch.arange(6), torch.zeros(3, 5).long(), torch.zeros(1, 2, 5).long()]
)
def test_positions_of_the_wrong_shape_are_named(changes: dict[str, Any], ids: Tensor) -> None:
    """Not the tables made of them, nor a product that does not fit."""
    x = torch.zeros(2, 5, HIDDEN, dtype=torch.float64)
    with pytest.raises(RopeError, match=r"Attention: `position_ids` must have one position for each token"):
        make(**changes)(x, position_ids=ids)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("encoding", ["alibi", "t5", "transformer_xl", "xpos", "sinusoidal"])
def test_narrow_positions_do_not_overflow(encoding: str, dtype: torch.dtype) -> None:
    """A distance of uint8 would be 255 for -1, and one of int8 wraps beyond 127."""
    module, x = make(rope=None, encoding=encoding), torch.randn(1, 3, HIDDEN, dtype=torch.float64)
    ids = torch.tensor([127, 0, 3] if dtype == torch.uint8 else [127, -127, 3])
    assert torch.equal(module(x, position_ids=ids.to(dtype)), module(x, position_ids=ids))


@pytest.mark.rejects
def test_sparse_and_nested_inputs_are_refused() -> None:
    """In our words, with the way to pack sequences of different lengths."""
    x = torch.zeros(2, 3, HIDDEN, dtype=torch.float64)
    nested = torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged)
    for given in (x.to_sparse(), nested):
        with pytest.raises(RopeError, match=r"(?s)neither sparse nor nested.*document_ids"):
            make()(given)


FORWARD_MODE: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"sliding_window": 2}, "bidirectional": {"causal": False}, "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True}, "rerope": {"extension": ReRoPE(window=2)},
    "alibi": {"rope": None, "encoding": "alibi"}, "relative": {"rope": None, "encoding": "transformer_xl"},
}  # fmt: skip


@pytest.mark.parametrize("call", ["whole", "padded", "packed"])
@pytest.mark.parametrize("case", FORWARD_MODE)
def test_forward_mode_differentiation(case: str, call: str) -> None:
    """`torch.func.jvp` of every form is the product that reverse mode computes."""
    module, x = make(**FORWARD_MODE[case]), torch.randn(2, 6, HIDDEN, dtype=torch.float64)
    seen = torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6])
    given = {"padded": {"attention_mask": seen}, "packed": {"document_ids": torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)}}
    arguments, weight = given.get(call, {}), torch.randn(2, 6, HIDDEN, dtype=torch.float64)
    if call == "padded":
        weight[0, 0] = 0

    def loss(x: Tensor) -> Tensor:
        return (module(x, **arguments) * weight).sum()

    direction = torch.randn_like(x)
    _, along = torch.func.jvp(loss, (x,), (direction,))
    x.requires_grad_()
    loss(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(along, (x.grad * direction).sum())


@pytest.mark.rejects
def test_forward_mode_needs_no_cache() -> None:
    """A cache would drop the tangents of its keys without a word."""
    cache = KVCache(num_layers=1, batch=2, num_key_value_heads=2, head_dim=DIM, dtype=torch.float64)
    x, module = torch.randn(2, 6, HIDDEN, dtype=torch.float64), make()
    with pytest.raises(RopeError, match="forward-mode differentiation would be wrong"):
        torch.func.jvp(lambda x: module(x, cache=cache), (x,), (x,))
