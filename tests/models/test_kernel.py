"""`Attention` through the compiled kernel: what a float64 layer without it computes, whichever way the tokens come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk import compiled
from ropewalk.attention import remap
from ropewalk.attention.masks import Branches
from ropewalk.models.cache import KVCache
from ropewalk.rope.extensions import DualChunk, Extension, ReRoPE, SelfExtend
from ropewalk.rotation import backends
from ropewalk.rotation.backends import cpu
from tests.models.forms import Louder
from tests.models.test_branches import branched, lines

pytestmark = pytest.mark.skipif(compiled.kernels is None, reason="needs the compiled extension")
BATCH, SEQ, HIDDEN, HEADS, KV_HEADS, DIM = 2, 90, 48, 6, 2, 16
# of outputs of size one: sums of some hundred float32 products, and of bf16 numbers, each rounded six times on its way
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2}
RULES = [
    ReRoPE(window=9), ReRoPE(window=9, log_n=30), SelfExtend(group=4, window=12), Louder(),
    DualChunk(chunk=24, trained_length=32),
]  # fmt: skip
PARTIAL = [
    rw.RopeConfig(DIM, interleaved=interleaved, rotary_dim=10, scaling=rw.scaling.YaRN(4.0, 64))
    for interleaved in (False, True)
]
FORMS: list[dict[str, Any]] = [
    {}, {"sliding_window": 7}, {"causal": False}, {"causal": False, "sliding_window": 7},
    {"rope": None}, {"softcap": 0.5, "sliding_window": 7}, {"sinks": True}, {"softcap": 0.7, "sinks": True},
    *({"extension": rule, **form} for rule in RULES for form in ({}, {"softcap": 0.7, "sinks": True})),
    *({"extension": RULES[0], "rope": rope} for rope in PARTIAL),
]  # fmt: skip
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many queries each call of the kernel had."""
    seen: list[int] = []

    class Counting:
        name, kernels, most_regions = "cpu", True, cpu.most_regions
        reasons_not_to_attend = staticmethod(cpu.reasons_not_to_attend)

        @staticmethod
        def attend(request: Any) -> Tensor:
            seen.append(request.regions[0].q.shape[2])
            return cpu.attend(request)

    monkeypatch.setattr(cpu, "before_torch", lambda q, k: True)
    monkeypatch.setattr(backends, "ATTENTION", (Counting, *backends.ATTENTION[1:]))
    with torch.no_grad():
        yield seen


def layers(dtype: torch.dtype, form: dict[str, Any]) -> tuple[rw.Attention, rw.Attention, Tensor]:
    """The layer, the same in float64, and hidden states that both can hold."""
    torch.manual_seed(3)
    given = {"rope": rw.RopeConfig(DIM, interleaved=False), "num_key_value_heads": KV_HEADS, "head_dim": DIM, **form}
    ours = rw.Attention(HIDDEN, HEADS, **given).to(dtype).eval()
    if ours.sinks is not None:
        ours.sinks.copy_(torch.linspace(-1.0, 2.0, HEADS))
    exact = rw.Attention(HIDDEN, HEADS, **given).double().eval()
    exact.load_state_dict({name: x.double() for name, x in ours.state_dict().items()})
    return ours, exact, torch.randn(BATCH, SEQ, HIDDEN).to(dtype)


