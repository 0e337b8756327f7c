"""The decoder: its logits are transformers'; weights, compilers, and positions that are replaced."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import ropewalk as rw
from ropewalk import RopeConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.extensions import ReRoPE
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import DynamicNTK, Linear, Scaling, YaRN
from tests.models.forms import HIDDEN, ROPE, TRAINED, VOCAB, Louder, make_decoder

make = partial(make_decoder, torch.float32)


def rope(scaling: Scaling | None = None) -> RopeConfig:
    """A rule for heads of 8 with a small trained length, so that its scaling acts."""
    return replace(ROPE, scaling=scaling)


def ids(batch: int, seq: int) -> Tensor:
    """Random tokens."""
    return torch.randint(0, VOCAB, (batch, seq))


def close(actual: Tensor, wanted: Tensor, atol: float = 1e-5) -> None:
    """Equal within 1e-5, as the design asks of float32."""
    torch.testing.assert_close(actual, wanted, rtol=0, atol=atol)


def test_hidden_states_and_logits_are_the_forward() -> None:
    """forward is the head's product with hidden_states, as `head_fn` sees both; a tied head counts once."""
    for tied in (True, False):
        model, tokens = make(rope=rope(), tie_word_embeddings=tied), ids(2, 6)
        hidden, weight = model(tokens, head_fn=lambda hidden, weight: (hidden, weight))
        assert weight is (model.embed_tokens if tied else model.lm_head).weight
        assert torch.equal(model.hidden_states(tokens), hidden)
        assert torch.equal(hidden @ weight.t(), model(tokens))
        assert model.num_parameters() == sum(value.numel() for value in model.state_dict().values())


def test_a_layer_runs_alone() -> None:
    """Layer by layer, without inputs of a model, is the model; test_refusals.py has wrong calls."""
    tokens = ids(2, 7)
    several = {"rope": (rope(), rope(YaRN(4.0, TRAINED)), None), "sliding_window": (None, 2, 3)}
    mixed = {"rope": (rope(), rope(Linear(4.0)), rope()), "extension": (ReRoPE(2), ReRoPE(2), ReRoPE(3))}
    for changes in ({"encoding": "alibi"}, {"rope": rope()}, several, mixed, {**several, "extension": Louder()}):
        model = make(**changes)
        x = model.embed_tokens(tokens)
        for layer in model.layers:
            x = layer(x)
        close(model.norm(x), model.hidden_states(tokens))
    norm, theirs = model.norm.bfloat16(), LlamaRMSNorm(HIDDEN, eps=model.norm.eps)
    theirs.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x.bfloat16()), theirs.bfloat16()(x.bfloat16()))


def test_a_cache_keeps_no_gradients() -> None:
    """With a cache the logits carry no graph; without one they do."""
    model = make(rope=rope())
    assert not model(ids(1, 3), cache=model.new_cache()).requires_grad
    assert model(ids(1, 3)).requires_grad
    low, tokens = model.bfloat16(), ids(1, 9)  # its cache has its dtype, or the one that is named
    assert low.new_cache().dtype == torch.bfloat16
    cache = low.new_cache(dtype=torch.float32)
    close(torch.cat([low(part, cache=cache) for part in tokens.split([5, 1, 3], 1)], 1), low(tokens), atol=0.1)


def test_nothing_at_all() -> None:
    """Calls without tokens or rows; test_each_way.py has rows of padding alone."""
    model = make(rope=rope(), sliding_window=(None, 2, None))
    assert (model(ids(2, 0)).shape, model(ids(0, 3)).shape) == ((2, 0, VOCAB), (0, 3, VOCAB))


# --- weights: names, start, the meta device, other dtypes, gradients


def test_built_on_meta() -> None:
    """Built without memory, materialised and filled, it is the same model."""
    source, tokens = make(rope=rope(YaRN(4.0, TRAINED))), ids(1, 9)
    with torch.device("meta"):
        model = Decoder(source.config)
    assert all(parameter.is_meta for parameter in model.parameters())
    model = model.to_empty(device="cpu").eval()
    model.load_state_dict(source.state_dict())
    assert torch.equal(model(tokens), source(tokens))
    with torch.device("meta"):
        other = Decoder(source.config).eval()
    other.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(other(tokens), source(tokens))
    assert not list(source.buffers())


