"""The cache: what it stores where, how it grows, when it refuses."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ropewalk import RopeConfig, RopeError, inverse_frequencies
from ropewalk.models.attention import Attention
from ropewalk.models.cache import KVCache
from ropewalk.rope.scaling import DynamicNTK, LongRoPE, YaRN

DYNAMIC = RopeConfig(8, interleaved=False, max_position_embeddings=16, scaling=DynamicNTK(factor=2.0))
DYNAMIC_PAPER = RopeConfig(8, interleaved=False, max_position_embeddings=16, scaling=DynamicNTK(variant="paper"))
LONG = RopeConfig(
    8, interleaved=False, max_position_embeddings=64, scaling=LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 16)
)
YARN = RopeConfig(8, interleaved=False, scaling=YaRN(4.0, 16))


def make(batch: int = 1, **changes: Any) -> KVCache:
    """A cache of one small layer."""
    sizes: dict[str, Any] = {"num_layers": 1, "num_key_value_heads": 2, "head_dim": 3}
    step = changes.pop("step", KVCache.step)
    cache = KVCache(batch=batch, **{**sizes, **changes})
    cache.step = step
    return cache


def store(cache: KVCache, seq: int, **given: Any) -> None:
    """Append random tokens to the only layer."""
    layout = cache.lay_out(cache.batch, seq, **given)
    cache.write(0, *tokens(cache.batch, seq), layout)
    cache.commit(layout)


def tokens(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys and values."""
    return torch.randn(batch, seq, 2, 3), torch.randn(batch, seq, 2, 3)


def test_grows_in_steps() -> None:
    """No growth per token, no growth past what capacity reserved, and never to the double."""
    cache = make(capacity=100)
    assert cache.capacity == 100
    grown = []
    for _ in range(1200):
        store(cache, 1)
        if cache.capacity not in grown:
            grown.append(cache.capacity)
    assert grown == [100, 256, 512, 768, 1024, 1280]
    assert cache.nbytes == 2 * 1280 * 2 * 3 * 4
    assert make().nbytes == make(capacity=0).nbytes == 0
    big = make(capacity=16_000)
    for tokens, most in ((16_000, 16_000), (1, 18_500)):
        store(big, tokens)
        assert big.capacity <= most


def test_layers_that_hold_different_tokens_are_refused() -> None:
    """A pass that failed, a layer left out, one called twice and two modules of one number; `truncate` is the cure."""
    first, second, x = Attention(6, 2, head_dim=3), Attention(6, 2, head_dim=3), torch.randn(1, 3, 6)
    for order, again in (([(first, 0), (second, 2)], 0), ([(second, 2), (first, 0)], 2)):
        cache = make(num_layers=3)
        for module, layer in order:
            module(x, cache=cache, layer=layer)
        order[0][0](x, cache=cache, layer=again)  # the second layer fails
        for module, layer in (order[0], (first, 1)):
            with pytest.raises(RopeError, match=r"(?s)does not continue the tokens that the layers hold.*truncate"):
                module(x, cache=cache, layer=layer)
        cache.truncate(3)
        with pytest.raises(RopeError, match="a different module has written"):
            order[1][0](x, cache=cache, layer=again)
        for module, layer in order:
            module(x[:, :1], cache=pickle.loads(pickle.dumps(cache)), layer=layer)
            module(x[:, :1], cache=cache, layer=layer)
        assert cache.lengths.tolist() == [4]
    layout = cache.lay_out(1, 1)
    for layer, refused in ((0, False), (0, True), (1, True), (2, False)):
        with pytest.raises(RopeError, match="does not continue") if refused else nullcontext():
            cache.write(layer, *tokens(1, 1), layout)
    cache.commit(layout)
    with pytest.raises(RopeError, match="does not continue"):
        cache.write(0, *tokens(1, 1), layout)


@pytest.mark.parametrize("rope", [DYNAMIC, DYNAMIC_PAPER, LONG, YARN])
@pytest.mark.parametrize("seq_len", [5, 15, 16, 17, 40])
def test_longest_at_is_where_frequencies_change(rope: RopeConfig, seq_len: int) -> None:
    """Up to the bound the frequencies are those of seq_len, beyond it they are not."""
    fixed = inverse_frequencies(rope, seq_len).inv_freq
    bound = rope.longest_at(seq_len)
    for length in range(seq_len, 100):
        assert torch.equal(inverse_frequencies(rope, length).inv_freq, fixed) == (length <= bound)


def test_outgrowing_is_refused() -> None:
    """Growth is refused where it would change a row's frequencies, and only there."""
    cache = make(2, ropes=[DYNAMIC], seq_len=20)
    store(cache, 16)
    store(cache, 4, attention_mask=torch.tensor([[1] * 4, [0] * 4]))
    store(cache, 1, attention_mask=torch.tensor([[0], [1]]))
    with pytest.raises(RopeError, match="exceeds the `seq_len`"):
        cache.lay_out(2, 1, attention_mask=torch.tensor([[1], [0]]))
    short, long = make(ropes=[LONG], seq_len=9), make(ropes=[LONG], seq_len=17)
    store(short, 16)
    with pytest.raises(RopeError, match="exceeds the `seq_len`"):
        short.lay_out(1, 1)
    store(long, 900)
    make(ropes=[YARN], seq_len=3).lay_out(1, 90)


def test_made_in_inference_mode_used_outside() -> None:
    """A cache made and filled under inference_mode can be written outside of it."""
    with torch.inference_mode():
        cache = make(step=2)
        store(cache, 2)
        store(cache, 3)
    cache.write(0, *tokens(1, 1), cache.lay_out(1, 1))