def agree(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_each_way_of_the_tokens(form: dict[str, Any], calls: list[int]) -> None:
    """Whole, padded, with a hole that no interval describes, packed, and in chunks through a cache with free room."""
    dtype = torch.bfloat16
    ours, exact, x = layers(dtype, form)
    masks = torch.ones(3, BATCH, SEQ, dtype=torch.long)
    masks[:2, 0, :13] = masks[:2, 1, 60:] = masks[1, 1, 1:3] = masks[2, 1, 30:35] = 0
    marks = torch.arange(SEQ).div(35, rounding_mode="floor").expand(BATCH, -1)
    for given, expected in (
        ({}, [SEQ]), ({"attention_mask": masks[0]}, [SEQ]), ({"attention_mask": masks[1]}, None),
        ({"attention_mask": masks[2], "document_ids": marks}, [SEQ]),
    ):  # fmt: skip
        calls.clear()
        out, real = ours(x, **given), given.get("attention_mask", torch.ones(BATCH, SEQ)).bool()
        agree(out[real], exact(x.double(), **given)[real], dtype)
        assert out.isfinite().all()
        assert expected is None or calls == expected
    if not form.get("causal", True):
        return
    mask = torch.ones(BATCH, 40, dtype=torch.long)
    mask[1, :25] = 0
    chunks = list(pairwise([0, 40, 41, 70, SEQ - 1, SEQ]))
    for capacity, real in ((200, None), (None, mask)):
        calls.clear()
        cache = KVCache(num_layers=1, batch=BATCH, num_key_value_heads=KV_HEADS, head_dim=DIM, dtype=dtype,
                        extensions=[form.get("extension")], **({"capacity": capacity} if capacity else {}))  # fmt: skip
        parts = [ours(x[:, a:b], cache=cache, attention_mask=real if a == 0 else None) for a, b in chunks]
        whole = torch.ones(BATCH, SEQ, dtype=torch.long)
        whole[1, : 0 if real is None else 25] = 0
        wanted = exact(x.double(), attention_mask=whole)
        agree(torch.cat(parts, 1)[whole.bool()], wanted[whole.bool()], dtype)
        assert calls == [b - a for a, b in chunks]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@dtypes
def test_keys_that_are_turned_before(
    rule: Extension, dtype: torch.dtype, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many queries have them: the kernel is given no tables."""
    monkeypatch.setattr(remap, "ROTATE_BEFORE", 1)
    monkeypatch.setattr(remap, "KeyTurn", None)
    ours, exact, x = layers(dtype, {"extension": rule})
    agree(ours(x), exact(x.double()), dtype)
    agree(branched(ours, x[:1], Branches(LINES)), lines(exact, x[:1].double(), LINES), dtype)
    assert calls == [SEQ, SEQ - len(LINES), len(LINES)]


LINES = (-1, 0, 1, 2, -1, 4, 5, 1, 7, 8, -1, 9)  # three questions, one with a second end, and one that goes on late


@pytest.mark.parametrize("form", [{"extension": rule} for rule in (None, *RULES)] + [
    {"sliding_window": 5}, {"softcap": 0.7, "sinks": True}, {"extension": RULES[0], "softcap": 0.7, "sinks": True},
], ids=str)  # fmt: skip
@dtypes
def test_branches(form: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    """Many questions after one prefix, in one call of the kernel: each line as if it were alone."""
    ours, exact, x = layers(dtype, form)
    x = x[:1, :70]
    agree(branched(ours, x, Branches(LINES)), lines(exact, x.double(), LINES), dtype)
    assert calls == [58, 12]


def test_a_tangled_tree_goes_another_way(calls: list[int]) -> None:
    """Two lines in turns have more stretches than the kernel has regions."""
    ours, exact, x = layers(torch.float32, {})
    parents = (-1, -1, *range(20))
    agree(branched(ours, x[:1], Branches(parents)), lines(exact, x[:1].double(), parents), torch.float32)
    assert calls == [SEQ - 22]


def test_what_does_not_go_through_the_kernel(calls: list[int]) -> None:
    """Weights that are asked for, dropout, biases and float64."""
    ours, exact, x = layers(torch.float32, {})
    exact(x.double())
    ours(x, need_weights=True)
    rw.Attention(HIDDEN, HEADS, encoding="alibi")(x)
    for form in ({}, {"rope": rw.RopeConfig(8, interleaved=False), "extension": RULES[0]}):
        rw.Attention(HIDDEN, HEADS, attention_dropout=0.5, **form).train()(x)
    assert calls == []
