"""The fault that gives a list of inverse frequencies: the first of the catalogue, or one whose number is solved for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch

from ropewalk.errors import RopeError
from ropewalk.methods.faults import (
    BLOCK,
    FLOAT32,
    THETA,
    Hypothesis,
    factor_name,
    faults_of_scaling,
    fixed_at,
    methods,
    other_faults,
    rounded,
)
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import columns_of
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import Linear

_LONGEST = 2**24  # tokens: the longest state of length-dependent frequencies that is searched
_LARGEST = 1e15  # the largest theta and factor that are searched
Columns = Sequence[float]


def largest_error(found: Columns, expected: Columns) -> float:
    """Return the largest relative difference of two lists of frequencies; infinite if their lengths differ.

    >>> largest_error([1.0, 0.02], [1.0, 0.01])
    1.0
    """
    if len(found) != len(expected):
        return math.inf
    scale = 1e-4 * max(map(abs, expected), default=1.0)  # only for pairs that do not rotate
    return max((abs(a - b) / (abs(b) or scale) for a, b in zip(found, expected, strict=True)), default=0.0)


class Cause(NamedTuple):
    """The name of a fault with the right value, if it has one, and its cure."""

    words: str
    cure: str


def cause_of(found: Columns, rope: RopeConfig, ropes: ModelRopes, tolerance: float) -> Cause | None:
    """Return the fault with these frequencies, or None if there is none within `tolerance`.

    **Arguments:**
    - `found`: inverse frequencies, radians per token. `rope`: the expected rope. `ropes`: those of the model.

    >>> rope = RopeConfig(4, interleaved=False, theta=5e5)
    >>> cause_of([1.0, 0.01], rope, ModelRopes((rope,), (None,), (None,)), 1e-5).words
    'theta 10000 in place of 500000'
    """
    if largest_error(found, columns_of(rope, 1)) <= tolerance:
        return None
    of_types = ropes.of_types() if ropes.types else ropes
    scaled = methods(of_types, rope.trained_length or 8192, without="abf")  # which solves for a theta, as this does
    listed = (faults_of_scaling(of_types), other_faults(of_types), scaled)
    return (
        _listed(chain(*listed), found, rope, of_types, tolerance)
        or _rounded(found, rope, tolerance)
        or _solved(found, rope, tolerance)
        or _multiplied(found, columns_of(rope, 1), tolerance)
    )


def grown_length(found: Columns, rope: RopeConfig, tolerance: float) -> int | None:
    """Return the sequence length of these frequencies, for a rope that depends on it; else None."""
    if not rope.needs_seq_len or len(found) != rope.pairs:
        return None
    if rope.switch_length is not None:
        low = high = rope.switch_length + 1
    else:
        low, high = 1, _LONGEST
    while low < high:  # the slowest frequency falls with the length
        middle = (low + high) // 2
        low, high = (low, middle) if columns_of(rope, middle)[-1] <= found[-1] * (1 + 1e-6) else (middle + 1, high)
    return low if largest_error(found, columns_of(rope, low)) <= max(tolerance, 1e-4) else None


def _listed(
    faults: Iterable[Hypothesis], found: Columns, rope: RopeConfig, ropes: ModelRopes, tolerance: float
) -> Cause | None:
    """Return the first fault that makes these frequencies of the layers with this rope."""
    expected = columns_of(rope, 1)
    for fault in faults:
        for own, wrong in zip(ropes.ropes, fault.positions.ropes, strict=True):
            columns = columns_of(wrong, 1)[: rope.pairs] if wrong and own == rope else expected
            if largest_error(columns, expected) > 1e-6 and largest_error(found, columns) <= tolerance:
                return Cause(f"{fault.name} in place of {fault.right}" if fault.right else fault.name, fault.cure)
    return None


def _rounded(found: Columns, rope: RopeConfig, tolerance: float) -> Cause | None:
    expected = columns_of(rope, 1)
    for name in ("bfloat16", "float16"):
        if largest_error(found, rounded(expected, getattr(torch, name))) <= min(tolerance, 1e-4):
            return Cause(f"inv_freq in {name}", FLOAT32)
    length = grown_length(found, rope, tolerance)
    return None if length is None else Cause(fixed_at(length), "Use the frequencies of each text's own length.")


def _solved(found: Columns, rope: RopeConfig, tolerance: float) -> Cause | None:
    """Return the theta or the factor that gives these frequencies, whatever it is."""
    rule, plain = rope.scaling, rope.unscaled()
    factor = getattr(rule, "factor", None)
    numbers: list[tuple[str, Callable[[float], RopeConfig], str]] = []
    if isinstance(rope.theta, float) and rope.inv_freq is None:
        for base, prefix in ((rope, ""), (plain, "no scaling, ")):
            words = f"{prefix}theta {{:.0f}} in place of {rope.theta:.0f}"
            numbers.append((words, lambda x, base=base: replace(base, theta=x), THETA))  # type: ignore[misc]
    if rule is not None and isinstance(factor, int | float):
        words = f"{factor_name(rule.rope_type, '{:g}')} in place of {factor:g}"
        numbers.append((words, lambda x: replace(rope, scaling=replace(rule, factor=x)), BLOCK))  # type: ignore[type-var]
    numbers.append(("pi {:g} (linear)", lambda x: replace(plain, scaling=Linear(x)), BLOCK))
    for words, change, cure in numbers:
        with suppress(RopeError, TypeError):
            value = float(f"{_bisected(found, change):.6g}")
            if largest_error(found, columns_of(change(value), 1)) <= tolerance:
                return Cause(words.format(value), cure)
    return None


def _bisected(found: Columns, change: Callable[[float], RopeConfig]) -> float:
    """Return the number above 1 at which the slowest pair that rotates has its frequency, which falls with it."""
    at = max((pair for pair, frequency in enumerate(found) if frequency > 0), default=0)
    low, high = 1.0 + 1e-9, _LARGEST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if columns_of(change(middle), 1)[at] > found[at] else (low, middle)
    return high


def _multiplied(found: Columns, expected: Columns, tolerance: float) -> Cause | None:
    """Return the factor if all frequencies have the same one."""
    if len(found) != len(expected) or not expected or expected[0] == 0 or found[0] <= 0:
        return None
    ratio = found[0] / expected[0]
    if abs(ratio - 1) <= tolerance or largest_error(found, [ratio * x for x in expected]) > tolerance:
        return None
    words = f"every frequency {'divided' if ratio < 1 else 'multiplied'} by {1 / ratio if ratio < 1 else ratio:.6g}"
    return Cause(words, BLOCK)
