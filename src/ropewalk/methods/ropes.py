"""Single ropes before and after an extension."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ropewalk.families import Trained
from ropewalk.methods.reach import Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import LongRoPE, Scaling, Stacked


def unscaled(rope: RopeConfig) -> RopeConfig:
    """The rope as it was before any length scaling; a proportional rope keeps its unrotated pairs."""
    return dataclasses.replace(rope, scaling=None if rope.scaling is None else rope.scaling.unscaled())


def extended(base: RopeConfig, rule: Scaling, *, trained: int, length: int) -> RopeConfig:
    """A rope as it was trained, under one more rule, which starts from the frequencies as they are.

    - `trained`: the length in tokens that the base was trained to. `length`: the config's max_position_embeddings.

    >>> from ropewalk.families import Trained
    >>> from ropewalk.rope.scaling import Linear
    >>> base = RopeConfig(64, interleaved=False, scaling=Linear(8.0), trained=Trained(True))
    >>> extended(base, Linear(2.0), trained=1024, length=1024).scaling
    Stacked(of=Linear(factor=8.0), by=Linear(factor=2.0))
    """
    if base.scaling is None:
        return dataclasses.replace(base, scaling=rule, max_position_embeddings=length, trained=None)
    both = Stacked(base.scaling.written_out(base.max_position_embeddings), rule)
    return dataclasses.replace(base, scaling=both, max_position_embeddings=length, trained=Trained(False, trained))


def divisors_of(rope: RopeConfig, length: int) -> tuple[float, ...]:
    """By what the rope's frequencies at a length lie below those of theta alone, pair by pair.

    >>> from ropewalk.rope.scaling import Linear
    >>> divisors_of(RopeConfig(4, interleaved=False, scaling=Linear(8.0)), 64)
    (8.0, 8.0)
    """
    plain = columns_of(dataclasses.replace(rope, scaling=None))
    return tuple(f / g if g else math.inf for f, g in zip(plain, columns_of(rope, length), strict=True))


def with_unscaled_tokens(base: RopeConfig, rope: RopeConfig, reach: Reach) -> RopeConfig:
    """The frequencies of `rope` as LongRoPE's divisors of `base`, but the first `reach.unscaled_tokens` keep base's.

    **Arguments:**
    - `base`: as it was trained. `rope`: it under a method; its divisors at the trained length become the short list, at
      the target the long one, and its attention factor at the target that of both.

    **Source:** Ding et al. 2024, arXiv:2402.13753, section 3.2: the first n-hat tokens without interpolation.

    >>> from ropewalk.rope.scaling import Linear
    >>> base = RopeConfig(4, interleaved=False)
    >>> rope = dataclasses.replace(base, scaling=Linear(4.0))
    >>> with_unscaled_tokens(base, rope, Reach(8, 32, unscaled_tokens=2)).scaling.long_factor
    (4.0, 4.0)
    """
    short, long = (
        tuple(old / new for old, new in zip(columns_of(base, length), columns_of(rope, length), strict=True))
        for length in (reach.trained, reach.target)
    )
    rule = LongRoPE(
        short,
        long,
        reach.trained,
        attention_factor=attention_factor_of(rope, reach.target) / attention_factor_of(base, reach.target),
        unscaled_tokens=reach.unscaled_tokens,
    )
    return extended(base, rule, trained=reach.trained, length=reach.trained)


def longrope_block(rope: RopeConfig, trained: int, target: int) -> dict[str, Any] | None:
    """The `longrope` block with every number in it: one divisor for each pair, of theta's frequencies.

    It says any rule whose frequencies do not depend on the length, by two equal lists. `trained`: tokens at which the
    lists change, where the rope has no such length of its own. None where divisors cannot say the frequencies.

    >>> from ropewalk.rope.scaling import Linear
    >>> longrope_block(RopeConfig(4, interleaved=False, scaling=Linear(4.0)), 16, 64)["long_factor"]
    [4.0, 4.0]
    """
    switch = trained if rope.switch_length is None else rope.switch_length
    if switch < 2 or (rope.needs_seq_len and rope.switch_length is None) or not rope.can_be_extended:
        return None
    plain = columns_of(unscaled(rope))
    short, long = columns_of(rope, switch), columns_of(rope, switch + 1)
    if not all(short) or not all(long) or not all(plain):
        return None
    return {
        "rope_type": "longrope",
        "rope_theta": rope.theta,
        "short_factor": [old / new for old, new in zip(plain, short, strict=True)],
        "long_factor": [old / new for old, new in zip(plain, long, strict=True)],
        "original_max_position_embeddings": switch,
        "factor": max(1.0, target / switch),
        "attention_factor": attention_factor_of(rope, switch + 1),
    }


def main_rope(ropes: Sequence[RopeConfig | None]) -> RopeConfig | None:
    """The rope that reaches furthest: the first scaled one, or else the first; None where there is none."""
    present = [rope for rope in ropes if rope is not None]
    return next((rope for rope in present if rope.scaling is not None), present[0] if present else None)
