"""A cache of fixed capacity: one compiled graph decodes every token, and gives what a growing cache gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from ropewalk.attention.cache import KVCache, StaticCache
from ropewalk.attention.extensions import ReRoPE, StreamingLLM
from ropewalk.errors import RopeError
from ropewalk.models import generation as module
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.rope.scaling import DynamicNTK
from tests.models.test_generate import LONG, PROMPTS, make

STEPS, PROMPT = 20, 7
TOTAL = PROMPT + STEPS


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """No graph of another test counts."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    """Graphs that were compiled since the test began."""
    return int(counters["stats"]["unique_graphs"])


def prompt(rows: int = 2) -> tuple[Tensor, Tensor]:
    """Token ids, and a mask that makes the rows differ in length."""
    torch.manual_seed(3)
    ids, mask = torch.randint(0, 50, (rows, PROMPT)), torch.ones(rows, PROMPT, dtype=torch.long)
    mask[1:, 4:] = 0
    return ids, mask


@torch.inference_mode()
def decode(model: Decoder, step: Any, cache: KVCache, ids: Tensor, mask: Tensor) -> Tensor:
    """Logits `[steps, rows, vocab]` of greedy decoding: the prompt by `model`, every new token by `step`."""
    logits = model(ids, attention_mask=mask, cache=cache)[torch.arange(len(ids)), mask.sum(1) - 1]
    out = []
    for _ in range(STEPS):
        logits = step(logits.argmax(-1, keepdim=True), cache=cache)[:, 0]
        out.append(logits)
    return torch.stack(out)


CASES: dict[str, dict[str, Any]] = {
    "rope": {"sliding_window": (5, None), "qk_norm": True},
    "alibi": {"rope": None, "encoding": "alibi", "num_hidden_layers": 1},
    "transformer_xl": {"rope": None, "encoding": "transformer_xl", "num_hidden_layers": 1},
    "rerope": {"extension": ReRoPE(window=6), "num_hidden_layers": 1},
}
RARE: dict[str, dict[str, Any]] = {
    "none": {"rope": None},
    "learned": {"rope": None, "encoding": "learned"},
    "sinusoidal": {"rope": None, "encoding": "sinusoidal"},
    "fire": {"rope": None, "encoding": "fire"},
    "xpos": {"rope": None, "encoding": "xpos"},
    "streaming": {"extension": StreamingLLM(window=8, sinks=2)},
}


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in RARE)])
@pytest.mark.traced
def test_one_graph_decodes_every_token(case: str) -> None:
    """Rows of different lengths, in float64: within 1e-12 of a growing cache; without a compiler bit for bit."""
    model = make(**(CASES | RARE)[case]).double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager" if case == "rope" else "eager")
    ids, mask = prompt()
    wanted = decode(model, model, model.new_cache(2), ids, mask)
    assert torch.equal(decode(model, model, model.new_cache(2, capacity=TOTAL, static=True), ids, mask), wanted)
    assert graphs() == 0
    cache = model.new_cache(2, capacity=TOTAL, static=True)
    torch.testing.assert_close(decode(model, compiled, cache, ids, mask), wanted, rtol=1e-12, atol=1e-12)
    assert cache.lengths.tolist() == [PROMPT + STEPS, 4 + STEPS]
    again = model.new_cache(2, capacity=TOTAL, static=True)
    decode(model, compiled, again, ids, mask)
    assert graphs() == 1


@pytest.mark.parametrize("scaling", [DynamicNTK(2.0), LONG], ids=["dynamic", "longrope"])
@pytest.mark.traced
def test_frequencies_of_a_length_are_compiled_in(scaling: Any) -> None:
    """Where frequencies depend on length they are those of the cache's `seq_len`."""
    model = make(scaling, num_hidden_layers=1).double()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids, mask = prompt(1)
    wanted = decode(model, model, model.new_cache(seq_len=TOTAL), ids, mask)
    cache = model.new_cache(seq_len=TOTAL, capacity=TOTAL, static=True)
    torch.testing.assert_close(decode(model, compiled, cache, ids, mask), wanted, rtol=1e-12, atol=1e-12)
    assert graphs() == 1


@pytest.mark.slow
@pytest.mark.traced
def test_inductor_decodes_too() -> None:
    """The same with the compiler's own code."""
    model = make()
    ids, mask = prompt()
    wanted = decode(model, model, model.new_cache(2), ids, mask)
    cache = model.new_cache(2, capacity=TOTAL, static=True)
    got = decode(model, torch.compile(model, fullgraph=True), cache, ids, mask)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert graphs() == 1


