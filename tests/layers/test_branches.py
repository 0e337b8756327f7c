"""Branches: each line of the tree comes out as if it alone had been read after the cache, by any kind of layer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.layers import attend, remap
from ropewalk.layers.cache import KVCache
from ropewalk.layers.decoder import Decoder
from ropewalk.layers.masks import Branches
from ropewalk.rope.scaling import DynamicNTK, LongRoPE
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, under_method

HELD = 40  # tokens in the cache, beyond the trained length of 16
PARENTS = (-1, 0, 1, 1, 3, 0, -1, 6, 6)
LONG = dataclasses.replace(ROPE, scaling=LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 16), max_position_embeddings=64)
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head of keys": {"num_key_value_heads": 1},
    "window": {"sliding_window": (6, None)},
    "window beyond": {"sliding_window": 41},
    "no rope": {"rope": (ROPE, None)},
    "dynamic": {"rope": dataclasses.replace(ROPE, scaling=DynamicNTK(4.0))},
    "longrope": {"rope": LONG},
    "alibi": {"rope": None, "encoding": "alibi"},
    "t5": {"rope": None, "encoding": "t5"},
    "xpos": {"rope": None, "encoding": "xpos"},
}
METHODS = ["dca", "self-extend", "rerope", "log-n", "drope"]


def line_of(node: int, parents: tuple[int, ...] = PARENTS) -> list[int]:
    """The numbers of a node's ancestors and itself."""
    return [node] if parents[node] < 0 else [*line_of(parents[node], parents), node]


def check(model: Decoder, parents: tuple[int, ...] = PARENTS, held: int = HELD, **cache_options: Any) -> None:
    """Every node's logits against one forward of the prefix and its line, without a cache, under the same length."""
    model = model.double()
    ids, fixed = random_ids(held + len(parents)), held + len(parents)
    cache = model.new_cache(seq_len=fixed, capacity=held, **cache_options)
    if held:
        model(ids[None, :held], cache=cache)
    found = model(ids[None, held:], cache=cache, branches=Branches(parents))[0]
    with torch.no_grad():
        for node in range(len(parents)):
            line = [held + other for other in line_of(node, parents)]
            whole = torch.cat([ids[:held], ids[line]])
            torch.testing.assert_close(found[node], model(whole[None], seq_len=fixed)[0, -1], atol=1e-10, rtol=0)
    assert cache.lengths.tolist() == [held]
    later = model(ids[None, held:], cache=cache)[0, -1]
    with torch.no_grad():
        torch.testing.assert_close(later, model(ids[None], seq_len=fixed)[0, -1], atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_line_is_as_alone(monkeypatch: pytest.MonkeyPatch, name: str, fused: bool) -> None:
    """Under any rope, window and encoding; the cache holds what it held, and can be read on."""
    if not fused:
        monkeypatch.setattr(attend, "splits", lambda *_: False)
    check(tiny_decoder(**MODELS[name]))


@pytest.mark.parametrize(
    ("method", "fused"),
    [(method, True) for method in METHODS]
    + [pytest.param(name, False, marks=[pytest.mark.repeats_shapes] * (name != "dca")) for name in METHODS],
)
def test_a_line_is_as_alone_under_methods_in_attention(
    monkeypatch: pytest.MonkeyPatch, method: str, fused: bool
) -> None:
    """From unrotated keys, by spans and written out, in blocks of queries as well."""
    for of in (attend, remap):
        if not fused:
            monkeypatch.setattr(of, "splits", lambda *_: False)
    check(under_method(tiny_decoder(), method, trained=16, target=64))
    monkeypatch.setattr(remap, "BLOCK", 4)
    monkeypatch.setattr(attend, "OPEN_BLOCK", 4)
    check(under_method(tiny_decoder(), method, trained=16, target=64))


def test_a_line_is_as_alone_from_other_caches() -> None:
    """Unrotated without need, and empty."""
    check(tiny_decoder(), rotated=False)
    check(tiny_decoder(rope=(ROPE, None)), rotated=False)
    check(tiny_decoder(), held=0)


@pytest.mark.repeats_shapes
@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 30))
def test_any_tree(draws: list[float], held: int) -> None:
    """Each node hangs on any earlier one, or on the cache's end."""
    parents = tuple(min(node, int(draw * (node + 1))) - 1 for node, draw in enumerate(draws))
    check(tiny_decoder(sliding_window=(8, None)), parents, held)
    check(under_method(tiny_decoder(), "dca", trained=16, target=64), parents, held)


def test_half_precision_keeps_its_rounding() -> None:
    """In bfloat16 a line is as near to the float64 answer as a forward of its own is."""
    exact, ids = tiny_decoder().double(), random_ids(HELD + len(PARENTS))
    rounded = tiny_decoder().bfloat16()
    cache = rounded.new_cache(capacity=HELD)
    rounded(ids[None, :HELD], cache=cache)
    found = rounded(ids[None, HELD:], cache=cache, branches=Branches(PARENTS))[0]
    with torch.no_grad():
        for node in range(len(PARENTS)):
            whole = torch.cat([ids[:HELD], ids[[HELD + other for other in line_of(node)]]])[None]
            truth, alone = exact(whole)[0, -1], rounded(whole)[0, -1]
            assert float((found[node] - truth).abs().max()) <= 2 * float((alone - truth).abs().max()) + 0.05


def test_what_cannot_branch_is_refused() -> None:
    """Parents that come later, another number of tokens, several rows, no cache, own positions, an outgrown length."""
    model, ids = tiny_decoder(), random_ids(9)[None]
    for parents in ([], [0], [-1, 1], [-2]):
        with pytest.raises(RopeError, match="must follow an earlier one"):
            Branches(parents)
    with pytest.raises(RopeError, match="branches must continue one row"):
        model(ids, cache=model.new_cache(), branches=Branches([-1]))
    with pytest.raises(RopeError, match="branches must continue one row"):
        model(ids.expand(2, -1), cache=model.new_cache(2), branches=Branches(PARENTS))
    with pytest.raises(RopeError, match="branches need a cache"):
        model(ids, branches=Branches(PARENTS))
    with pytest.raises(RopeError, match="branches need a cache"):
        model(ids, cache=model.new_cache(), branches=Branches(PARENTS), position_ids=torch.arange(9))
    growing = tiny_decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(4.0)))
    cache: KVCache = growing.new_cache(seq_len=20)
    growing(random_ids(16)[None], cache=cache)
    assert growing(ids, cache=cache, branches=Branches(PARENTS)).shape[1] == 9  # more tokens than fit, in short lines
    with pytest.raises(RopeError, match="exceeds the `seq_len`"):
        growing(ids[:, :5], cache=cache, branches=Branches([-1, 0, 1, 2, 3]))
