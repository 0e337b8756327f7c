"""Wrong position rules and scales of attention that engines were found to apply, as extensions of our own decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.rope.extensions import Extension, Region, Rule, check_scale, check_tokens, next_index, zero_index


@dataclass(frozen=True)
class ClampedPositions(Extension):
    """Positions that stop at `length - 1`, as with a table of cos and sin that is too short."""

    length: int

    def __post_init__(self) -> None:
        check_tokens("ClampedPositions", 1, length=self.length)

    def regions(self) -> tuple[Region, ...]:
        return _all_keys(lambda index: index.clamp(max=self.length - 1))


@dataclass(frozen=True)
class RestartedPositions(Extension):
    """Positions that restart at 0 after every `length` tokens, as in an engine that numbers each chunk separately.

    Keys stay visible across the border, at the distance between their positions.
    """

    length: int

    def __post_init__(self) -> None:
        check_tokens("RestartedPositions", 1, length=self.length)

    def regions(self) -> tuple[Region, ...]:
        return _all_keys(lambda index: index % self.length)


@dataclass(frozen=True)
class ShiftedPositions(Extension):
    """Positions that are too large by `by`, starting at token index `start`, as with a wrong offset of a chunk.

    Decoding is such a chunk: the prompt's positions are right, and those of the generated tokens are wrong.
    """

    start: int
    by: int

    def __post_init__(self) -> None:
        check_tokens("ShiftedPositions", 1, start=self.start)

    def regions(self) -> tuple[Region, ...]:
        return _all_keys(lambda index: index + self.by * (index >= self.start))


@dataclass(frozen=True)
class RoundedPositions(Extension):
    """Positions rounded to `bits` binary digits, as when position ids are computed in bfloat16 (8 digits)."""

    bits: int = 8

    def regions(self) -> tuple[Region, ...]:
        def rounded(index: Tensor) -> Tensor:
            step = torch.exp2((index.clamp(min=1).double().log2().floor() + 1 - self.bits).clamp(min=0))
            return ((index / step).round() * step).to(index.dtype)

        return _all_keys(rounded)


@dataclass(frozen=True)
class ScaledLogits(Extension):
    """Logits times a constant, as with a wrong scale of the softmax."""

    scale: float
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_scale("ScaledLogits", self.scale)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return self.scale


def _all_keys(rule: Rule) -> tuple[Region, ...]:
    """Return one region of all earlier keys, with positions by this rule for queries and keys."""
    return (Region(rule, rule, zero_index, next_index),)
