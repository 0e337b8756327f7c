"""`Attention` through the compiled kernel: what a float64 layer without it computes, whichever way the tokens come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.layers import remap
from ropewalk.layers.cache import KVCache
from ropewalk.layers.masks import Branches, Stretch
from ropewalk.rope import dispatch as compiled
from ropewalk.rope.extensions import DualChunk, Extension, LogN, ReRoPE, SelfExtend
from ropewalk.rotation import backends
from ropewalk.rotation.backends import cpu
from tests.layers.test_branches import branched, lines

pytestmark = pytest.mark.skipif(compiled.kernels is None, reason="needs the compiled extension")
BATCH, SEQ, HIDDEN, HEADS, KV_HEADS, DIM = 2, 90, 48, 6, 2, 16
# of outputs of size one: sums of some hundred float32 products, and of bf16 numbers, each rounded six times on its way
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2}
FORMS: dict[str, dict[str, Any]] = {
    "causal": {}, "window": {"sliding_window": 7}, "both ways": {"causal": False}, "qk norm": {"qk_norm": True},
    "both ways in a window": {"causal": False, "sliding_window": 7}, "no rope": {"rope": None},
    "softcap": {"softcap": 0.5, "sliding_window": 7}, "sinks": {"sinks": True}, "both": {"softcap": 0.7, "sinks": True},
}  # fmt: skip
form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many queries each call of the kernel had."""
    seen: list[int] = []

    class Counting:
        name, kernels, most_regions = "cpu", True, cpu.most_regions
        before_torch = staticmethod(lambda q, k: True)
        reasons_not_to_attend = staticmethod(cpu.reasons_not_to_attend)

        @staticmethod
        def attend(request: Any) -> Tensor:
            seen.append(request.regions[0].q.shape[2])
            return cpu.attend(request)

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


