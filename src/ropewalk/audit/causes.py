"""Named causes of wrong frequencies, found by comparing a list of inverse frequencies with faulty ropes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import columns_of
from ropewalk.rope.scaling import NTK, Linear, Scaling, Stacked
from ropewalk.rope.values import TRAINED_KEY

THETAS = (1e4, 1e5, 5e5, 1e6)
_LONGEST = 2**24  # tokens: the longest state of length-dependent frequencies that is searched
Columns = Sequence[float]
Ropes = Mapping[str | None, RopeConfig | None]
"""The ropes of a model by layer type; the key None is the rope of all layers."""


def largest_error(found: Columns, expected: Columns) -> float:
    """Return the largest relative difference of two lists of frequencies; infinite if their lengths differ.

    >>> largest_error([1.0, 0.02], [1.0, 0.01])
    1.0
    """
    if len(found) != len(expected):
        return math.inf
    scale = 1e-4 * max(map(abs, expected), default=1.0)  # only for pairs that do not rotate
    return max((abs(a - b) / (abs(b) or scale) for a, b in zip(found, expected, strict=True)), default=0.0)


def cause_of(found: Columns, rope: RopeConfig, others: Ropes, tolerance: float) -> str | None:
    """Return the cause of these frequencies in words, or None if no named cause matches within `tolerance`.

    **Arguments:**
    - `found`: inverse frequencies, radians per token. `rope`: the expected rope. `others`: the model's other ropes.

    >>> cause_of([1.0, 0.01], RopeConfig(4, interleaved=False, theta=5e5), {}, 1e-5)
    'theta 10000 in place of 500000'
    """
    for name, columns in _candidates(rope, others):
        if largest_error(found, columns) <= tolerance:
            return name
    expected = columns_of(rope, 1)
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if largest_error(found, _rounded(expected, dtype)) <= min(tolerance, 1e-4):
            return f"frequencies rounded to {name}"
    length = grown_length(found, rope, tolerance)
    if length is not None:
        return f"the frequencies of a sequence of {length:,} tokens"
    return _by_ratio(found, expected, tolerance) or _by_theta(found, tolerance)


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


def _candidates(rope: RopeConfig, others: Ropes) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the frequencies of each named fault, without those that change nothing."""
    expected = columns_of(rope, 1)
    for name, change in _faults(rope, others):
        try:
            columns = columns_of(change(), 1)[: rope.pairs]
        except (RopeError, TypeError):
            continue  # this fault cannot happen to this rope
        if largest_error(columns, expected) > 1e-6:
            yield name, columns


def _faults(rope: RopeConfig, others: Ropes) -> Iterator[tuple[str, Callable[[], RopeConfig]]]:
    """Yield the name of each fault and a function that returns the faulty rope, or raises."""
    rule, plain = rope.scaling, rope.unscaled()
    yield "no scaling", rope.unscaled
    for label, other in others.items():
        if other is not None and other != rope:
            yield f"the rope of {label} layers", partial(dataclasses.replace, other)
    name = f"the frequencies of all {rope.head_dim} features: the partial factor is ignored"
    yield name, partial(dataclasses.replace, rope, rotary_dim=None, axes=None)
    own = rope.theta if isinstance(rope.theta, float) else math.nan
    for theta in sorted({*THETAS, 10 * own, own / 10} - {own}):
        for base, more in ((rope, ""), (plain, " and no scaling")):
            name = f"theta {theta:.0f} in place of {own:.0f}{more}"
            yield name, partial(dataclasses.replace, base, theta=theta)
    if rule is not None and plain != rope:
        for name, changed in _rules(rope, rule):
            yield name, lambda changed=changed: dataclasses.replace(rope, scaling=changed())  # type: ignore[misc]


def _rules(rope: RopeConfig, rule: Scaling) -> Iterator[tuple[str, Callable[[], Scaling]]]:
    """Yield faulty scaling rules; a rule without the field raises TypeError when it is built."""

    def replaced(**fields: object) -> Callable[[], Scaling]:
        return lambda: dataclasses.replace(rule, **fields)  # type: ignore[type-var]

    yield "scaling twice", lambda: Stacked(rule.written_out(rope.max_position_embeddings), rule)
    factor = getattr(rule, "factor", None)
    if isinstance(factor, int | float):
        yield f"linear scaling by {factor:g}", lambda: Linear(factor)
        yield f"NTK scaling by {factor:g}", lambda: NTK(factor)
        for times in (0.5, 2.0, factor):
            yield f"factor {factor * times:g} in place of {factor:g}", replaced(factor=factor * times)
    original, longest = rope.original_length, rope.max_position_embeddings
    factors = [factor, 1 / factor] if isinstance(factor, int | float) and factor else []
    lengths = [longest, *(round(original * f) for f in factors if original)]
    for length in dict.fromkeys(lengths) if original else ():
        if length and length != original:
            yield f"{TRAINED_KEY} {length} in place of {original}", replaced(**{TRAINED_KEY: length})
    yield "its scaling by the paper's formula", replaced(variant="paper")
    yield "its scaling without rounded bounds", replaced(truncate=False)
    for name in ("short_factor", "long_factor"):
        if hasattr(rule, name):
            one = getattr(rule, name)
            yield f"the {name} at every length", replaced(short_factor=one, long_factor=one)


def _rounded(columns: Columns, dtype: torch.dtype) -> list[float]:
    return [float(x) for x in torch.tensor(columns, dtype=torch.float32, device="cpu").to(dtype).tolist()]


def _by_ratio(found: Columns, expected: Columns, tolerance: float) -> str | None:
    """Return the factor if all frequencies have the same one."""
    if len(found) != len(expected) or not expected or expected[0] == 0 or found[0] <= 0:
        return None
    ratio = found[0] / expected[0]
    if abs(ratio - 1) <= tolerance or largest_error(found, [ratio * x for x in expected]) > tolerance:
        return None
    return f"every frequency {'divided' if ratio < 1 else 'multiplied'} by {1 / ratio if ratio < 1 else ratio:.6g}"


def _by_theta(found: Columns, tolerance: float) -> str | None:
    """Return the theta if the frequencies are those of plain RoPE."""
    pairs = len(found)
    if pairs < 3 or min(found) <= 0 or abs(found[0] - 1) > tolerance:
        return None
    theta = found[-1] ** (-pairs / (pairs - 1))
    plain = [theta ** (-i / pairs) for i in range(pairs)]
    return f"plain RoPE with theta {theta:.6g}" if largest_error(found, plain) <= 10 * tolerance else None
