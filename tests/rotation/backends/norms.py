"""Any call of `qk_norm_rotate`: results and a cache's new rows, with everything around them guarded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import ropewalk as rw
from tests.rotation.backends import truth
from tests.rotation.backends.calls import PAIRS, Call, Lie, lies
from tests.rotation.backends.places import Arena, Place

ROOM = 7  # rows of a cache beyond those that are written


@dataclass(frozen=True)
class NormCall:
    """The numbers of a call: `call` says shapes, dtype and tables, and how queries, keys and results lie.

    - `size`: of the features; `weights`: the dtype of the weights, None for no norm.
    - `skipped`: every so many tokens have no slot; `own_slots`: each sequence has its own.
    """

    call: Call
    eps: float = 1e-6
    size: float = 1.0
    weights: torch.dtype | None = torch.float32
    skipped: int = 3
    own_slots: bool = False
    cache: Lie = field(default_factory=Lie)

    def inputs(self, place: Place) -> tuple[list[Arena], list[Tensor], list[Arena]]:
        """Queries, keys and new values; both weights; cos and sin."""
        call, source = self.call, torch.Generator().manual_seed(self.call.seed)
        angle = torch.rand(call.table_shape(), generator=source, dtype=torch.float64) * 100 - 50
        tables = [call.table.arena(angle.shape, torch.float32, place.device).holding(t)
                  for t in (angle.cos(), angle.sin())]  # fmt: skip
        values = [torch.randn(call.shape(n), generator=source) * self.size
                  for n in (call.heads, call.kv_heads, call.kv_heads)]  # fmt: skip
        given = [call.x.arena(v.shape, call.dtype, place.device).holding(v) for v in values]
        dim = values[0].shape[-1]
        weights = [(torch.rand(dim, generator=source) + 0.5).to(place.device, self.weights or torch.float32)
                   for _ in range(2)]  # fmt: skip
        return given, weights, tables

    def slots(self, device: str) -> Tensor:
        """Where each token goes: backwards from the end of the cache, some nowhere."""
        call = self.call
        batch, tokens = (1, call.batch * call.seq) if call.layout == "thd" else (call.batch, call.seq)
        slots = (tokens + ROOM - 1 - torch.arange(tokens)).repeat(batch if self.own_slots else 1, 1)
        slots -= torch.arange(len(slots))[:, None]
        slots[:, :: self.skipped] = -1
        return slots.to(device)


def _options(norm: NormCall, place: Place) -> dict:
    call = norm.call
    return {"eps": norm.eps, "interleaved": call.interleaved, "rotary_dim": 2 * call.pairs,
            "scale": call.scale, "layout": call.layout, "backend": place.backend}  # fmt: skip


def _expected(norm: NormCall, x: Tensor, weight: Tensor, tables: list[Arena]) -> tuple[np.ndarray, np.ndarray]:
    """Each feature normed and turned, and by how much it may be off: by more, the more squares the norm adds up."""
    call, values = norm.call, truth.wide(x)
    roundings = 1.0
    if norm.weights is not None:
        values, _ = truth.rms_norm(values, truth.wide(weight), norm.eps)
        roundings = 2.0 + x.shape[-1] / 128
    cos, sin = (call.against(truth.wide(table.x)) for table in tables)
    right, lengths = call.turned(values, cos, sin, back=False)
    if norm.weights is not None:
        lengths[..., 2 * call.pairs :] = np.abs(values[..., 2 * call.pairs :])
    return right, truth.slack(lengths, call.dtype, roundings)


def _by_tokens(x, layout: str):
    """`[batch, tokens, heads, dim]`, an array or a tensor."""
    return x[None] if layout == "thd" else x.swapaxes(1, 2) if layout == "bhsd" else x


def check_norm(norm: NormCall, place: Place) -> None:
    """New tensors: every number within its bound, nothing else touched."""
    given, weights, tables = norm.inputs(place)
    q, k, _ = (arena.x for arena in given)
    turned = rw.fused.qk_norm_rotate(q, k, *weights, *(t.x for t in tables), **_options(norm, place))
    for x, weight, y in zip((q, k), weights, turned, strict=True):
        truth.Allowed(*_expected(norm, x, weight, tables), x.dtype).check(y, str(norm))
    assert all(arena.is_untouched() for arena in (*given, *tables)), f"{norm}: an input"


def check_store(norm: NormCall, place: Place) -> None:
    """Into a cache, with or without a norm: the rows of its slots, and no other byte."""
    call = norm.call
    given, weights, tables = norm.inputs(place)
    q, k, fresh = (arena.x for arena in given)
    slots = norm.slots(place.device)
    batch = 1 if call.layout == "thd" else call.batch
    shape = (batch, call.kv_heads, slots.shape[1] + ROOM, k.shape[-1])
    keys, values = (norm.cache.arena(shape, call.dtype, place.device) for _ in range(2))
    store, cos_sin = rw.fused.Store(keys.x, values.x, fresh, slots), [t.x for t in tables]
    if norm.weights is not None:
        turned, buffer = rw.fused.qk_norm_rotate(q, k, *weights, *cos_sin, **_options(norm, place), store=store)
    else:
        options = {"interleaved": call.interleaved, "rotary_offset": call.first,
                   "rotary_dim": 2 * call.pairs, "scale": call.scale, "layout": call.layout}  # fmt: skip
        turned, buffer = rw.fused.rotate_store(q, k, *cos_sin, store, **options, backend=place.backend)
    assert buffer is keys.x
    truth.Allowed(*_expected(norm, q, weights[0], tables), q.dtype).check(turned, str(norm))
    columns, rows = slots.expand(batch, -1), torch.arange(batch, device=slots.device)[:, None]
    kept = columns >= 0
    right, off = (_by_tokens(x, call.layout)[kept.cpu().numpy()] for x in _expected(norm, k, weights[1], tables))
    truth.Allowed(right, off, k.dtype).check(keys.x[rows, :, columns][kept], f"{norm}: keys")
    new = _by_tokens(fresh, call.layout)[kept]
    assert truth.same_bits(values.x[rows, :, columns][kept], new), f"{norm}: values"
    for arena in (keys, values):
        arena.x[rows.expand_as(columns)[kept], :, columns[kept]] = float("nan")
        assert arena.x.isnan().all(), f"{norm}: rows of the cache that have no token"
        assert arena.around_is_untouched(), f"{norm}: bytes around the cache"
    assert all(arena.is_untouched() for arena in (*given, *tables)), f"{norm}: an input"


CHECKS = {"fresh": check_norm, "store": check_store}


@st.composite
def norm_calls(draw: st.DrawFn) -> NormCall:
    """Whatever `qk_norm_rotate` accepts."""
    heads = draw(st.sampled_from([1, 2, 3, 8]))
    per_head = draw(st.booleans())
    call = Call(
        dtype=draw(st.sampled_from(list(truth.FORMATS))), interleaved=draw(st.booleans()), form="fresh",
        layout=draw(st.sampled_from(["bshd", "bhsd", "thd"])), batch=draw(st.integers(1, 3)),
        seq=draw(st.sampled_from([1, 2, 17, 33])), heads=heads,
        kv_heads=heads if per_head else draw(st.sampled_from([1, 2])), pairs=draw(st.sampled_from(PAIRS)),
        passing=draw(st.sampled_from([0, 0, 1, 2, 16])), scale=draw(st.sampled_from([1.0, -1.3])),
        per_row=draw(st.booleans()), per_head=per_head, four=draw(st.booleans()), x=draw(lies(expanded=True)),
        table=draw(lies(expanded=True)), seed=draw(st.integers(0, 99)),
    )  # fmt: skip
    return NormCall(
        call, eps=draw(st.sampled_from([1e-6, 1e-2])), size=draw(st.sampled_from([1.0, 1e3, 1e-4])),
        weights=draw(st.sampled_from([None, torch.float32, call.dtype, torch.bfloat16])),
        skipped=draw(st.integers(2, 5)), own_slots=draw(st.booleans()), cache=draw(lies(steps=(1,))),
    )  # fmt: skip
