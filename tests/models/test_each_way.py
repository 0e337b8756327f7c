"""Law 9: alone, by the formula = fused = with weights = cached = in chunks = padded = packed, in any form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import ropewalk as rw
from ropewalk.encodings import ENCODINGS
from ropewalk.models.attention import Attention
from ropewalk.rope.extensions import DualChunk, Extension, ReRoPE, SelfExtend
from tests.models.forms import (
    FORMS,
    FORMULAS,
    HALF,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    REPEATS,
    ROPE,
    VOCAB,
    Louder,
    each_once,
    make_decoder,
    make_layer,
    pack,
)
from tests.models.oracle import attention

pytestmark = pytest.mark.usefixtures("small_blocks")
SEQ = 37
TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}


@pytest.mark.parametrize("form", each_once(FORMULAS))
def test_it_is_the_formula(form: str) -> None:
    """Every score as NumPy has it: written out, by the fused passes, with weights, from a cache, and in float32."""
    (changes,) = FORMS[form]
    layer, x = make_layer(**changes), torch.randn(1, SEQ, HIDDEN, dtype=torch.float64)
    wanted, shares = attention(layer, x[0].numpy(), seq_len=SEQ)
    found = [layer(x, seq_len=SEQ).detach()]
    with torch.no_grad():
        weighted, weights = layer(x, seq_len=SEQ, need_weights=True)
        found += [weighted, layer(x, seq_len=SEQ)]
        if layer.causal:
            cache = rw.KVCache(
                num_layers=1, batch=1, num_key_value_heads=layer.num_key_value_heads, head_dim=HEAD_DIM, dtype=x.dtype,
                extensions=[layer.extension], ropes=[layer.rope], seq_len=SEQ,
            )  # fmt: skip
            found.append(torch.cat([layer(part, cache=cache) for part in x.split([9, 1, SEQ - 10], 1)], 1))
        single = layer.float()  # by the compiled kernel, if there is one
        for dtype, each in ((torch.float64, found), (torch.float32, [single(x.float(), seq_len=SEQ)])):
            for out in each:
                np.testing.assert_allclose(out[0], wanted, atol=TOLERANCE[dtype] * (1 + abs(wanted).max()), rtol=0)
    np.testing.assert_allclose(weights[0], shares, atol=1e-11, rtol=0)


@REPEATS
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([ReRoPE, SelfExtend, DualChunk]), st.integers(1, 20), st.integers(1, 12), st.integers(1, 33))
def test_any_sizes(kind: Callable[..., Extension], a: int, b: int, seq: int) -> None:
    """Windows longer than the row, groups longer than the window, chunks of one token."""
    made: dict[object, Extension] = {
        ReRoPE: ReRoPE(window=a, log_n=b + 1),
        SelfExtend: SelfExtend(group=b, window=a),
        DualChunk: DualChunk(chunk=a, trained_length=a + b),
    }
    layer, x = make_layer(made[kind]), torch.randn(1, seq, HIDDEN, dtype=torch.float64)
    with torch.no_grad():
        outs = torch.stack([layer(x), torch.func.vmap(layer)(x[None])[0]])
    np.testing.assert_allclose(outs, np.stack([attention(layer, x[0].numpy())[0][None]] * 2), atol=1e-11, rtol=0)


def test_positions_that_are_given_are_used() -> None:
    """They rotate, per row, also through a cache, and leave the causal rule alone; a shift of all changes nothing."""
    for rope in (ROPE, HALF["partial"]):
        layer, x = make_layer(rope=rope), torch.randn(2, 11, HIDDEN, dtype=torch.float64)
        positions = torch.stack([torch.arange(11) * 3, torch.randperm(11)])
        out = layer(x, position_ids=positions).detach()
        for row in range(2):
            np.testing.assert_allclose(out[row], attention(layer, x[row].numpy(), positions[row])[0], atol=1e-10)
        torch.testing.assert_close(layer(x, position_ids=positions + 10_000), out, atol=1e-8, rtol=0)
        cache = rw.KVCache(num_layers=1, batch=2, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=x.dtype)
        parts = [layer(x[:, a:b], position_ids=positions[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 11))]
        torch.testing.assert_close(torch.cat(parts, 1), out, atol=1e-11, rtol=0)


EVENTS = st.sampled_from(["chunk", "chunk", "token", "cut", "choose"])
MOST = 14  # tokens of a row
COUNTS = st.lists(st.integers(0, MOST), min_size=3, max_size=3)


class Stack:
    """Attention layers of a form, each with a number in a cache that may have more layers, in any order."""

    def __init__(self, form: list[dict[str, Any]], numbers: list[int], size: int, dtype: torch.dtype) -> None:
        torch.manual_seed(1)
        sizes = {"num_key_value_heads": form[0].get("num_key_value_heads", KV_HEADS), "head_dim": HEAD_DIM}
        options = [form[at % len(form)] for at in range(len(numbers))]
        self.layers = [Attention(HIDDEN, HEADS, **{**sizes, **each}).to(dtype).eval() for each in options]
        for layer in self.layers:
            for weight in layer.parameters():
                weight.data.add_(torch.randn_like(weight), alpha=0.2)
        self.numbers, self.dtype, self.causal = numbers, dtype, all(each.get("causal", True) for each in options)
        ropes: list[Any] = [None] * size
        extensions: list[Any] = [None] * size
        for number, layer in zip(numbers, self.layers, strict=True):
            ropes[number], extensions[number] = layer.rope, layer.extension
        self.needs_seq_len = any(rope is not None and rope.needs_seq_len for rope in ropes)
        self.cache = partial(
            rw.KVCache, num_layers=size, **sizes, dtype=dtype, ropes=ropes if self.needs_seq_len else None,
            extensions=extensions,
        )  # fmt: skip

    def __call__(self, x: Tensor, cache: rw.KVCache | None = None, **given: Any) -> Tensor:
        for number, layer in zip(self.numbers, self.layers, strict=True):
            out = layer(x, cache=cache, layer=number, **given)
            x = x + (out[0] if isinstance(out, tuple) else out)
        return x

    def check(self, found: Tensor, row: Tensor, seq_len: int | None, first: int = 0) -> None:
        """`found` is the result of the row's tokens from `first` on."""
        wanted = self(row[None], seq_len=seq_len)[0, first:]
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE[self.dtype] * (1 + float(wanted.norm())))


