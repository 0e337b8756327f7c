"""Every encoding in a decoder: a cache, padding, packing, saving and gradients change nothing and miss nothing."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ropewalk as rw
from ropewalk import encodings
from ropewalk.encodings import ENCODINGS

NAMES = [*ENCODINGS, "rope"]
CAUSAL = {"xpos"}
SEQ = 20


@pytest.fixture(params=NAMES)
def model(request):
    """Three layers with grouped queries in float64, every weight drawn wide, so that positions matter."""
    config = rw.layers.DecoderConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, encoding=request.param,
    )  # fmt: skip
    model = rw.Decoder(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("threshold"):  # FIRE tells a shift beyond its threshold: these texts are shorter
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture
def ids():
    return torch.randint(0, 50, (2, SEQ))


def test_cached_equals_full(model, ids):
    """A chunk, another, then token by token: the logits of one forward."""
    cache = model.new_cache(2)
    bounds = [0, 7, 12, *range(13, SEQ + 1)]
    parts = [model(ids[:, a:b], cache=cache) for a, b in pairwise(bounds)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids), atol=1e-11, rtol=0)


def test_padded_equals_unpadded(model, ids):
    """Padding on the left is not there, with a cache of rows of different lengths as well."""
    mask = torch.ones(2, SEQ + 4, dtype=torch.long)
    mask[:, :4] = 0
    padded = torch.cat([torch.zeros_like(ids[:, :4]), ids], 1)
    torch.testing.assert_close(model(padded, attention_mask=mask)[:, 4:], model(ids), atol=1e-11, rtol=0)
    cache, mask = model.new_cache(2), torch.ones_like(ids)
    mask[1, :5] = 0
    model(ids, attention_mask=mask, cache=cache)
    more = torch.randint(0, 50, (2, 1))
    got = model(more, cache=cache)
    for row, first in ((0, 0), (1, 5)):
        whole = torch.cat([ids[row, first:], more[row]])[None]
        torch.testing.assert_close(got[row], model(whole)[0, -1:], atol=1e-11, rtol=0)


def test_packed_equals_separate(model, ids):
    """Documents in one row are as alone."""
    documents = torch.tensor([[0] * 8 + [1] * (SEQ - 8)] * 2)
    packed = model(ids, document_ids=documents)
    separate = torch.cat([model(ids[:, :8]), model(ids[:, 8:])], 1)
    torch.testing.assert_close(packed, separate, atol=1e-11, rtol=0)


def test_saved_and_loaded(model, ids, tmp_path):
    """Through ropewalk's own config, with every setting and learned number."""
    rw.save(model, tmp_path / "model")
    loaded = rw.load(tmp_path / "model")
    assert loaded.config.encoding == model.config.encoding
    assert torch.equal(loaded.double()(ids), model(ids))


