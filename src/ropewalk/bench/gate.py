"""Correctness before speed: what was turned, held against the float64 oracle within bounds derived from rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.bench import oracle
from ropewalk.bench.cases import CASES, Case
from ropewalk.errors import RopeError
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rotation.rotate import rotate, rotate_qk

Array = oracle.Array
_Options = dict[str, Any]
FLOAT32 = 1e-6  # unit-normal inputs: tables within 4.2e-8, two products and a sum of 6e-8 each, pairs up to 6 long
RELATIVE = 2e-7  # the same, as a part of the pair's length, before the one rounding to 16 bits
TOKENS = 24  # of a long case, evenly spread, the first and the last among them


def bounds(result: Array, lengths: Array, dtype: torch.dtype) -> tuple[Array, Array]:
    """What each feature of `result` may be off by: the last rounding, and the rest; both 0 where nothing turns.

    float64 and float32: 0 and 1e-6. 16-bit: half a unit in the last place of the result, and 2e-7 of the pair's length.
    """
    if dtype.itemsize > 2:
        return np.zeros_like(lengths), np.where(lengths > 0, FLOAT32, 0.0)
    return np.where(lengths > 0, half_unit(result, dtype), 0.0), RELATIVE * lengths


def loose_bounds(lengths: Array, dtype: torch.dtype, eps: float, furthest: int) -> tuple[Array, Array]:
    """What is allowed where rounding is not ours: `eps` times the dtype's, and float32 angles up to `furthest`.

    Other packages round tables and products to the model's dtype, and some form their own angles (`furthest` is 0 where
    they do not). A wrong pairing, sign or row is off by the whole length of a pair.
    """
    return np.zeros_like(lengths), lengths * (eps * torch.finfo(dtype).eps + 1.2e-7 * furthest)


def half_unit(values: Array, dtype: torch.dtype) -> Array:
    """Half the distance between neighbours of `dtype` at each value."""
    info = torch.finfo(dtype)
    exponent = np.frexp(np.maximum(np.abs(values), info.smallest_normal))[1] - 1
    half: Array = np.ldexp(info.eps / 2, exponent)
    return half


def check(
    case: Case,
    inputs: Sequence[Tensor],
    turned: Sequence[Tensor],
    *,
    who: str = "rotate",
    interleaved: bool | None = None,
    inverse: bool = False,
    scale: float = 1.0,
    eps: float = 0.0,
    own_angles: bool = False,
    before: Callable[[int, Array], Array] | None = None,
) -> float:
    """What share of its bound `turned` (the rotated `inputs`, in the case's layout) uses at worst: 1 at most.

    The share is of what is allowed beyond the last rounding. Long cases are checked on some tokens. `interleaved`
    replaces the case's pairing; `eps` above 0 allows `loose_bounds` instead of `bounds`; `before` is what happened to
    tensor number n ahead of the rotation, in float64. Raises `RopeError` with the case and the error if it is wrong.
    """
    tokens = np.unique(np.linspace(0, case.seq - 1, min(case.seq, TOKENS)).round().astype(int))
    angle = case.angles()[:, tokens]
    paired = case.interleaved if interleaved is None else interleaved
    worst = 0.0
    for number, (x, y) in enumerate(zip(inputs, turned, strict=True)):
        if y.shape != x.shape or y.dtype != x.dtype:
            raise RopeError(
                f"bench: {who} gives back another shape or dtype, so it is not timed.",
                facts={"case": case.name, "tensor": "qk"[number], "input": x, "result": y},
                cure="A rotation keeps both.",
            )
        source, got = (_wide(case.as_bshd(tensor), tokens) for tensor in (x, y))
        source = source if before is None else before(number, source)
        expected = oracle.rotate(source, angle, interleaved=paired, inverse=inverse, scale=scale)
        lengths = oracle.pair_lengths(source, case.pairs, interleaved=paired) * abs(scale)
        furthest = int(case.positions().max()) if own_angles else 0
        loose = loose_bounds(lengths, x.dtype, eps, furthest)
        rounding, rest = loose if eps else bounds(got, lengths, x.dtype)
        error, allowed = np.abs(got - expected), rounding + rest
        if not (np.isfinite(got) & (error <= allowed)).all():
            at = np.unravel_index(np.argmax(np.nan_to_num(error - allowed, nan=np.inf, posinf=np.inf)), error.shape)
            raise RopeError(
                f"bench: {who} does not agree with the float64 oracle, so it is not timed.",
                facts={"case": case.name, "tensor": "qk"[number], "result": y, "error": float(error[at]),
                       "allowed": float(allowed[at]),
                       "at": f"token {tokens[at[1]]}, head {at[2]}, feature {at[3]}"},
                cure="Its result is wrong, or it was called with another pairing, layout or table.",
            )  # fmt: skip
        turning = rest > 0
        worst = max(worst, float(((error - rounding)[turning] / rest[turning]).max(initial=0.0)))
    return worst


def check_rotate(
    cases: Iterable[Case] = CASES, *, backend: str | None = None, device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, float]:  # fmt: skip
    """Rotate every case: new, in place, into a given output, scaled and inverse, and backward.

    The worst share of the bound that each dtype used. Raises `RopeError` at the first case that is wrong.
    """
    worst: dict[str, float] = {}
    shown, cases = progress or SilentProgress(), list(cases)
    shown.begin("correctness", len(cases))
    for case in cases:
        inputs, (cos, sin) = case.tensors(device), case.cos_sin(device)
        for form, call in _FORMS.items():
            if case.memory == "expanded" and form == "in place":
                continue
            inverse, scale = form in ("inverse", "backward"), 0.5 if form == "inverse" else 1.0
            options: _Options = {"interleaved": case.interleaved, "rotary_dim": case.rotary_dim, "layout": case.layout,
                                 "backend": backend}  # fmt: skip
            turned = call(inputs, cos, sin, options)
            share = check(case, inputs, turned, who=f"rotate, {form},", inverse=inverse, scale=scale)
            dtype = str(case.dtype).removeprefix("torch.")
            worst[dtype] = max(worst.get(dtype, 0.0), share)
        shown.advance(1)
    return worst


def _wide(x: Tensor, tokens: Array) -> Array:
    rows: Array = x.detach()[:, torch.from_numpy(tokens).to(x.device)].double().cpu().numpy()
    return rows


def _fresh(inputs: Sequence[Tensor], cos: Tensor, sin: Tensor, options: _Options) -> Sequence[Tensor]:
    if len(inputs) == 2:
        return rotate_qk(inputs[0], inputs[1], cos, sin, **options)
    return [rotate(inputs[0], cos, sin, **options)]


def _in_place(inputs: Sequence[Tensor], cos: Tensor, sin: Tensor, options: _Options) -> Sequence[Tensor]:
    copies = [x.clone(memory_format=torch.preserve_format) for x in inputs]
    return _fresh(copies, cos, sin, {**options, "inplace": True})


def _given(inputs: Sequence[Tensor], cos: Tensor, sin: Tensor, options: _Options) -> Sequence[Tensor]:
    outs = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
    return [rotate(x, cos, sin, out=out, **options) for x, out in zip(inputs, outs, strict=True)]


def _inverse(inputs: Sequence[Tensor], cos: Tensor, sin: Tensor, options: _Options) -> Sequence[Tensor]:
    return _fresh(inputs, cos, sin, {**options, "inverse": True, "scale": 0.5})


def _backward(inputs: Sequence[Tensor], cos: Tensor, sin: Tensor, options: _Options) -> Sequence[Tensor]:
    """The gradient of a rotation is its inverse: the inputs serve as the gradients that come in."""
    leaves = [torch.zeros_like(x).requires_grad_() for x in inputs]
    return torch.autograd.grad(_fresh(leaves, cos, sin, options), leaves, list(inputs))


_FORMS = {"new": _fresh, "in place": _in_place, "given output": _given, "inverse": _inverse, "backward": _backward}
