"""Positions as engines have been seen to get them wrong: held at a length, or begun again there."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.attention.extensions import Extension
from ropewalk.attention.extensions.base import Region, Rule, check_tokens, next_index, zero_index


@dataclass(frozen=True)
class ClampedPositions(Extension):
    """Every position from `length` on is `length - 1`, as with a table of cos and sin that is too short."""

    length: int

    def __post_init__(self) -> None:
        check_tokens("ClampedPositions", 1, length=self.length)

    def regions(self) -> tuple[Region, ...]:
        return _all_keys(lambda index: index.clamp(max=self.length - 1))


@dataclass(frozen=True)
class RestartedPositions(Extension):
    """Positions begin again at 0 after every `length` tokens, as where a chunk's own numbering is taken for the row's.

    Keys stay visible across the border, at the distance that their positions give.
    """

    length: int

    def __post_init__(self) -> None:
        check_tokens("RestartedPositions", 1, length=self.length)

    def regions(self) -> tuple[Region, ...]:
        return _all_keys(lambda index: index % self.length)


def _all_keys(rule: Rule) -> tuple[Region, ...]:
    """One region of every earlier key, at positions by this rule on both sides."""
    return (Region(rule, rule, zero_index, next_index),)
