"""The fault of the catalogue (`ropewalk.audit.faults`) that gives the numbers of a module."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

import torch

from ropewalk.audit import faults
from ropewalk.audit.faults import Hypothesis, Numbered
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes

_LONGEST = 2**24  # tokens: the longest state of length-dependent frequencies that is searched
_LARGEST = 1e15  # the largest theta and factor that are searched
Columns = Sequence[float]


def largest_error(found: Columns, expected: Columns) -> float:
    """Return the largest relative difference of two lists of frequencies; infinite if their lengths differ."""
    if len(found) != len(expected):
        return math.inf
    scale = 1e-4 * max(map(abs, expected), default=1.0)  # only for pairs that do not rotate
    return max((abs(a - b) / (abs(b) or scale) for a, b in zip(found, expected, strict=True)), default=0.0)


def cause_of(found: Columns, rope: RopeConfig, ropes: ModelRopes, tolerance: float) -> Hypothesis | None:
    """Return the fault of a rope of a model with these frequencies; None if there is none within `tolerance`."""
    expected = rope.columns_at(1)
    if largest_error(found, expected) <= tolerance:
        return None

    def fits(wrong: RopeConfig) -> bool:
        columns = wrong.columns_at(1)[: rope.pairs]
        return largest_error(columns, expected) > 1e-6 and largest_error(found, columns) <= tolerance

    cause = fault_where(fits, rope, ropes)
    if cause is not None:
        return cause
    alone = ModelRopes((faults.given(rope, expected),), (None,), (None,))  # without its attention factor
    for cast in (faults.rounded(alone, dtype) for dtype in (torch.bfloat16, torch.float16)):
        if _gives(cast, found, min(tolerance, 1e-4)):
            return cast
    length = grown_length(found, rope, tolerance)
    if length is not None:
        return faults.fixed_at(alone, length)
    return next(filter(None, (_solved(found, rope, one, tolerance) for one in faults.numbered(rope))), None)


def fault_where(fits: Callable[[RopeConfig], bool], rope: RopeConfig, ropes: ModelRopes) -> Hypothesis | None:
    """Return the first fault of the catalogue with a fitting rope in a layer of `rope`; None if there is none."""
    of_types = ropes.of_types() if ropes.types else ropes
    scaled = faults.methods(of_types, rope.trained_length or 8192, without="abf")  # `numbered` solves for its theta
    for fault in chain(faults.faults_of_scaling(of_types), faults.other_faults(of_types), scaled):
        for own, wrong in zip(of_types.ropes, fault.positions.ropes, strict=True):
            if wrong is not None and own == rope and fits(wrong):
                return fault
    return None


def cause_of_factor(found: float, rope: RopeConfig, ropes: ModelRopes, tolerance: float) -> Hypothesis | None:
    """Return the fault with the right frequencies and this attention factor; None if there is none."""

    def fits(wrong: RopeConfig) -> bool:
        factor = wrong.attention_factor_at(1)
        return abs(found - factor) <= tolerance * factor and wrong.columns_at(1) == rope.columns_at(1)

    return fault_where(fits, rope, ropes)


def grown_length(found: Columns, rope: RopeConfig, tolerance: float) -> int | None:
    """Return the sequence length of these frequencies, for a rope that depends on it; else None."""
    if not rope.needs_seq_len or len(found) != rope.pairs:
        return None
    if rope.switch_length is not None:
        length = rope.switch_length + 1
    else:
        slowest = found[-1] * (1 + 1e-6)  # the slowest frequency falls with the length
        length = 1 + bisect_left(range(1, _LONGEST), True, key=lambda n: rope.columns_at(n)[-1] <= slowest)
    return length if largest_error(found, rope.columns_at(length)) <= max(tolerance, 1e-4) else None


def _gives(fault: Hypothesis, found: Columns, tolerance: float) -> bool:
    (wrong,) = fault.positions.ropes
    return wrong is not None and largest_error(found, wrong.columns_at(1)) <= tolerance


def _solved(found: Columns, rope: RopeConfig, fault: Numbered, tolerance: float) -> Hypothesis | None:
    """Return the fault with the number above 1 at which the slowest pair that rotates has its frequency."""
    at = max((pair for pair, frequency in enumerate(found) if frequency > 0), default=0)
    if len(found) != rope.pairs:
        return None
    with suppress(RopeError):

        def below(number: float) -> bool:
            return fault.change(rope, number).columns_at(1)[at] <= found[at]

        low, high = 1.0 + 1e-9, _LARGEST
        rises = below(low) and not below(high)
        for _ in range(60):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if below(middle) != rises else (middle, high)
        solved = fault.at(ModelRopes((rope,), (None,), (None,)), float(f"{high:.6g}"))
        return solved if _gives(solved, found, tolerance) else None
    return None
