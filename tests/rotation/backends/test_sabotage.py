"""Backends that are wrong on purpose: each fault is found by every check, in every form, that could meet it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ropewalk.rotation import backends
from ropewalk.rotation.backends import cpu
from ropewalk.rotation.backends.request import Norm, Store, Turn
from tests.rotation.backends import calls, norms
from tests.rotation.backends.calls import Call, Lie
from tests.rotation.backends.norms import NormCall
from tests.rotation.backends.places import PLACES, Place

pytestmark = pytest.mark.skipif(not any(p.backend == "cpu" for p in PLACES), reason="needs the compiled extension")

PLACE = Place("sabotaged")
Rotate = Callable[[Sequence[Tensor], Tensor, Tensor, Turn, Sequence[Tensor] | None], list[Tensor]]


class Sabotaged:
    """The compiled kernels, but for what a fault replaces."""

    name, kernels = "sabotaged", True

    def __init__(self, **faults: Callable) -> None:
        for part in ("reasons_not_to", "rotate", "norm_rotate"):
            setattr(self, part, faults.get(part, getattr(cpu, part)))


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a backend with these faults into the list."""
    return lambda **faults: monkeypatch.setattr(backends, "BACKENDS", (Sabotaged(**faults), *backends.BACKENDS))


def check(form: str) -> None:
    """Each layout, partial, with tables of their own, beside keys, in memory with gaps."""
    for dtype in (torch.float32, torch.bfloat16):
        lie = Lie(gaps=(3, 3, 3))
        whole = Call(dtype, True, form, scale=1.25, passing=3, x=lie, y=lie)
        for layout in ("bshd", "bhsd", "thd"):
            some = replace(whole, layout=layout, interleaved=layout == "bshd")
            for call in (some, replace(some, kv_heads=2, inverse=True), replace(some, per_row=True, per_head=True)):
                calls.check_call(call, PLACE)
        beside_keys = replace(whole, kv_heads=2, x=Lie(), y=Lie())
        for call in (replace(beside_keys, first=2), replace(beside_keys, interleaved=False, first=1)):
            calls.check_call(call, PLACE)


def of_turn(change: Callable[[Turn], Turn]) -> Rotate:
    """Another turn than the one asked for."""
    return lambda xs, cos, sin, turn, outs=None: cpu.rotate(xs, cos, sin, change(turn), outs)


def of_tables(change: Callable[[Tensor, int], Tensor]) -> Rotate:
    """Other tables; `change` is given a table and the dimension of its tokens."""

    def rotate(xs, cos, sin, turn, outs=None):
        tokens = 0 if cos.ndim == 2 or turn.layout == "thd" else 1
        return cpu.rotate(xs, change(cos, tokens), change(sin, tokens), turn, outs)

    return rotate


def of_results(change: Callable[[Tensor, int], object], *, given: bool = False) -> Rotate:
    """Results that are changed afterwards; `change` is given one and its features that turn."""

    def rotate(xs, cos, sin, turn, outs=None):
        results = cpu.rotate(xs, cos, sin, turn, outs)
        for y in results if outs is not None or not given else ():
            change(y, 2 * cos.shape[-1])
        return results

    return rotate


def last_row(table, tokens):
    """The last token by the row before its own."""
    rows = torch.arange(table.shape[tokens])
    return table.index_select(tokens, rows.clamp(max=max(0, len(rows) - 2)))


def neighbour(y, turned):
    """The first feature that does not turn, changed in its last bit."""
    beyond = y[..., turned:][..., :1]
    beyond.copy_(torch.nextafter(beyond, torch.full_like(beyond, 9.0)))


def after_the_end(y, turned):
    """One element after the end of a result that was given."""
    end = y.storage_offset() + sum(stride * (size - 1) for stride, size in zip(y.stride(), y.shape, strict=True))
    y.as_strided((1,), (1,), end + 1).fill_(0.0)


def truncated(xs, cos, sin, turn, outs=None):
    """In bfloat16: towards zero instead of to the nearest."""
    if xs[0].dtype != torch.bfloat16:
        return cpu.rotate(xs, cos, sin, turn, outs)
    news = [y.view(torch.int32) >> 16 << 16 for y in cpu.rotate([x.float() for x in xs], cos, sin, turn)]
    news = [y.view(torch.float32).bfloat16() for y in news]
    return news if outs is None else [out.copy_(new) for out, new in zip(outs, news, strict=True)]


def spoiled_input(xs, cos, sin, turn, outs=None):
    """One number of the input changes."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    for x, y in zip(xs, results, strict=True):
        if x is not y:
            x[(0,) * x.ndim] = 1.0
    return results


def spoiled_table(xs, cos, sin, turn, outs=None):
    """One number of a table changes."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    cos[(0,) * cos.ndim] = 3.0
    return results