def test_initial_weights() -> None:
    """Matrices, and embeddings if asked, begin with the standard deviation asked for, norms at one, biases at zero."""
    shared = {"vocab_size": 2000, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": 4, "attention_bias": True, "initializer_range": 0.1}  # fmt: skip
    labels = partial(rw.models.TextClassifierConfig, **shared, labels=("a", "b"))
    decoder = rw.models.DecoderConfig(**shared)
    made = [rw.Decoder(decoder), rw.TextClassifier(labels()), rw.TextClassifier(labels(embedding_range=0.7))]
    for model, wanted in zip(made, (0.1, 0.1, 0.7), strict=True):
        assert model.embed_tokens.weight.square().mean().item() == pytest.approx(wanted**2, rel=0.04)
        assert model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.1, rel=0.05)
        assert model.layers[0].self_attn.q_proj.bias.abs().max() == 0
        assert (model.norm.weight == 1).all()
    torch.manual_seed(5)
    once = Decoder(decoder)
    torch.manual_seed(5)
    assert torch.equal(Decoder(decoder).embed_tokens.weight, once.embed_tokens.weight)


@pytest.mark.traced
def test_compiled() -> None:
    """Without a break: one static and one dynamic graph serve all lengths and gradients; padded documents, too."""
    from torch._dynamo.testing import CompileCounter

    model, counter = make(rope=rope(DynamicNTK(2.0)), num_hidden_layers=1), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in (12, 20, 33):
        tokens = ids(2, length)
        out = compiled(tokens, seq_len=64)
        close(out, model(tokens, seq_len=64))
        out.sum().backward()
    assert counter.frame_count <= 2
    model = make(rope=(rope(YaRN(4.0, TRAINED)), None), sliding_window=(None, 4), num_hidden_layers=2)
    real, tokens = torch.ones(2, 12, dtype=torch.bool), ids(2, 12)
    real[0, :3] = False
    given = {"attention_mask": real, "document_ids": torch.tensor([[0] * 5 + [1] * 7] * 2)}
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        close(compiled(tokens, **given)[real], model(tokens, **given)[real])


# --- with_positions: the same weights under another rope, another extension, or both


def test_with_positions_shares_weights() -> None:
    """The other model has the same weights, the first one its own rope; layers without a rope stay without."""
    model, tokens = make(rope=(rope(), None, rope())), ids(1, 30)
    before = model(tokens)
    other = model.with_positions(rope=rope(Linear(4.0)))
    assert other.config.ropes == (rope(Linear(4.0)), None, rope(Linear(4.0)))
    assert model.config.ropes == (rope(), None, rope())
    assert torch.equal(model(tokens), before)
    assert (other(tokens) - before).abs().max() > 1e-3
    assert {p.data_ptr() for p in other.parameters()} == {p.data_ptr() for p in model.parameters()}
    assert torch.equal(other.with_positions(rope=(rope(), None, rope()))(tokens), before)
    assert make(rope=rope()).with_positions(rope=rope(Linear(4.0))).config.rope == rope(Linear(4.0))
    assert model.with_positions(rope=None).config.ropes == (None, None, None)
    with torch.no_grad():
        model.norm.weight.zero_()
    assert other(tokens).abs().max() == 0
    other.train()
    assert not model.training
    assert not model.layers[0].self_attn.training


def test_with_positions_sets_both_at_once() -> None:
    """A rope and an extension together, one alone, and neither; what is not named stays."""
    model, near, far, tokens = make(rope=rope()), ReRoPE(window=4), rope(Linear(4.0)), ids(1, 30)
    both, scaled = model.with_positions(rope=far, extension=near), model.with_positions(rope=far)
    without = both.with_positions(rope=None, extension=None)  # neither order of two calls could do this for a layer
    nothing = (None,) * 3
    for changed, ropes, extensions in (
        (both, (far,) * 3, (near,) * 3),
        (both.with_positions(extension=None), (far,) * 3, nothing),
        (without, nothing, nothing),
        (without.with_positions(rope=(rope(),) * 3, extension=(near, None, None)), (rope(),) * 3, (near, None, None)),
        (model, (rope(),) * 3, nothing),
    ):
        assert changed.config.positions == ModelRopes(ropes, extensions, nothing)
    assert (both.config.rope, both.config.extension) == (far, near)
    for same in (scaled.with_positions(extension=near), both.with_positions()):
        assert torch.equal(same(tokens), both(tokens))
