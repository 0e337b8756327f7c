"""Backends that are wrong on purpose: each fault is found by every check, in every form, that could meet it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ropewalk.rotation import backends
from ropewalk.rotation.backends import autograd, cpu
from ropewalk.rotation.backends.request import Norm, Store, Turn
from tests.rotation.backends import calls, checks, norms
from tests.rotation.backends.calls import Call, Lie
from tests.rotation.backends.cases import CASES
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


def _case(form: str) -> None:
    """Some of the benchmarks' cases: every variant but the many sizes."""
    for case in CASES:
        if case.dtype in (torch.float32, torch.bfloat16) and case.head_dim <= 16:
            checks.check_case(case, form, PLACE)


def _call(form: str) -> None:
    """Each layout, partial, with tables of their own, beside keys, in memory with gaps."""
    for dtype in (torch.float32, torch.bfloat16):
        lie = Lie(gaps=(3, 3, 3))
        whole = Call(dtype, True, form, scale=1.25, passing=3, x=lie, y=lie)
        for layout in ("bshd", "bhsd", "thd"):
            some = replace(whole, layout=layout, interleaved=layout == "bshd")
            for call in (some, replace(some, kv_heads=2, inverse=True), replace(some, per_row=True, per_head=True)):
                calls.check_call(call, PLACE)
        for call in _windows(form, dtype):
            calls.check_call(call, PLACE)


def _windows(form: str, dtype: torch.dtype = torch.float32) -> list[Call]:
    """A window inside the head, and blocks that are split by themselves."""
    whole = Call(dtype, True, form, scale=1.25, passing=3, kv_heads=2)
    return [
        replace(whole, first=2), replace(whole, interleaved=False, first=1, blocks=(1, 3)),
    ]  # fmt: skip


CHECKS = [(_case, form) for form in checks.FORMS] + [(_call, form) for form in calls.FORMS]
check_and_form = pytest.mark.parametrize(("check", "form"), CHECKS, ids=[f"{c.__name__}, {f}" for c, f in CHECKS])


def sign(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos, sin, turn.transposed(), outs)


def pairing(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos, sin, turn._replace(interleaved=not turn.interleaved), outs)


def window(xs, cos, sin, turn, outs=None):
    """The first features, whatever was asked for."""
    return cpu.rotate(xs, cos, sin, turn._replace(first=0), outs)


def blocks_swapped(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos, sin, turn._replace(blocks=turn.blocks[::-1]), outs)


def one_block(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos, sin, turn._replace(blocks=()), outs)


def row(xs, cos, sin, turn, outs=None):
    """Each token by the row of the one before it."""
    axis = 0 if cos.ndim == 2 or turn.layout == "thd" else 1
    return cpu.rotate(xs, cos.roll(1, axis), sin.roll(1, axis), turn, outs)


def last_row(xs, cos, sin, turn, outs=None):
    """The last token by the row before its own."""
    axis = 0 if cos.ndim == 2 or turn.layout == "thd" else 1
    rows = torch.arange(cos.shape[axis]).clamp(max=max(0, cos.shape[axis] - 2))
    return cpu.rotate(xs, cos.index_select(axis, rows), sin.index_select(axis, rows), turn, outs)


def table_in_16_bits(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos.bfloat16().to(cos.dtype), sin.bfloat16().to(sin.dtype), turn, outs)


def table_of_one_head(xs, cos, sin, turn, outs=None):
    """The first head's angles for all."""
    if cos.ndim == (3 if turn.layout == "thd" else 4):
        cos, sin = cos[..., :1, :], sin[..., :1, :]
    return cpu.rotate(xs, cos, sin, turn, outs)


def table_of_one_sequence(xs, cos, sin, turn, outs=None):
    """The first sequence's angles for all."""
    if cos.ndim > 2 and turn.layout != "thd":
        cos, sin = cos[:1], sin[:1]
    return cpu.rotate(xs, cos, sin, turn, outs)


def scale(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos, sin, turn._replace(scale=1.0), outs)


