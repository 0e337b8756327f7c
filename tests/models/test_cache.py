"""The cache: what it stores where, how it grows, when it refuses; and Attention's fused write into it."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.modules import module as of_modules
from torch.nn.utils import parametrize

import ropewalk as rw
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
    big = make(capacity=16_000)
    store(big, 16_001)
    assert big.capacity < 18_500


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


@pytest.mark.rejects
def test_seq_len_is_one_number() -> None:
    """For all rows; required if frequencies depend on it."""
    assert make().seq_len is None
    assert make(2, seq_len=torch.tensor(7)).seq_len == 7
    for wrong in (0, 4.0, True, "9", [7, 8], torch.tensor([7, 8]), torch.tensor(7.0)):
        with pytest.raises(RopeError, match="`seq_len` must be"):
            make(2, seq_len=wrong)  # type: ignore[arg-type]
    with pytest.raises(RopeError, match="`seq_len` is required"):
        make(ropes=[DYNAMIC])


def test_made_in_inference_mode_used_outside() -> None:
    """A cache made and filled under inference_mode can be written outside of it."""
    with torch.inference_mode():
        cache = make(step=2)
        store(cache, 2)
        store(cache, 3)
    cache.write(0, *tokens(1, 1), cache.lay_out(1, 1))


@pytest.mark.rejects
def test_what_is_refused() -> None:
    """Wrong batches, layers and shapes are named."""
    cache = make(2)
    layout = cache.lay_out(2, 2)
    for call, message in (
        (lambda: cache.lay_out(3, 1), "the batch differs from the cache's"),
        (lambda: cache.write(1, *tokens(2, 2), layout), "`layer` must be a whole number from 0 to 0"),
        (lambda: cache.write(0, *tokens(2, 3), layout), r"keys must be \[batch, seq, kv_heads, head_dim\]"),
        (lambda: cache.lay_out(2, 2, attention_mask=torch.ones(2, 12)), "`attention_mask` must be bool or integer"),
        (lambda: make(0), "`batch` must be a whole number from 1"),
        (lambda: make(ropes=[None, None]), "one entry per layer"),
        (lambda: make(extensions=[None, None]), "one entry per layer"),
        (lambda: cache.truncate(-1), "`length` must be at least 0"),
        (lambda: cache.truncate([1]), "`length` must be at least 0"),
        (lambda: cache.select([3]), "`rows` must be indices"),
        (lambda: cache.select(torch.tensor([True] * 2)), "`rows` must be indices"),
    ):
        with pytest.raises(RopeError, match=message):
            call()


# --- the kernels of Attention


def small_attention() -> rw.Attention:
    """Three heads of 10 features, six of which turn; one key head."""
    torch.manual_seed(1)
    return rw.Attention(30, 3, num_key_value_heads=1, rope=rw.RopeConfig(10, interleaved=False, rotary_dim=6))


def heard(seen: list[type], function: Any = lambda *_: None) -> Any:
    """A function that adds the class of its first argument to `seen`."""
    return lambda module, *given: seen.append(type(module)) or function(module, *given)


class Doubled(torch.nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


CHANGES: dict[str, Any] = {
    "forward": lambda m, seen, patch: patch.setattr(m, "forward", partial(heard(seen, type(m).forward), m)),
    "class": lambda m, seen, patch: patch.setattr(type(m), "forward", heard(seen, type(m).forward)),
    "subclass": lambda m, seen, _: setattr(
        m, "__class__", type("Other", (type(m),), {"forward": heard(seen, type(m).forward)})
    ),
    **{
        name: lambda m, seen, _, name=name: getattr(m, f"register_{name}")(heard(seen))
        for name in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    },
    **{
        f"global {name}": lambda m, seen, _, name=name: getattr(of_modules, f"register_module_{name}")(heard(seen))
        for name in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    },
}


@pytest.mark.parametrize("name", ["q_proj", "v_proj", "o_proj"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_is_not_plain_is_called(change: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever patches a module or listens to it is heard, and nothing changes by that."""
    attention, seen = small_attention(), list[type]()
    backward, module = "backward" in change, attention.get_submodule(name)
    x = torch.randn(1, 4, 30, requires_grad=backward)
    with torch.set_grad_enabled(backward):
        wanted = attention(x)
        handle = CHANGES[change](module, seen, monkeypatch)
        try:
            found = attention(x)
            if backward:
                found.sum().backward()
        finally:
            if handle is not None:
                handle.remove()
        assert type(module) in seen
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        parametrize.register_parametrization(module, "weight", Doubled())
        assert not torch.allclose(attention(x), wanted)
