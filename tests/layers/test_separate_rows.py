"""Law 9: a token's result is that of its row in one separate call, in a cache, in a padded batch, and packed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import ropewalk as rw
from ropewalk.encodings import ENCODINGS
from ropewalk.layers.attention import Attention
from ropewalk.rope.extensions import DualChunk, ReRoPE
from ropewalk.rope.scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, YaRN
from tests.layers.extension_material import EXTENSIONS, HEAD_DIM, HEADS, KV_HEADS, REMAPPING, REPEATS

pytestmark = pytest.mark.usefixtures("small_blocks")
HIDDEN, TRAINED = 24, 16
ROPE = rw.RopeConfig(HEAD_DIM, interleaved=False, max_position_embeddings=TRAINED, theta=1000.0)
FACTORS = (1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 3.0, 4.0), TRAINED
SCALINGS = {
    "linear": Linear(4.0), "ntk": NTK(4.0), "dynamic": DynamicNTK(2.0), "dynamic paper": DynamicNTK(variant="paper"),
    "yarn": YaRN(4.0, TRAINED), "longrope": LongRoPE(*FACTORS, factor=4.0),
    "two factors": LongRoPE(*FACTORS, short_mscale=1.1, long_mscale=1.3), "llama3": Llama3(8.0, 1.0, 4.0, TRAINED),
    "proportional": Proportional(0.5),
}  # fmt: skip
ROPES: dict[str, rw.RopeConfig] = {
    "default": ROPE,
    "interleaved": replace(ROPE, interleaved=True),
    "partial": replace(ROPE, rotary_dim=4),
    **{name: replace(ROPE, scaling=scaling) for name, scaling in SCALINGS.items()},
}
BY_LENGTH = [rope for rope in ROPES.values() if rope.needs_seq_len]
LOGITS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 0.5}, "sinks": {"sinks": True}, "both": {"softcap": 2.0, "sinks": True},
}  # fmt: skip
BOTH_WAYS: dict[str, dict[str, Any]] = {
    "default": {"rope": ROPE}, "window": {"rope": ROPE, "sliding_window": 3},
    **{name: {"encoding": name} for name in ENCODINGS if name != "xpos"},
}  # fmt: skip
FORMS: dict[str, list[dict[str, Any]]] = {
    "nope": [{}],
    **{name: [{"rope": rope}] for name, rope in ROPES.items()},
    **{f"{name} in a window": [{"rope": ROPES[name], "sliding_window": 3}] for name in ("default", "dynamic")},
    **{f"default, {name}": [{"rope": ROPE, **changes}] for name, changes in LOGITS.items()},
    "qk norm": [{"rope": ROPE, "qk_norm": True}, {"rope": ROPES["partial"], "qk_norm": True, "sliding_window": 1}],
    "windows": [{"rope": ROPE}, {"rope": ROPE, "sliding_window": 4}, {"sliding_window": 1, "softcap": 0.5}],
    "mixed": [{"rope": ROPES["longrope"]}, {"rope": ROPES["linear"]}, {"rope": ROPES["dynamic"]}],
    **{f"encoding {name}": [{"encoding": name}] for name in ENCODINGS},
    **{f"{name} both ways": [{**form, "causal": False}] for name, form in BOTH_WAYS.items()},
    **{f"{name}, capped": [{"encoding": name, "softcap": 2.0, "sliding_window": 5}] for name in ("alibi", "fire")},
    **{repr(each): [{"rope": ROPE, "extension": each}] for each in EXTENSIONS},
    **{f"{each!r}, both": [{"rope": ROPE, "extension": each, **LOGITS["both"]}] for each in EXTENSIONS[::4]},
    **{
        f"{each!r}, {at}": [{"rope": BY_LENGTH[at % len(BY_LENGTH)], "extension": each}]
        for at, each in enumerate([*REMAPPING, *EXTENSIONS[-2:]])
    },
    "mixed extensions": [
        {"rope": BY_LENGTH[0]},
        {"rope": BY_LENGTH[0], "extension": DualChunk(chunk=6, trained_length=8)},
        {"rope": BY_LENGTH[0], "extension": ReRoPE(window=5)},
    ],
}
EVENTS = st.sampled_from(["chunk", "chunk", "token", "cut", "choose"])
MOST = 14  # tokens of a row
COUNTS = st.lists(st.integers(0, MOST), min_size=3, max_size=3)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 3e-5}


class Stack:
    """Attention layers of a form, each with a number in a cache that may have more layers, in any order."""

    def __init__(self, form: list[dict[str, Any]], numbers: list[int], size: int, dtype: torch.dtype) -> None:
        torch.manual_seed(1)
        sizes = {"num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
        options = [form[at % len(form)] for at in range(len(numbers))]
        self.layers = [Attention(HIDDEN, HEADS, **sizes, **each).to(dtype).eval() for each in options]
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
            rw.KVCache, num_layers=size, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=dtype,
            ropes=ropes if self.needs_seq_len else None, extensions=extensions,
        )  # fmt: skip

    def __call__(self, x: Tensor, cache: rw.KVCache | None = None, **given: Any) -> Tensor:
        for number, layer in zip(self.numbers, self.layers, strict=True):
            out = layer(x, cache=cache, layer=number, **given)
            x = x + (out[0] if isinstance(out, tuple) else out)
        return x

    def check(self, found: Tensor, row: Tensor, seq_len: Tensor | None, first: int = 0) -> None:
        """`found` is the result of the row's tokens from `first` on."""
        wanted = self(row[None], seq_len=None if seq_len is None else int(seq_len))[0, first:]
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
@pytest.mark.parametrize("form", [pytest.param(form, marks=[REPEATS] * bool(at % 5)) for at, form in enumerate(FORMS)])
@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_cached_padded_and_packed(form: str, data: st.DataObject) -> None:
    """Any layers in any order, chunks of any sizes, rows that are cut, chosen and repeated."""
    size = data.draw(st.integers(len(FORMS[form]), 4))
    numbers = data.draw(st.permutations(range(size)))[: data.draw(st.integers(len(FORMS[form]), size))]
    stack = Stack(FORMS[form], numbers, size, data.draw(st.sampled_from(list(TOLERANCE))))
    seq_len = torch.tensor([40, 15, 23]) if stack.needs_seq_len else None
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
            seq_len = None if seq_len is None else seq_len[chosen]
        else:
            room = [MOST - len(row) for row in rows]
            counts = [min(1, most) if event == "token" else data.draw(st.integers(0, most)) for most in room]
            new = [torch.randn(count, HIDDEN, dtype=stack.dtype) for count in counts]
            rows = [torch.cat(pair) for pair in zip(rows, new, strict=True)]
            real = places(data, counts)
            found = stack(batch_of(new, real), cache, attention_mask=real, need_weights=data.draw(st.booleans()))
            assert found.isfinite().all()
            for at, (row, count) in enumerate(zip(rows, counts, strict=True)):
                stack.check(found[at, real[at]], row, None if seq_len is None else seq_len[at], len(row) - count)
        assert cache.lengths.tolist() == [len(row) for row in rows]
    real = places(data, [len(row) for row in rows])
    given = {"attention_mask": real, "seq_len": seq_len, "need_weights": data.draw(st.booleans())}
    padded = stack(batch_of(rows, real), **given)
    assert padded.isfinite().all()
    packed = torch.cat(rows).expand(len(rows), -1, -1)  # once for each row's own length
    marks = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(row) for row in rows]))
    whole = stack(packed, document_ids=marks.expand(len(rows), -1), seq_len=seq_len)
    for at, row in enumerate(rows):
        length = None if seq_len is None else seq_len[at]
        stack.check(padded[at, real[at]], row, length)
        stack.check(whole[at, marks == at], row, length)
