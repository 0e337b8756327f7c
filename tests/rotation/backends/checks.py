"""The checks that every backend goes through; `test_sabotage.py` sees each of them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

import ropewalk as rw
from tests import oracle
from tests.rotation.backends import truth
from tests.rotation.backends.cases import Case
from tests.rotation.backends.places import Place

NEXT_SEED = 1  # of gradients, so that they differ from the inputs


def check_case(case: Case, form: str, place: Place) -> None:
    """One of the benchmarks' cases in one form: every number within its bound, the others and the inputs untouched."""
    inputs, tables = case.tensors(place.device), case.cos_sin(place.device)
    before = [x.clone() for x in (*inputs, *tables)]
    options = {"interleaved": case.interleaved, "rotary_dim": case.rotary_dim, "layout": case.layout,
               "backend": place.backend}  # fmt: skip
    sources, results, turning = FORMS[form](inputs, tables, options, case)
    for number, (source, result) in enumerate(zip(sources, results, strict=True)):
        assert result.shape == source.shape
        assert result.dtype == source.dtype
        allowed = _allowed(case, number, form == "backward", *turning)
        allowed.check(case.as_bshd(result), f"{case.name}, {form}:")
        turned = 2 * case.pairs
        assert truth.same_bits(result[..., turned:], source[..., turned:]), f"{case.name}, {form}: features beyond"
    for x, old in zip((*inputs, *tables), before, strict=True):
        assert truth.same_bits(x, old), f"{case.name}, {form}: an input was changed"


@lru_cache(maxsize=4096)
def _allowed(case: Case, number: int, gradient: bool, inverse: bool, scale: float) -> truth.Allowed:
    """What tensor `number` may become; computed once for all backends."""
    x = truth.wide(case.as_bshd(case.tensors(seed=NEXT_SEED if gradient else 0)[number]))
    if case.dtype == torch.float64:  # its tables are float32 here: the truth is about the rotation by them
        cos, sin = (_over_heads(case, truth.wide(table)) for table in case.cos_sin())
    else:
        angle = _angles(case)
        cos, sin = np.cos(angle), np.sin(angle)
    y, lengths = truth.turn(x, cos, sin, interleaved=case.interleaved, inverse=inverse, scale=scale)
    return truth.Allowed(y, truth.slack(lengths, case.dtype), case.dtype)


def _over_heads(case: Case, table: np.ndarray) -> np.ndarray:
    """A table of the case, to broadcast against `[batch, seq, heads, pairs]`."""
    heads = case.heads if case.tables == "heads" else 1
    return table.reshape(-1, case.seq, heads, case.pairs)


@lru_cache(maxsize=4096)
def _angles_of(positions: tuple[int, ...], theta: float, dim: int) -> np.ndarray:
    return oracle.angles(np.array(positions, dtype=object), theta, dim)


def _angles(case: Case) -> np.ndarray:
    """Angles at 60 digits, reduced: `[batch or 1, seq, heads or 1, pairs]`."""
    positions = tuple(int(m) for m in case.positions().ravel())
    thetas = case._thetas() if case.tables == "heads" else (10_000.0,)
    each = [_angles_of(positions, theta, 2 * case.pairs).reshape(-1, case.seq, case.pairs) for theta in thetas]
    return np.stack(each, axis=2)


Turning = tuple[bool, float]  # inverse, scale
Found = tuple[Sequence[Tensor], Sequence[Tensor], Turning]  # what was turned, what came of it, and how


def _rotate(xs: Sequence[Tensor], tables: Sequence[Tensor], options: dict) -> Sequence[Tensor]:
    if len(xs) == 2:
        return rw.rotate_qk(*xs, *tables, **options)
    return [rw.rotate(xs[0], *tables, **options)]


def _fresh(inputs, tables, options, case) -> Found:
    return inputs, _rotate(inputs, tables, options), (False, 1.0)


def _scaled_inverse(inputs, tables, options, case) -> Found:
    return inputs, _rotate(inputs, tables, {**options, "inverse": True, "scale": 1.25}), (True, 1.25)


def _in_place(inputs, tables, options, case) -> Found:
    """In memory like the case's, but for expanded rows, which cannot be written."""
    sources = case.tensors(str(inputs[0].device))
    if case.memory == "expanded":
        sources = [x.clone(memory_format=torch.contiguous_format) for x in sources]
    versions = [x._version for x in sources]
    turned = _rotate(sources, tables, {**options, "inplace": True})
    assert all(a is b for a, b in zip(turned, sources, strict=True))
    counted = [x._version > version for x, version in zip(sources, versions, strict=True)]
    assert all(counted), "version of what was written"
    return inputs, turned, (False, 1.0)


def _given(inputs, tables, options, case) -> Found:
    """Into memory that lies otherwise than the input: heads before tokens."""
    outs = [torch.full_like(x.movedim(-2, 0), float("nan"), memory_format=torch.contiguous_format) for x in inputs]
    outs = [out.movedim(0, -2) for out in outs]
    turned = [rw.rotate(x, *tables, out=out, **options) for x, out in zip(inputs, outs, strict=True)]
    assert all(a is b for a, b in zip(turned, outs, strict=True))
    return inputs, turned, (False, 1.0)


def _backward(inputs, tables, options, case) -> Found:
    """The gradient that comes in, turned back; it lies in memory as the case says."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    incoming = case.tensors(str(inputs[0].device), seed=NEXT_SEED)
    found = torch.autograd.grad(_rotate(leaves, tables, {**options, "scale": 0.75}), leaves, incoming)
    for x, old in zip(incoming, case.tensors(str(inputs[0].device), seed=NEXT_SEED), strict=True):
        assert truth.same_bits(x, old), f"{case.name}, backward: the gradient that came in was changed"
    return incoming, found, (True, 0.75)


FORMS: dict[str, Callable[..., Found]] = {
    "fresh": _fresh, "scaled inverse": _scaled_inverse, "in place": _in_place, "given": _given, "backward": _backward,
}  # fmt: skip