WRONG = "wrong; at"
FAULTS: dict[str, tuple[Rotate, str] | tuple[Rotate, str, tuple[str, ...]]] = {
    "sign": (of_turn(Turn.transposed), WRONG),
    "pairing": (of_turn(lambda turn: turn._replace(interleaved=not turn.interleaved)), WRONG),
    "no scale": (of_turn(lambda turn: turn._replace(scale=1.0)), WRONG),
    "the first features": (of_turn(lambda turn: turn._replace(rotary_offset=0)), WRONG),
    "the row before": (of_tables(lambda table, tokens: table.roll(1, tokens)), WRONG),
    "last row": (of_tables(last_row), WRONG),
    "tables in 16 bits": (of_tables(lambda table, tokens: table.bfloat16().to(table.dtype)), WRONG),
    "tables of one head": (of_tables(lambda table, tokens: table[..., :1, :] if table.ndim > 2 + tokens else table),
                           WRONG),
    "tables of one sequence": (of_tables(lambda table, tokens: table[:1] if tokens else table), WRONG),
    "unwritten": (of_results(lambda y, turned: y[(-1,) * (y.ndim - 1)][turned - 1].fill_(float("nan"))), WRONG),
    "a neighbour": (of_results(neighbour), WRONG),
    "truncated": (truncated, WRONG),
    "a spoiled table": (spoiled_table, f"the tables|backward.*{WRONG}"),
    # only in some forms
    "a spoiled input": (spoiled_input, "input", ("fresh", "given", "backward")),
    "after the end": (of_results(after_the_end, given=True), "bytes around", ("given", "in place")),
    "between heads": (
        of_results(lambda y, turned: y.as_strided((1,), (1,), y.storage_offset() + y.shape[-1]).fill_(0.0), given=True),
        "bytes around", ("given", "in place"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", calls.FORMS)
def test_honest(form, sabotage):
    """Without a fault nothing is found."""
    sabotage()
    check(form)


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, (_, _, *forms) in FAULTS.items() for form in (*forms, calls.FORMS)[0]]
)
def test_found_in_every_form(name, form, sabotage):
    """By any call, in every form that could meet the fault."""
    fault, message, *_ = FAULTS[name]
    sabotage(rotate=fault)
    with pytest.raises(AssertionError, match=message):
        check(form)


def _norm(what: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for layout in ("bshd", "bhsd", "thd"):
            call = Call(dtype, layout == "thd", "fresh", layout=layout, heads=3, kv_heads=2, pairs=4, passing=2)
            norm = NormCall(call, eps=1e-2, own_slots=True, cache=Lie(gaps=(2, 2, 2)))
            for each in (norm, replace(norm, weights=None)) if what == "store" else (norm,):
                norms.CHECKS[what](each, PLACE)


def of_norm(change: Callable[[Norm], Norm]) -> dict[str, Callable]:
    """Another norm than the one asked for."""
    return {
        "norm_rotate": lambda q, k, cos, sin, turn, norm, store: cpu.norm_rotate(
            q, k, cos, sin, turn, change(norm), store
        )
    }


def of_store(change: Callable[[Store], Store]) -> dict[str, Callable]:
    """Other places or values."""

    def norm_rotate(q, k, cos, sin, turn, norm, store):
        turned, _ = cpu.norm_rotate(q, k, cos, sin, turn, norm, change(store))
        return turned, store.keys

    return {"norm_rotate": norm_rotate}


def rounds_between(q, k, cos, sin, turn, norm, store):
    """As a norm module does before a rotation: its result rounded to the dtype of q."""
    zero = torch.zeros_like(cos)
    q, k = cpu.norm_rotate(q, k, zero + 1, zero, turn._replace(scale=1.0), norm, None)
    return cpu.norm_rotate(q, k, cos, sin, turn, None, store)


OF_NORMS: dict[str, tuple[dict[str, Callable], tuple[str, ...]]] = {
    "no eps": (of_norm(lambda norm: norm._replace(eps=0.0)), ("fresh", "store")),
    "weights swapped": (of_norm(lambda norm: Norm(norm.k_weight, norm.q_weight, norm.eps)), ("fresh", "store")),
    "weights in 16 bits": (of_norm(lambda norm: norm._replace(q_weight=norm.q_weight.bfloat16())), ("fresh", "store")),
    "pairing": (
        {
            "norm_rotate": lambda q, k, cos, sin, turn, norm, store: cpu.norm_rotate(
                q, k, cos, sin, turn._replace(interleaved=not turn.interleaved), norm, store
            )
        },
        ("fresh", "store"),
    ),
    "rounded between": ({"norm_rotate": rounds_between}, ("fresh", "store")),
    "a slot later": (of_store(lambda s: s._replace(slots=s.slots + 1)), ("store",)),
    "skipped slots": (of_store(lambda s: s._replace(slots=s.slots.abs())), ("store",)),
    "slots of one sequence": (of_store(lambda s: s._replace(slots=s.slots[:1])), ("store",)),
    "no values": (of_store(lambda s: s._replace(values=s.values.clone())), ("store",)),
    "other values": (of_store(lambda s: s._replace(fresh=-s.fresh)), ("store",)),
    "keys and values swapped": (of_store(lambda s: s._replace(keys=s.values, values=s.keys)), ("store",)),
}


@pytest.mark.parametrize("what", norms.CHECKS)
def test_honest_norm(what, sabotage):
    """Without a fault nothing is found."""
    sabotage()
    _norm(what)


@pytest.mark.parametrize(("name", "what"), [(name, what) for name in OF_NORMS for what in OF_NORMS[name][1]])
def test_found_in_norms(name, what, sabotage):
    """In results and in the cache."""
    sabotage(**OF_NORMS[name][0])
    with pytest.raises(AssertionError):
        _norm(what)
