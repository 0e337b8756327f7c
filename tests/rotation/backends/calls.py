"""Any call of `rotate` or `rotate_qk`, on tensors that lie anyhow, with everything around them guarded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import ropewalk as rw
from tests.rotation.backends import truth
from tests.rotation.backends.places import Arena, Place

FORMS = ("fresh", "given", "in place", "backward")
PAIRS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 40, 48, 64, 96)  # whole vectors of every width, and rests
ORDERS = {3: tuple(permutations(range(2))), 4: tuple(permutations(range(3)))}


@dataclass(frozen=True)
class Lie:
    """How a tensor lies in memory; see `Arena`. `order` counts through the orders of its dimensions."""

    order: int = 0
    gaps: tuple[int, int, int] = (0, 0, 0)
    step: int = 1
    offset: int = 1
    expanded: int | None = None

    def arena(self, shape: Sequence[int], dtype: torch.dtype, device: str) -> Arena:
        orders = ORDERS[len(shape)] if len(shape) > 2 else ((0,),)
        return Arena(shape, dtype, device, order=orders[self.order % len(orders)], gaps=self.gaps, step=self.step,
                     offset=self.offset, expanded=() if self.expanded is None else (self.expanded,))  # fmt: skip


@dataclass(frozen=True)
class Call:
    """The numbers of a call. `kv_heads` is 0 for `rotate`; `per_head` and `per_row` say where the tables differ.

    `first` is the first feature that turns, at most `passing`.
    """

    dtype: torch.dtype
    interleaved: bool
    form: str
    layout: str = "bshd"
    batch: int = 2
    seq: int = 5
    heads: int = 3
    kv_heads: int = 0
    pairs: int = 4
    passing: int = 0
    scale: float = 1.0
    inverse: bool = False
    first: int = 0
    per_row: bool = False
    per_head: bool = False
    four: bool = False
    double_tables: bool = False
    x: Lie = field(default_factory=Lie)
    y: Lie = field(default_factory=Lie)
    table: Lie = field(default_factory=Lie)
    seed: int = 0

    def shape(self, heads: int) -> tuple[int, ...]:
        dim = 2 * self.pairs + self.passing
        return {"bshd": (self.batch, self.seq, heads, dim), "bhsd": (self.batch, heads, self.seq, dim),
                "thd": (self.batch * self.seq, heads, dim)}[self.layout]  # fmt: skip

    def around(self) -> list[int]:
        """The features that do not turn."""
        return [*range(self.first), *range(self.first + 2 * self.pairs, 2 * self.pairs + self.passing)]

    def turned(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, back: bool) -> tuple[np.ndarray, np.ndarray]:
        """The truth; `back` turns the other way."""
        return truth.turn(x, cos, sin, interleaved=self.interleaved, inverse=self.inverse != back, scale=self.scale,
                          first=self.first)  # fmt: skip

    def table_shape(self) -> tuple[int, ...]:
        heads = (self.heads if self.per_head else 1,) if self.per_head or self.four else ()
        if self.layout == "thd":
            return (self.batch * self.seq, *heads, self.pairs)
        rows = (self.batch if self.per_row else 1,) if self.per_row or heads else ()
        return (*rows, self.seq, *heads, self.pairs)

    def against(self, table: np.ndarray) -> np.ndarray:
        """The table's numbers, to broadcast against `x[..., :pairs]`: as `rotate` documents the shapes."""
        if self.layout == "thd":
            return table[:, None] if table.ndim == 2 else table
        full = table[None] if table.ndim == 2 else table
        full = full[:, :, None] if full.ndim == 3 else full
        return full if self.layout == "bshd" else full.swapaxes(1, 2)