def test_everything_learned_gets_a_gradient(model, ids):
    """No parameter is left out; none but the position's own is added."""
    model(ids).logsumexp(-1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_order_matters(model, ids):
    """Other positions for the same tokens, other logits: the encoding reaches the scores."""
    if model.config.rope is None and model.config.encoding is None:
        pytest.skip("NoPE knows order by the causal mask alone")
    assert (model(ids, position_ids=torch.randperm(SEQ)) - model(ids)).abs().max() > 1e-3


def test_only_absolute_ones_feel_a_shift(model, ids):
    """All tokens 9 later: relative encodings cannot tell."""
    moved = (model(ids, position_ids=torch.arange(SEQ) + 9) - model(ids)).abs().max()
    encoding = model.config.encoding
    absolute = isinstance(encoding, encodings.Sinusoidal | encodings.LearnedAbsolute)
    assert moved > 1e-3 if absolute else moved < 1e-9


def test_weights_are_the_fused_ones(model):
    """`need_weights` shows what was attended to: they sum to 1, see no later key, and give the same output."""
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    attention = model.layers[1].self_attn
    out, weights = attention(x, need_weights=True)
    torch.testing.assert_close(out, attention(x), atol=1e-11, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights.triu(1).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision(name, dtype):
    """Casts do not spoil it: logits stay near float64's."""
    config = rw.layers.DecoderConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, encoding=name
    )
    model, ids = rw.Decoder(config).eval(), torch.randint(0, 50, (1, 64))
    with torch.no_grad():
        exact = model.double()(ids)
        error = (model.to(dtype)(ids).double() - exact).abs().max()
    assert error < (2e-5 if dtype == torch.float32 else 0.1) * max(1.0, float(exact.abs().max()))


def gradients(model, ids, loss):
    """Of every parameter, by name."""
    model.zero_grad()
    loss(model(ids)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_keeps_the_gradients(model, ids, use_reentrant):
    """Each layer runs a second time in the backward pass: its bias is its own, and every gradient is the same."""
    weights = torch.randn(50, dtype=torch.float64)
    wanted = gradients(model, ids, lambda logits: (logits @ weights).sum())
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=use_reentrant)
    found = gradients(model, ids, lambda logits: (logits @ weights).sum())
    rounding = 1e-12 * max(float(gradient.abs().max()) for gradient in wanted.values())  # small sums of large terms
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=rounding, rtol=1e-12, msg=name)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_keeps_the_gradient_of_positions(use_reentrant):
    """Tables of real positions that are learned belong to the graph, so no layer keeps them for the next one."""
    rope = rw.RopeConfig(8, interleaved=False)
    config = rw.layers.DecoderConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, rope=rope,
        initializer_range=0.3,
    )  # fmt: skip
    model, ids = rw.Decoder(config).double(), torch.randint(0, 50, (1, 9))
    found = []
    for checkpointed in (False, True):
        positions = torch.arange(9, dtype=torch.float64).requires_grad_()
        if checkpointed:
            for layer in model.layers:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=use_reentrant)
        model(ids, position_ids=positions).logsumexp(-1).sum().backward()
        found.append(positions.grad)
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0], atol=1e-12, rtol=1e-12)


@pytest.mark.rejects
def test_bad_calls():
    """Names, doubled positions, tables that end, caches that count for themselves."""
    shape = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    with pytest.raises(rw.RopeError, match="unknown encoding"):
        rw.layers.DecoderConfig(**shape, encoding="rotary")
    with pytest.raises(rw.RopeError, match="mutually exclusive"):
        rw.layers.DecoderConfig(**shape, encoding="alibi", rope=rw.RopeConfig(4, interleaved=False))
    with pytest.raises(rw.RopeError, match="mutually exclusive"):
        rw.Attention(8, 2, encoding="alibi", rope=rw.RopeConfig(4, interleaved=False))
    learned = rw.Decoder(rw.layers.DecoderConfig(**shape, encoding=encodings.LearnedAbsolute(4)))
    with pytest.raises(rw.RopeError, match="no vector for this position"):
        learned(torch.zeros(1, 5, dtype=torch.long))
    alibi = rw.Decoder(rw.layers.DecoderConfig(**shape, encoding="alibi"))
    with pytest.raises(rw.RopeError, match="is its index in the row"):
        alibi(torch.zeros(1, 5, dtype=torch.long), position_ids=torch.arange(5) + 3, cache=alibi.new_cache())
    with pytest.raises(rw.RopeError, match="different encoding"):
        alibi.with_positions(rope=rw.RopeConfig(4, interleaved=False))
    with pytest.raises(rw.RopeError, match="must be integers"):
        alibi(torch.zeros(1, 5, dtype=torch.long), position_ids=torch.rand(5))
    for name in CAUSAL:
        with pytest.raises(rw.RopeError, match="must be causal"):
            rw.Attention(8, 2, encoding=name, causal=False)
    with pytest.raises(rw.RopeError, match="too far from the centre"):
        encodings.XPos().build(encodings.Sizes(8, 2, 4)).turned(*torch.zeros(2, 1, 1, 2, 4), torch.tensor([40_000]))
    for config in (lambda: encodings.T5Bias(num_buckets=6), lambda: encodings.FIRE(width=0),
                   lambda: encodings.RelativeBias(max_distance=-1)):  # fmt: skip
        with pytest.raises(rw.RopeError):
            config()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CAUSAL])
def test_bidirectional(name):
    """Padding hides in both directions, and a layer alone applies its encoding itself."""
    attention = rw.Attention(16, 4, encoding=name, causal=False).double()
    x, mask = torch.randn(1, 6, 16, dtype=torch.float64), torch.tensor([[0, 0, 1, 1, 1, 1]])
    torch.testing.assert_close(attention(x, attention_mask=mask)[:, 2:], attention(x[:, 2:]), atol=1e-11, rtol=0)
