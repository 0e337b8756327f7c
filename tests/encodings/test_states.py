"""States of tokens in caches, under padding and in packed documents: each call equals the rows alone, or raises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.attention.masks import Branches

OF_TOKENS = ["fox", "path", "selective_rope", "grape", "grape_additive"]
SEQUENTIAL = OF_TOKENS[:3]


def make_model(name, dtype=torch.float64, seed=0, **changes):
    """Two layers with wide weights."""
    torch.manual_seed(seed)
    config = rw.models.DecoderConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, encoding=name, **changes,
    )  # fmt: skip
    model = rw.Decoder(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def close(got, expected, tolerance=1e-10):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(OF_TOKENS),
    steps=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=5),
    seed=st.integers(0, 10**6),
)
def test_any_use_of_a_cache_equals_the_rows_alone(name, steps, seed):
    """Chunks, of which one row has less, then a truncation of each row, then rows that are swapped or repeated."""
    model, texts = make_model(name, seed=seed), [[], []]
    cache = model.new_cache(2)
    with torch.no_grad():
        for new, missing, kept in steps:
            ids, mask = torch.randint(0, 50, (2, new)), torch.ones(2, new, dtype=torch.long)
            mask[1, : min(missing, new - 1)] = 0
            got = model(ids, attention_mask=mask, cache=cache)
            for row in range(2):
                texts[row] += ids[row][mask[row] == 1].tolist()
                close(got[row, -1], model(torch.tensor([texts[row]]))[0, -1])
            lengths = [max(1, len(text) - kept * row) for row, text in enumerate(texts)]
            cache.truncate(lengths)
            order = [(1, 0), (0, 0), (0, 1)][kept % 3]
            cache.select(order)
            texts = [list(texts[row][: lengths[row]]) for row in order]


@pytest.mark.parametrize("name", OF_TOKENS)
def test_replaced_rows(name):
    """A row that another cache has filled continues as if it had been in this one."""
    model = make_model(name)
    ids, other = torch.randint(0, 50, (2, 9)), torch.randint(0, 50, (1, 12))
    with torch.no_grad():
        cache, filled = model.new_cache(2), model.new_cache(1)
        model(ids, cache=cache)
        model(other[:, :-1], cache=filled)
        cache.replace([1], filled)
        got = model(torch.cat([ids[:1, :1], other[:, -1:]]), cache=cache)
        close(got[1], model(other)[0, -1:])
        close(got[0], model(torch.cat([ids[:1], ids[:1, :1]], 1))[0, -1:])


@pytest.mark.parametrize("name", OF_TOKENS)
def test_padding_between_tokens(name):
    """Padding on the left, on the right and in the middle, with and without packed documents."""
    model = make_model(name)
    ids, mask = torch.randint(0, 50, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[0, [0, 1, 5, 6]], mask[1, [3, 10, 11]] = 0, 0
    documents = torch.tensor([[0] * 8 + [1] * 4] * 2)
    with torch.no_grad():
        padded, packed = model(ids, attention_mask=mask), model(ids, attention_mask=mask, document_ids=documents)
        for row in range(2):
            real = mask[row] == 1
            close(padded[row, real], model(ids[row, real][None])[0])
            for document in range(2):
                own = real & (documents[row] == document)
                close(packed[row, own], model(ids[row, own][None])[0])


@pytest.mark.parametrize("name", OF_TOKENS)
def test_windows_and_sinks(name):
    """A window hides keys and changes no sum: cached as in one forward. Sinks take their share."""
    model = make_model(name, sliding_window=4)
    ids = torch.randint(0, 50, (1, 15))
    with torch.no_grad():
        cache = model.new_cache()
        got = torch.cat(
            [model(ids[:, :6], cache=cache), model(ids[:, 6:7], cache=cache), model(ids[:, 7:], cache=cache)], 1
        )
        close(got, model(ids))
    layer = rw.Attention(16, 4, encoding=name, sinks=True).double()
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    close(layer(x), layer(x, need_weights=True)[0])


@pytest.mark.parametrize("name", OF_TOKENS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cache_of_a_low_precision(name, dtype):
    """States are float32 in a cache of any dtype below, so that sums do not drift."""
    model = make_model(name, dtype)
    ids = torch.randint(0, 50, (1, 90))
    with torch.no_grad():
        cache = model.new_cache()
        got = torch.cat([model(ids[:, begin : begin + 9], cache=cache) for begin in range(0, 90, 9)], 1)
        expected = model(ids)
    assert all(states.dtype == torch.float32 for states in cache._states)
    scale = float(expected.abs().max())
    close(got / scale, expected / scale, 2e-5 if dtype == torch.float32 else 0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_TOKENS)
def test_compiled(name):
    """A compiled forward, with packed documents, and steps of a static cache by one graph."""
    torch._dynamo.reset()
    model = make_model(name)
    ids, documents = torch.randint(0, 50, (2, 12)), torch.tensor([[0] * 7 + [1] * 5] * 2)
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        close(compiled(ids), model(ids))
        close(compiled(ids, document_ids=documents), model(ids, document_ids=documents))
        cache = model.new_cache(2, capacity=16, static=True)
        parts = [model(ids[:, :5], cache=cache)]
        frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        parts += [compiled(ids[:, step : step + 1], cache=cache) for step in range(5, 12)]
        close(torch.cat(parts, 1), model(ids))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - frames <= 2
        assert cache.lengths.tolist() == [12, 12]


@pytest.mark.rejects
def test_refused():
    """Caches of other models, branches, dropped tokens and positions that would be ignored."""
    fox, alibi, ids = make_model("fox"), make_model("alibi"), torch.randint(0, 50, (1, 4))
    with torch.no_grad():
        for model, other in ((fox, alibi), (alibi, fox), (fox, make_model("path"))):
            with pytest.raises(rw.RopeError, match="not made for this layer's encoding"):
                model(ids, cache=other.new_cache())
        for name in SEQUENTIAL:
            model = make_model(name)
            cache = model.new_cache()
            model(ids, cache=cache)
            with pytest.raises(rw.RopeError, match="several continuations"):
                model(ids, cache=cache, branches=Branches([-1, 0, 0, -1]))
            with pytest.raises(rw.RopeError, match="do not follow from the cache's slots"):
                model(ids, cache=model.new_cache(rotated=False))
            with pytest.raises(rw.RopeError, match="do not follow from the cache's slots"):
                model.layers[0].self_attn(torch.zeros(1, 2, 32).double(), cache=model.new_cache(rotated=False), layer=0)
    with pytest.raises(rw.RopeError, match="one entry per layer"):
        rw.KVCache(num_layers=2, batch=1, num_key_value_heads=1, head_dim=4, state_sizes=[3])
    with pytest.raises(rw.RopeError, match="different models"):
        alibi.new_cache().replace([0], fox.new_cache())


def test_dropped_tokens_of_additive_grape():
    """Its keys are stored as they are, so later tokens can move to smaller positions."""
    model = make_model("grape_additive", seed=3)
    layer, x = model.layers[0].self_attn, torch.randn(1, 9, 32, dtype=torch.float64)
    sizes = {"num_layers": 1, "batch": 1, "num_key_value_heads": 2, "head_dim": 8, "dtype": torch.float64}
    with torch.no_grad():
        cache = rw.KVCache(**sizes, rotated=False)
        layer(x[:, :8], cache=cache)
        cache.drop(3, sinks=2)
        close(layer(x[:, 8:], cache=cache)[0, -1], layer(x[:, [0, 1, 5, 6, 7, 8]])[0, -1])