@pytest.mark.traced
def test_padding_is_not_stored() -> None:
    """A compiled call with padding writes the real tokens alone, each where it belongs."""
    model = make(num_hidden_layers=1).double()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids, mask = prompt()
    caches = [model.new_cache(2, capacity=TOTAL, static=static) for static in (False, True)]
    with torch.inference_mode():
        for part in (slice(0, 3), slice(3, 7)):
            wanted, got = (
                call(ids[:, part], attention_mask=mask[:, part], cache=cache)
                for call, cache in zip((model, compiled), caches, strict=True)
            )
            real = mask[:, part].bool()
            torch.testing.assert_close(got[real], wanted[real], rtol=1e-12, atol=1e-12)
    assert caches[1].lengths.tolist() == [7, 4]
    for layer in range(1):
        for plain, static in ((caches[0]._keys, caches[1]._keys), (caches[0]._values, caches[1]._values)):
            for row, length in enumerate((7, 4)):
                torch.testing.assert_close(static[layer][row, :, :length], plain[layer][row, :, :length])


@pytest.mark.traced
def test_too_many_tokens_are_never_silent() -> None:
    """Beyond the capacity: a RopeError, and under a compiler NaN in the row that exceeds it, until it is cut."""
    model = make(num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids, mask = prompt()
    with torch.inference_mode():
        cache = model.new_cache(2, capacity=PROMPT, static=True)
        model(ids, attention_mask=mask, cache=cache)
        with pytest.raises(RopeError, match="exceeds its capacity"):
            model(ids[:, :1], cache=cache)
        for _ in range(2):
            logits = compiled(ids[:, :1], cache=cache)
            assert logits[0].isnan().all()
            assert logits[1].isfinite().all()
        cache.truncate(3)
        torch.testing.assert_close(model(ids[:, 3:5], cache=cache), model(ids[:, :5])[:, 3:])


def test_rows_are_cut_chosen_and_begun_anew() -> None:
    """truncate, select, replace, drop and reset do what they do to a growing cache."""
    ids, mask = prompt()
    for rotated in (True, False):
        model, lengths, logits = make(), [], []
        for static in (False, True):
            cache = model.new_cache(2, capacity=30, static=static, rotated=rotated)
            other = model.new_cache(1, capacity=30, static=static, rotated=rotated)
            with torch.inference_mode():
                model(ids, attention_mask=mask, cache=cache)
                model(ids[:1, :5], cache=other)
                cache.truncate([6, 3])
                cache.select([1, 0, 1])
                cache.replace([2], other)
                if not rotated:
                    cache.drop([1, 2, 0], sinks=1)
                logits.append(model(ids[:1, :2].expand(3, -1), cache=cache))
            lengths.append(cache.lengths.tolist())
            cache.reset()
            assert cache.lengths.tolist() == [0, 0, 0]
        assert lengths[0] == lengths[1]
        assert torch.equal(*logits)


@pytest.mark.traced
def test_generate_compiles_few_graphs() -> None:
    """A compiled model's `generate` gives the same tokens; prompt and decoding are one graph each."""
    model = make(num_hidden_layers=1)
    wanted = generate(model, PROMPTS, max_new_tokens=STEPS)
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    assert generate(compiled, PROMPTS, max_new_tokens=STEPS) == wanted
    assert graphs() == 2


@pytest.mark.parametrize("scaling", [None, DynamicNTK(2.0), LONG], ids=["rope", "dynamic", "longrope"])
def test_generate_takes_a_static_cache_where_one_serves(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where LongRoPE follows the tokens, nor for rows of several lengths; the tokens are the same."""
    model, made = make(scaling), []
    new_cache = model.new_cache
    for prompts in (PROMPTS, PROMPTS[:1]):
        wanted = generate(model, prompts, max_new_tokens=12)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_is_compiled", lambda model: True)
            patch.setattr(model, "new_cache", lambda *a, **k: made.append(k["static"]) or new_cache(*a, **k))
            assert generate(model, prompts, max_new_tokens=12) == wanted
    several, one = made[0], made[-1]
    assert several is (scaling is None)
    assert one is (scaling is not LONG)


@pytest.mark.rejects
def test_what_is_refused() -> None:
    """No capacity, or frequencies that are not right up to it."""
    with pytest.raises(RopeError, match="`capacity` is required"):
        make().new_cache(static=True)
    with pytest.raises(RopeError, match="exceeds the `seq_len`"):
        make(DynamicNTK(2.0)).new_cache(seq_len=20, capacity=21, static=True)
    assert isinstance(make(DynamicNTK(2.0)).new_cache(seq_len=20, capacity=20, static=True), StaticCache)