@form
@dtypes
def test_prefill(form: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    """A plain call."""
    ours, exact, x = layers(dtype, form)
    agree(ours(x), exact(x.double()), dtype)
    assert calls == [SEQ]


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form.get("causal", True)], ids=str)
@dtypes
def test_cached_equals_full(form: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    """Chunks and single tokens through a cache, whose room is larger than what it holds."""
    ours, exact, x = layers(dtype, form)
    cache = KVCache(num_layers=1, batch=BATCH, num_key_value_heads=KV_HEADS, head_dim=DIM, dtype=dtype, capacity=200)
    edges = [0, 40, 41, 70, SEQ - 1, SEQ]
    parts = [ours(x[:, a:b], cache=cache) for a, b in pairwise(edges)]
    agree(torch.cat(parts, 1), exact(x.double()), dtype)
    assert calls == [40, 1, 29, 19, 1]


@form
@dtypes
def test_padded_equals_unpadded(form: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    """Padding to the left of one row and to the right of the other; then among the tokens, which no interval tells."""
    ours, exact, x = layers(dtype, form)
    mask = torch.ones(BATCH, SEQ, dtype=torch.long)
    mask[0, :13], mask[1, 60:] = 0, 0
    out = ours(x, attention_mask=mask)
    agree(out[:1, 13:], exact(x[:1, 13:].double()), dtype)
    agree(out[1:, :60], exact(x[1:, :60].double()), dtype)
    assert calls == [SEQ]
    assert out.isfinite().all()
    mask[0, 50:52] = 0
    out = ours(x, attention_mask=mask)
    agree(out[0][mask[0] == 1], exact(x.double(), attention_mask=mask)[0][mask[0] == 1], dtype)
    assert calls == [SEQ]


@dtypes
def test_rows_of_unequal_length_in_a_cache(dtype: torch.dtype, calls: list[int]) -> None:
    """A left-padded prompt, then steps: each row as if it were alone."""
    ours, exact, x = layers(dtype, {})
    mask = torch.ones(BATCH, 60, dtype=torch.long)
    mask[1, :25] = 0
    cache = KVCache(num_layers=1, batch=BATCH, num_key_value_heads=KV_HEADS, head_dim=DIM, dtype=dtype)
    out = [ours(x[:, :60], cache=cache, attention_mask=mask)]
    out += [ours(x[:, at : at + 5], cache=cache) for at in range(60, SEQ, 5)]
    whole = torch.cat(out, 1)
    agree(whole[:1], exact(x[:1].double()), dtype)
    agree(whole[1:, 25:], exact(x[1:, 25:].double()), dtype)
    assert len(calls) == 7


@form
@dtypes
def test_packed_equals_separate(form: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    """Documents of two rows, with padding among them, in one call."""
    ours, exact, x = layers(dtype, form)
    marks = torch.arange(SEQ).div(35, rounding_mode="floor").expand(BATCH, -1)
    mask = torch.ones(BATCH, SEQ, dtype=torch.long)
    mask[1, 30:35] = 0
    out = ours(x, document_ids=marks, attention_mask=mask)
    assert calls == [BATCH * SEQ - 5]
    for row, begin, end in [(0, 0, 35), (0, 35, 70), (0, 70, 90), (1, 0, 30), (1, 35, 70), (1, 70, 90)]:
        agree(out[row, begin:end], exact(x[row : row + 1, begin:end].double())[0], dtype)


RULES = [
    ReRoPE(window=9), ReRoPE(window=9, leak=0.25, log_n=30), SelfExtend(group=4, window=12), LogN(trained_length=16),
    DualChunk(chunk=24, trained_length=32),
]  # fmt: skip


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


@pytest.mark.parametrize("form", [{}, {"softcap": 0.7, "sinks": True}], ids=["plain", "capped"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
@dtypes
def test_position_rules(rule: Extension, form: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    """Each rule in one call of the kernel: whole, in chunks through a cache, padded, packed."""
    ours, exact, x = layers(dtype, {"extension": rule, **form})
    wanted = exact(x.double())
    agree(ours(x), wanted, dtype)
    cache = KVCache(
        num_layers=1, batch=BATCH, num_key_value_heads=KV_HEADS, head_dim=DIM, dtype=dtype,
        extensions=[rule],
    )  # fmt: skip
    edges = [0, 33, 34, 80, SEQ]
    agree(torch.cat([ours(x[:, a:b], cache=cache) for a, b in pairwise(edges)], 1), wanted, dtype)
    mask = torch.ones(BATCH, SEQ, dtype=torch.long)
    mask[0, :13], mask[1, 60:] = 0, 0
    out = ours(x, attention_mask=mask)
    agree(out[:1, 13:], exact(x[:1, 13:].double()), dtype)
    agree(out[1:, :60], wanted[1:, :60], dtype)
    assert calls == [SEQ, 33, 1, 46, 10, SEQ]
    marks = torch.arange(SEQ).div(35, rounding_mode="floor").expand(BATCH, -1)
    out = ours(x, document_ids=marks)
    agree(out[:, 35:70], exact(x[:, 35:70].double()), dtype)


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


def no_lines(parents: list[int], runs: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    index = torch.arange(len(parents))
    return (Stretch(torch.zeros_like(index), index + 1, torch.zeros_like(index)),)


@pytest.mark.parametrize("fault", [
    no_lines, lambda _, runs: runs[:1], lambda _, runs: [run._replace(depth=run.begin) for run in runs],
    lambda _, runs: [run._replace(end=(run.end - 1).maximum(run.begin)) for run in runs],
], ids=["all before", "the first stretch", "depths by number", "without itself"])  # fmt: skip
def test_faults_in_branches_are_found(fault: Any, calls: list[int]) -> None:
    """Stretches that are wrong on purpose."""
    ours, exact, x = layers(torch.float32, {"extension": RULES[0]})
    truth = lines(exact, x[:1].double(), LINES)
    branches = Branches(LINES)
    branches.runs = tuple(fault(list(LINES), branches.runs))
    found = branched(ours, x[:1], branches)
    with pytest.raises(AssertionError, match="not close"):
        agree(found, truth, torch.float32)
    assert len(calls) == 2


@dtypes
@pytest.mark.parametrize("interleaved", [False, True])
def test_position_rules_of_partial_ropes(dtype: torch.dtype, interleaved: bool, calls: list[int]) -> None:
    """Some features do not turn, and queries and keys carry YaRN's attention factor."""
    yarn = rw.scaling.YaRN(4.0, 64)
    rope = rw.RopeConfig(DIM, interleaved=interleaved, rotary_dim=10, scaling=yarn)
    ours, exact, x = layers(dtype, {"extension": ReRoPE(window=9), "rope": rope})
    agree(ours(x), exact(x.double()), dtype)
    assert calls == [SEQ]


def test_what_does_not_go_through_the_kernel(calls: list[int]) -> None:
    """Weights that are asked for, dropout, biases and float64."""
    ours, exact, x = layers(torch.float32, {})
    exact(x.double())
    ours(x, need_weights=True)
    rw.Attention(HIDDEN, HEADS, encoding="alibi")(x)
    rw.Attention(HIDDEN, HEADS, attention_dropout=0.5).train()(x)
    assert calls == []