def check_call(call: Call, place: Place) -> None:
    """The result is within its bounds, and no byte but its own has changed."""
    source = torch.Generator().manual_seed(call.seed)
    angle = torch.rand(call.table_shape(), generator=source, dtype=torch.float64) * 100 - 50
    table_dtype = torch.float64 if call.double_tables else torch.float32
    tables = [call.table.arena(angle.shape, table_dtype, place.device).holding(t) for t in (angle.cos(), angle.sin())]
    heads = [call.heads] + [call.kv_heads] * (call.kv_heads > 0)
    values = [torch.randn(call.shape(n), generator=source) for n in heads]
    given = [call.x.arena(v.shape, call.dtype, place.device).holding(v) for v in values]
    other = [call.y.arena(v.shape, call.dtype, place.device) for v in values]
    options = {"interleaved": call.interleaved, "rotary_dim": 2 * call.pairs, "scale": call.scale,
               "inverse": call.inverse, "layout": call.layout, "backend": place.backend,
               "rotary_offset": call.first}  # fmt: skip
    cos_sin = [table.x for table in tables]
    cos, sin = (call.against(truth.wide(table.x)) for table in tables)
    sources = [truth.wide(g.x) for g in given]
    if call.form == "backward":
        leaves = [torch.zeros_like(g.x).requires_grad_() for g in given]
        results = torch.autograd.grad(_rotate(leaves, cos_sin, options), leaves, [g.x for g in given])
    elif call.form == "given":
        results = [rw.rotate(g.x, *cos_sin, out=o.x, **options) for g, o in zip(given, other, strict=True)]
    else:
        results = _rotate([g.x for g in given], cos_sin, {**options, "inplace": call.form == "in place"})
    for arena, out, x, y in zip(given, other, sources, results, strict=True):
        expected, lengths = call.turned(x, cos, sin, back=call.form == "backward")
        truth.Allowed(expected, truth.slack(lengths, call.dtype), call.dtype).check(y, str(call))
        assert np.array_equal(truth.wide(y)[..., call.around()], x[..., call.around()]), f"{call}: features"
        assert arena.around_is_untouched(), f"{call}: bytes around the input"
        assert out.around_is_untouched(), f"{call}: bytes around the result"
        if call.form == "in place":
            assert y is arena.x
        else:
            assert arena.is_untouched(), f"{call}: the input"
    assert all(table.is_untouched() for table in tables), f"{call}: the tables"


def _rotate(xs: Sequence[Tensor], tables: Sequence[Tensor], options: dict) -> Sequence[Tensor]:
    return rw.rotate_qk(*xs, *tables, **options) if len(xs) == 2 else [rw.rotate(xs[0], *tables, **options)]


_gaps = st.tuples(*[st.sampled_from([0, 0, 1, 3, 8])] * 3)


def lies(*, steps: tuple[int, ...] = (1, 1, 1, 2, 3), expanded: bool = False) -> st.SearchStrategy[Lie]:
    """Every order of the dimensions, gaps, a feature stride, any alignment."""
    where = st.sampled_from([None, None, 0, 1]) if expanded else st.none()
    return st.builds(Lie, st.integers(0, 5), _gaps, st.sampled_from(steps), st.integers(0, 33), where)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Whatever `rotate` and `rotate_qk` accept."""
    form = draw(st.sampled_from(FORMS))
    per_head, interleaved = draw(st.booleans()), draw(st.booleans())
    pairs, passing = draw(st.sampled_from(PAIRS)), draw(st.sampled_from([0, 0, 1, 2, 7, 16]))
    return Call(
        dtype=draw(st.sampled_from(list(truth.FORMATS))), interleaved=interleaved, form=form,
        layout=draw(st.sampled_from(["bshd", "bhsd", "thd"])), batch=draw(st.integers(1, 3)),
        seq=draw(st.sampled_from([1, 2, 5, 16, 17, 33])), heads=draw(st.sampled_from([1, 2, 3, 5, 17])),
        kv_heads=0 if per_head else draw(st.integers(0, 3)), pairs=pairs,
        passing=passing, first=draw(st.sampled_from([0, 0, passing, passing // 2])),
        scale=draw(st.sampled_from([1.0, 0.75, -1.3, 2.0])),
        inverse=draw(st.booleans()), per_row=draw(st.booleans()), per_head=per_head, four=draw(st.booleans()),
        double_tables=draw(st.booleans()), x=draw(lies(expanded=form != "in place")), y=draw(lies()),
        table=draw(lies(expanded=True)), seed=draw(st.integers(0, 99)),
    )  # fmt: skip