def unwritten(xs, cos, sin, turn, outs=None):
    """The last feature that turns of the last head is what fresh memory holds."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    for y in results:
        y[(-1,) * (y.ndim - 1)][2 * cos.shape[-1] - 1] = float("nan")
    return results


def truncated(xs, cos, sin, turn, outs=None):
    """In bfloat16: towards zero instead of to the nearest."""
    if xs[0].dtype != torch.bfloat16:
        return cpu.rotate(xs, cos, sin, turn, outs)
    news = [y.view(torch.int32) >> 16 << 16 for y in cpu.rotate([x.float() for x in xs], cos, sin, turn)]
    news = [y.view(torch.float32).bfloat16() for y in news]
    return news if outs is None else [out.copy_(new) for out, new in zip(outs, news, strict=True)]


def neighbour(xs, cos, sin, turn, outs=None):
    """The first feature that does not turn, changed in its last bit."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    for y in results:
        beyond = y[..., 2 * cos.shape[-1] :][..., :1]
        beyond.copy_(torch.nextafter(beyond, torch.full_like(beyond, 9.0)))
    return results


def guard(xs, cos, sin, turn, outs=None):
    """One element after the end of a result that was given."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    for y in results if outs is not None else ():
        end = y.storage_offset() + sum(stride * (size - 1) for stride, size in zip(y.stride(), y.shape, strict=True))
        y.as_strided((1,), (1,), end + 1).fill_(0.0)
    return results


def gap(xs, cos, sin, turn, outs=None):
    """One element between the heads of a result that was given."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    for y in results if outs is not None else ():
        y.as_strided((1,), (1,), y.storage_offset() + y.shape[-1]).fill_(0.0)
    return results


def spoiled_input(xs, cos, sin, turn, outs=None):
    """One number of the input changes."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    for x, y in zip(xs, results, strict=True):
        if x is not y:
            x[(0,) * x.ndim] = 1.0
    return results


def spoiled_gradient(xs, cos, sin, turn, outs=None):
    """One number of what is turned back changes."""
    return (spoiled_input if turn.inverse else cpu.rotate)(xs, cos, sin, turn, outs)


def spoiled_table(xs, cos, sin, turn, outs=None):
    """One number of a table changes."""
    results = cpu.rotate(xs, cos, sin, turn, outs)
    cos[(0,) * cos.ndim] = 3.0
    return results


WRONG = "wrong; at"
EVERYWHERE = {
    sign: WRONG, pairing: WRONG, row: WRONG, last_row: WRONG, table_in_16_bits: WRONG, table_of_one_head: WRONG,
    table_of_one_sequence: WRONG, unwritten: WRONG, truncated: WRONG, neighbour: WRONG,
    spoiled_table: f"an input was changed|the tables|backward.* {WRONG}",
}  # fmt: skip
SOMEWHERE = [
    *((scale, _call, form, WRONG) for form in calls.FORMS),
    *((scale, _case, form, WRONG) for form in ("scaled inverse", "backward")),
    *((fault, _call, form, WRONG) for form in calls.FORMS for fault in (window, blocks_swapped, one_block)),
    *((spoiled_input, check, form, "input") for check, form in CHECKS if form in ("fresh", "scaled inverse", "given")),
    *((spoiled_gradient, check, "backward", "input|gradient") for check in (_case, _call)),
    *((fault, _call, form, "bytes around") for fault in (guard, gap) for form in ("given", "in place")),
]
NAMES = [f"{fault.__name__}, {check.__name__}, {form}" for fault, check, form, _ in SOMEWHERE]


@check_and_form
def test_honest(check, form, sabotage):
    """Without a fault nothing is found."""
    sabotage()
    check(form)


@pytest.mark.parametrize(("fault", "message"), EVERYWHERE.items(), ids=lambda fault: getattr(fault, "__name__", ""))
@check_and_form
def test_found_in_every_form(fault, message, check, form, sabotage):
    """By the benchmarks' cases and by any call, in whatever form."""
    sabotage(rotate=fault)
    with pytest.raises(AssertionError, match=message):
        check(form)


@pytest.mark.parametrize(("fault", "check", "form", "message"), SOMEWHERE, ids=NAMES)
def test_found_where_it_shows(fault, check, form, message, sabotage):
    """Faults that only some forms can meet."""
    sabotage(rotate=fault)
    with pytest.raises(AssertionError, match=message):
        check(form)


def test_a_version_that_is_not_counted(sabotage, monkeypatch):
    """A write in place that autograd is not told of."""
    sabotage()
    monkeypatch.setattr(autograd, "note_written", lambda tensors: None)
    with pytest.raises(AssertionError, match="version of what was written"):
        _case("in place")


CHECKS_OF_NORMS = {"fresh": norms.check_norm, "store": norms.check_store, "gradients": norms.check_gradients}


