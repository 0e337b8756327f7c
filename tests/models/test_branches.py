"""Branches: each line of the tree comes out as if it alone had been read after the cache, by any kind of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ropewalk as rw
from ropewalk.attention.masks import Branches
from ropewalk.models.forward_inputs import ForwardInputs
from ropewalk.rope.extensions import DualChunk
from tests.models.forms import EXTENSIONS, FORMS, HIDDEN, make_layer

PARENTS = (-1, 0, 1, 1, 3, 0, -1, 6, 6)
FORMS_OF_ONE = ["default", "nope", "window 3", "window 20", "both", *map(repr, EXTENSIONS)]


def branched(layer: rw.Attention, x: Tensor, branches: Branches) -> Tensor:
    """What a layer gives for the last tokens, which go on from the others in several ways."""
    held, kv_heads = x.shape[1] - len(branches), layer.num_key_value_heads
    cache = rw.KVCache(
        num_layers=1, batch=1, num_key_value_heads=kv_heads, head_dim=layer.head_dim, dtype=x.dtype,
        extensions=[layer.extension],
    )  # fmt: skip
    layer(x[:, :held], cache=cache)
    inputs = ForwardInputs(x[:, held:], cache=cache)
    inputs.layout.branches = branches
    return layer(x[:, held:], inputs=inputs)[0]


def lines(layer: rw.Attention, x: Tensor, parents: tuple[int, ...]) -> Tensor:
    """The same, each line read alone."""
    held, outs = x.shape[1] - len(parents), []
    for node in range(len(parents)):
        line = [node]
        while parents[line[0]] >= 0:
            line.insert(0, parents[line[0]])
        outs.append(layer(x[:, [*range(held), *(held + other for other in line)]])[0, -1])
    return torch.stack(outs)


def check(form: dict[str, Any], parents: tuple[int, ...] = PARENTS, held: int = 40) -> None:
    layer, x = make_layer(**form), torch.randn(1, held + len(parents), HIDDEN).double()
    with torch.no_grad():
        torch.testing.assert_close(branched(layer, x, Branches(parents)), lines(layer, x, parents), atol=1e-11, rtol=0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", FORMS_OF_ONE)
def test_a_line_is_as_alone(form: str) -> None:
    """Under windows, rules for logits and rules for positions, written out in blocks of queries."""
    check(FORMS[form][0])


@pytest.mark.repeats_shapes
@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 30))
def test_any_tree(draws: list[float], held: int) -> None:
    """Each node hangs on any earlier one, or on the cache's end."""
    parents = tuple(min(node, int(draw * (node + 1))) - 1 for node, draw in enumerate(draws))
    check({"sliding_window": 8}, parents, held)
    check({"extension": DualChunk(chunk=6, trained_length=8)}, parents, held)
