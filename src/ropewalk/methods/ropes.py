"""Single ropes before and after an extension."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ropewalk.methods.reach import Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import LongRoPE


def unscaled(rope: RopeConfig) -> RopeConfig:
    """The rope as it was before any length scaling; a proportional rope keeps its unrotated pairs."""
    return dataclasses.replace(rope, scaling=None if rope.scaling is None else rope.scaling.unscaled())


def with_unscaled_tokens(rope: RopeConfig, reach: Reach) -> RopeConfig:
    """The same frequencies as LongRoPE's divisors, but for the first `reach.unscaled_tokens`, which keep their angles.

    **Arguments:**
    - `rope`: with a scaling; its divisors at the trained length become the short list, at the target the long one, and
      its attention factor at the target that of both.

    **Source:** Ding et al. 2024, arXiv:2402.13753, section 3.2: the first n-hat tokens without interpolation.

    >>> from ropewalk.rope.scaling import Linear
    >>> rope = RopeConfig(4, interleaved=False, scaling=Linear(4.0))
    >>> with_unscaled_tokens(rope, Reach(8, 32, unscaled_tokens=2)).scaling.long_factor
    (4.0, 4.0)
    """
    base = columns_of(unscaled(rope))
    short, long = (
        tuple(old / new for old, new in zip(base, columns_of(rope, length), strict=True))
        for length in (reach.trained, reach.target)
    )
    rule = LongRoPE(
        short,
        long,
        reach.trained,
        attention_factor=attention_factor_of(rope, reach.target),
        unscaled_tokens=reach.unscaled_tokens,
    )
    return dataclasses.replace(rope, scaling=rule)


def main_rope(ropes: Sequence[RopeConfig | None]) -> RopeConfig | None:
    """The rope that reaches furthest: the first scaled one, or else the first; None where there is none."""
    present = [rope for rope in ropes if rope is not None]
    return next((rope for rope in present if rope.scaling is not None), present[0] if present else None)