def places(data: st.DataObject, counts: list[int]) -> Tensor:
    """Bool `[rows, seq]` with this number of real tokens in each row, and padding anywhere."""
    seq = max(counts) + data.draw(st.integers(0, 2))
    drawn = [data.draw(st.permutations([True] * count + [False] * (seq - count))) for count in counts]
    return torch.tensor(drawn, dtype=torch.bool).view(len(counts), seq)


def batch_of(rows: list[Tensor], real: Tensor) -> Tensor:
    """Rows of hidden states at the real places, and ones elsewhere."""
    x = torch.ones(*real.shape, HIDDEN, dtype=rows[0].dtype)
    for at, row in enumerate(rows):
        x[at, real[at]] = row
    return x


@torch.no_grad()
@pytest.mark.parametrize("form", each_once(list(FORMS)))
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_cached_padded_and_packed(form: str, data: st.DataObject) -> None:
    """Any layers in any order, chunks of any sizes, rows that are cut, chosen and repeated."""
    size = data.draw(st.integers(len(FORMS[form]), 4))
    numbers = data.draw(st.permutations(range(size)))[: data.draw(st.integers(len(FORMS[form]), size))]
    stack = Stack(FORMS[form], numbers, size, data.draw(st.sampled_from(list(TOLERANCE))))
    seq_len = 40 if stack.needs_seq_len else None
    cache = stack.cache(batch=3, seq_len=seq_len) if stack.causal else None
    rows = [torch.zeros(0, HIDDEN, dtype=stack.dtype)] * 3
    if cache is None:
        rows = [torch.randn(count, HIDDEN, dtype=stack.dtype) for count in data.draw(COUNTS)]
    else:
        cache.step = 7
        empty = torch.zeros(3, 2, dtype=torch.bool)
        assert stack(batch_of(rows, empty), cache, attention_mask=empty).isfinite().all()
    for event in data.draw(st.lists(EVENTS, max_size=6 if stack.causal else 0)):
        assert cache is not None
        if event == "cut":
            lengths = [data.draw(st.integers(0, len(row))) for row in rows]
            cache.truncate(lengths)
            rows = [row[:length] for row, length in zip(rows, lengths, strict=True)]
        elif event == "choose":
            chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=3))
            cache.select(chosen)
            rows = [rows[at] for at in chosen]
        else:
            room = [MOST - len(row) for row in rows]
            counts = [min(1, most) if event == "token" else data.draw(st.integers(0, most)) for most in room]
            new = [torch.randn(count, HIDDEN, dtype=stack.dtype) for count in counts]
            rows = [torch.cat(pair) for pair in zip(rows, new, strict=True)]
            real = places(data, counts)
            found = stack(batch_of(new, real), cache, attention_mask=real, need_weights=data.draw(st.booleans()))
            assert found.isfinite().all()
            for at, (row, count) in enumerate(zip(rows, counts, strict=True)):
                stack.check(found[at, real[at]], row, seq_len, len(row) - count)
        assert cache.lengths.tolist() == [len(row) for row in rows]
    real = places(data, [len(row) for row in rows])
    given = {"attention_mask": real, "seq_len": seq_len, "need_weights": data.draw(st.booleans())}
    padded = stack(batch_of(rows, real), **given)
    assert padded.isfinite().all()
    packed = torch.cat(rows).expand(len(rows), -1, -1)
    marks = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(row) for row in rows]))
    whole = stack(packed, document_ids=marks.expand(len(rows), -1), seq_len=seq_len)
    for at, row in enumerate(rows):
        stack.check(padded[at, real[at]], row, seq_len)
        stack.check(whole[at, marks == at], row, seq_len)


