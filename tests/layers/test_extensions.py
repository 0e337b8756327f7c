"""Extensions in attention against their papers' relative positions, one query and key at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.layers.attention import Attention
from ropewalk.rope.extensions import (
    DualChunk,
    Extension,
    ReRoPE,
    SelfExtend,
)
from ropewalk.rope.scaling import YaRN
from tests.layers.extension_material import (
    EXTENSIONS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    REPEATS,
    ROPE,
    each_once,
    make_layer,
    oracle,
)

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("extension", each_once(EXTENSIONS), ids=repr)
def test_it_is_the_papers_relative_position(extension):
    """Every score against the formula, by the fused passes and, for gradients, written out."""
    layer, x = make_layer(extension), torch.randn(1, 37, 24, dtype=torch.float64)
    wanted = oracle(layer, x[0].numpy(), extension)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            found = layer(x)[0].detach()
        np.testing.assert_allclose(found, wanted, atol=1e-12, rtol=0)


BOTH: dict[str, Any] = {"softcap": 2.0, "sinks": True}
ALONE: list[dict[str, Any]] = [{"softcap": 1.5}, {"sinks": True}]


@pytest.mark.parametrize(
    ("form", "extension"),
    [*((BOTH, each) for each in EXTENSIONS), *((form, each) for form in ALONE for each in EXTENSIONS[::4])],
    ids=str,
)
def test_softcap_and_sinks(extension: Extension, form: dict[str, Any]) -> None:
    """With a rule for logits beside it: written out with and without weights, and from a cache."""
    layer, x = make_layer(extension, **form), torch.randn(1, 37, 24, dtype=torch.float64)
    wanted = oracle(layer, x[0].numpy(), extension)
    cache = rw.KVCache(
        num_layers=1, batch=1, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=x.dtype, extensions=[extension],
    )  # fmt: skip
    with torch.no_grad():
        parts = [layer(x[:, begin:end], cache=cache) for begin, end in ((0, 9), (9, 10), (10, 37))]
        for found in (layer(x), layer(x, need_weights=True)[0], torch.cat(parts, 1)):
            np.testing.assert_allclose(found[0], wanted, atol=1e-12, rtol=0)


@REPEATS
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([ReRoPE, SelfExtend, DualChunk]),
    a=st.integers(1, 20),
    b=st.integers(1, 12),
    seq=st.integers(1, 33),
)
def test_any_sizes(kind: Callable[..., Extension], a: int, b: int, seq: int):
    """Windows longer than the row, groups longer than the window, chunks of one token."""
    made: dict[object, Extension] = {
        ReRoPE: ReRoPE(window=a, leak=1 / b),
        SelfExtend: SelfExtend(group=b, window=a),
        DualChunk: DualChunk(chunk=a, trained_length=a + b),
    }
    layer, x = make_layer(made[kind]), torch.randn(1, seq, 24, dtype=torch.float64)
    with torch.no_grad():
        found = layer(x)[0]
    np.testing.assert_allclose(found, oracle(layer, x[0].numpy(), made[kind]), atol=1e-12, rtol=0)


def test_weights_are_shown():
    """need_weights gives the same output and rows that sum to one."""
    layer, x = make_layer(DualChunk(chunk=6, trained_length=8)), torch.randn(2, 21, 24, dtype=torch.float64)
    with torch.no_grad():
        out, weights = layer(x, need_weights=True)
        torch.testing.assert_close(out, layer(x), atol=1e-12, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 21, dtype=torch.float64))


def test_gradients_flow():
    """The open form is differentiable: against finite differences."""
    layer = make_layer(SelfExtend(group=2, window=3))
    x = torch.randn(1, 5, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_a_scaled_rope_keeps_its_attention_factor():
    """YaRN's factor reaches every region, also the one whose keys are not rotated."""
    rope = replace(ROPE, scaling=YaRN(4.0, 16))
    layer = Attention(24, HEADS, head_dim=HEAD_DIM, rope=rope, extension=ReRoPE(window=4)).double().eval()
    plain = Attention(24, HEADS, head_dim=HEAD_DIM, rope=rope).double().eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(1, 4, 24, dtype=torch.float64)
    with torch.no_grad():  # within the window it is the plain rope
        torch.testing.assert_close(layer(x), plain(x), atol=1e-13, rtol=0)
        longer = torch.randn(1, 12, 24, dtype=torch.float64)
        fused = layer(longer)
    torch.testing.assert_close(fused, layer(longer).detach(), atol=1e-13, rtol=0)
    weights = layer(longer, need_weights=True)[1][0, :, 11, 0].log()
    near = layer(longer, need_weights=True)[1][0, :, 11, 1].log()
    q, k = (m(longer).view(12, HEADS, HEAD_DIM) for m in (layer.q_proj, layer.k_proj))
    turned = layer.rotary.rotate(q[None, 11:], position_ids=torch.tensor([4]))[0, 0]
    scale = rope_factor = layer.rotary.attention_factor_at(None)
    want = ((turned * (k[0] - k[1])).sum(-1) * scale / math.sqrt(HEAD_DIM)).detach()
    assert rope_factor > 1
    torch.testing.assert_close((weights - near).detach(), want, atol=1e-12, rtol=0)