def _norm(what: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for layout in ("bshd", "bhsd", "thd"):
            call = Call(dtype, layout == "thd", "fresh", layout=layout, heads=3, kv_heads=2, pairs=4, passing=2)
            norm = NormCall(call, eps=1e-2, own_slots=True, cache=Lie(gaps=(2, 2, 2)))
            for each in (norm, replace(norm, weights=None), replace(norm, joint=True)) if what == "store" else (norm,):
                CHECKS_OF_NORMS[what](each, PLACE)


def wrong_norm(change: Callable[[Norm], Norm]) -> dict[str, Callable]:
    """Another norm than the one asked for."""
    return {
        "norm_rotate": lambda q, k, cos, sin, turn, norm, store: cpu.norm_rotate(
            q, k, cos, sin, turn, change(norm), store
        )
    }


def wrong_turn(change: Callable[[Turn], Turn]) -> dict[str, Callable]:
    """Another turn."""
    return {
        "norm_rotate": lambda q, k, cos, sin, turn, norm, store: cpu.norm_rotate(
            q, k, cos, sin, change(turn), norm, store
        )
    }


OF_THE_NORM = {
    "no eps": wrong_norm(lambda norm: norm._replace(eps=0.0)),
    "weights swapped": wrong_norm(lambda norm: Norm(norm.k_weight, norm.q_weight, norm.eps)),
    "no weight": wrong_norm(lambda norm: norm._replace(k_weight=torch.ones_like(norm.k_weight))),
    "weights in 16 bits": wrong_norm(lambda norm: norm._replace(q_weight=norm.q_weight.bfloat16())),
    "sign": wrong_turn(Turn.transposed),
    "pairing": wrong_turn(lambda turn: turn._replace(interleaved=not turn.interleaved)),
}


@pytest.mark.parametrize("what", CHECKS_OF_NORMS)
def test_honest_norm(what, sabotage):
    """Without a fault nothing is found."""
    sabotage()
    _norm(what)


@pytest.mark.parametrize("fault", OF_THE_NORM.values(), ids=OF_THE_NORM)
@pytest.mark.parametrize("what", ["fresh", "store"])
def test_found_in_norms(fault, what, sabotage):
    """In results and in the cache."""
    sabotage(**fault)
    with pytest.raises(AssertionError):
        _norm(what)


def norm_rounds_between(q, k, cos, sin, turn, norm, store):
    """As a norm module does before a rotation: its result rounded to the dtype of q."""
    zero = torch.zeros_like(cos)
    q, k = cpu.norm_rotate(q, k, zero + 1, zero, turn._replace(scale=1.0), norm, None)
    return cpu.norm_rotate(q, k, cos, sin, turn, None, store)


def norm_of_each_head(q, k, cos, sin, turn, norm, store):
    """The call asks for one norm over all heads."""
    if norm is not None and norm.joint:
        norm = Norm(norm.q_weight[: q.shape[-1]], norm.k_weight[: q.shape[-1]], norm.eps)
    return cpu.norm_rotate(q, k, cos, sin, turn, norm, store)


def stores(change: Callable[[Store], Store]) -> Callable:
    def norm_rotate(q, k, cos, sin, turn, norm, store):
        turned, _ = cpu.norm_rotate(q, k, cos, sin, turn, norm, change(store))
        return turned, store.keys

    return norm_rotate


def one_way(xs, cos, sin, turn, outs=None):
    return cpu.rotate(xs, cos, sin, turn._replace(inverse=False), outs)


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("fresh", {"norm_rotate": norm_rounds_between}),
        ("store", {"norm_rotate": norm_rounds_between}),
        ("store", {"norm_rotate": stores(lambda s: s._replace(slots=s.slots + 1))}),
        ("store", {"norm_rotate": stores(lambda s: s._replace(slots=s.slots.abs()))}),
        ("store", {"norm_rotate": stores(lambda s: s._replace(slots=s.slots[:1]))}),
        ("store", {"norm_rotate": stores(lambda s: s._replace(values=s.values.clone()))}),
        ("store", {"norm_rotate": stores(lambda s: s._replace(fresh=-s.fresh))}),
        ("store", {"norm_rotate": stores(lambda s: s._replace(keys=s.values, values=s.keys))}),
        ("store", {"norm_rotate": norm_of_each_head}),
        ("gradients", {"rotate": one_way}),
    ],
    ids=["rounded between", "rounded between, stored", "a slot later", "skipped slots", "slots of one sequence",
         "no values", "other values", "keys and values swapped", "norm of each head", "one way"],
)  # fmt: skip
def test_found_where_norms_store_and_go_back(what, fault, sabotage):
    """Faults of the cache's rows, and a rotation that turns the same way back."""
    sabotage(**fault)
    with pytest.raises(AssertionError):
        _norm(what)