# --- decoders

KINDS: dict[str, dict[str, Any]] = {
    "rope": {"rope": ROPE},
    "windows": {"rope": ROPE, "sliding_window": (None, 3, 1)},
    "several ropes": {"rope": (ROPE, None, HALF["yarn"])},
    "nope": {},
    "rerope": {"rope": ROPE, "extension": ReRoPE(window=4, log_n=5)},
    "dual chunk": {"rope": ROPE, "extension": DualChunk(chunk=4, trained_length=6)},
    "louder": {"rope": ROPE, "extension": Louder()},
    "alibi window": {"encoding": "alibi", "sliding_window": (3, None, None)},
    **{name: {"encoding": name} for name in ENCODINGS},
}


def gradients(model: rw.Decoder) -> dict[str, Tensor]:
    """Of every parameter: none is left out."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert found.keys() == dict(model.named_parameters()).keys()
    model.zero_grad()
    return found


@pytest.mark.parametrize("padded", [pytest.param(False, marks=REPEATS), True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder(kind: str, padded: bool) -> None:
    """Logits and every gradient of packed documents, padded or not, are those of each alone; so are cached logits."""
    model, rows = make_decoder(**KINDS[kind]), [[5, 1, 9, 6], [11, 6, 3, 1]]
    ids, marks = torch.randint(0, VOCAB, (2, 21)), pack(rows)
    mask = torch.ones(2, 21, dtype=torch.long)
    if padded:
        mask[0, :2] = mask[0, 8] = mask[0, 11:13] = mask[1, 17:] = 0
    packed = model(ids, document_ids=marks, attention_mask=mask if padded else None)
    weights = torch.randn(2, 21, VOCAB, dtype=torch.float64)
    (packed * weights)[mask.bool()].sum().backward()
    together = gradients(model)
    for row, lengths in enumerate(rows):
        for begin, end in pairwise(accumulate(lengths, initial=0)):
            real = mask[row, begin:end].bool()
            if real.any():
                alone = model(ids[None, row, begin:end][:, real])[0]
                torch.testing.assert_close(packed[row, begin:end][real], alone, atol=1e-10, rtol=0)
                (alone * weights[row, begin:end][real]).sum().backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(together[name], gradient, atol=1e-9, rtol=1e-9, msg=name)
    with torch.no_grad():
        again = model(ids, document_ids=marks, attention_mask=mask)
        torch.testing.assert_close(again, packed.detach(), atol=1e-10, rtol=0)
        cache = model.new_cache(2)
        chunks = [(0, 9), (9, 9), (9, 10), (10, 21)]
        parts = [model(ids[:, a:b], cache=cache, attention_mask=mask[:, a:b]) for a, b in chunks]
        for row, real in enumerate(mask.bool()):
            alone = model(ids[None, row, real])[0]
            torch.testing.assert_close(torch.cat(parts, 1)[row, real], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["rope", "relative"])
def test_positions_of_packed_documents(kind: str) -> None:
    """Those that are given turn queries and keys, and choose the biases. A row of padding has finite gradients."""
    model, ids, marks = make_decoder(**KINDS[kind]), torch.randint(0, VOCAB, (2, 12)), pack([[5, 7], [3, 9]])
    positions = torch.stack([torch.randperm(12), torch.arange(12) * 3])
    for each in (positions, positions[1], positions[1:]):
        packed = model(ids, document_ids=marks, position_ids=each)
        alone = model(ids[1:, 3:], position_ids=positions[1:, 3:])
        torch.testing.assert_close(packed[1:, 3:], alone, atol=1e-11, rtol=0)
    out = model(ids, document_ids=marks, attention_mask=torch.zeros(2, 12, dtype=torch.long))
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, *(p.grad for p in model.parameters())))
