"""Methods that extend context inside attention: which relative position each query meets each key at.

Each is defined per query row: what a query at index m does depends on m and on the keys before it alone, never on how
many tokens follow or how they were fed in. So decoding from a cache of unrotated keys equals the full forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import RopeError

Rule = Callable[[Tensor], Tensor]
"""From int64 indices in the row to numbers of the same shape, or `[..., parts]`: each part of the pairs has its own."""


class Region(NamedTuple):
    """Keys n with `low(m) <= n < high(m)`, which a query at index m meets at relative position `query(m) - key(n)`.

    The regions of an extension part the keys `0 .. m` among them; what no region holds is not seen.
    `low` and `high` never fall as m grows. `key` None: every key stands at position 0, and is not rotated.
    """

    query: Rule
    key: Rule | None
    low: Rule
    high: Rule


class Retained(NamedTuple):
    """What a query sees at most, in tokens: the row's first `sinks` and the last `window`, itself among them."""

    sinks: int
    window: int

    @property
    def total(self) -> int:
        """Tokens in all."""
        return self.sinks + self.window


@dataclass(frozen=True)
class Extension:
    """A change of attention that lets a trained model read further; its weights and frequencies stay.

    A subclass registers itself in `registry` by its name, by which a config file names it; its fields are what the file
    holds of it. `remaps`: whether it changes relative positions, so that keys must be kept unrotated.
    """

    registry: ClassVar[dict[str, type[Extension]]] = {}
    remaps: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        other = Extension.registry.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise RopeError(
                "Extension: there is an extension of this name already, and config files name it.",
                facts={"name": cls.__name__, "there": other.__module__, "new": cls.__module__},
                cure="Choose another name for the class.",
            )
        Extension.registry[cls.__name__] = cls

    @property
    def retained(self) -> Retained | None:
        """The bounded part of the row that a query sees, so that a cache may forget the rest; None: all of it."""
        return None

    def regions(self) -> tuple[Region, ...]:
        """Which keys are met at which relative position."""
        raise RopeError(
            "Extension: a rule that remaps positions must define `regions`.",
            facts={"extension": self},
            cure="Define it, or set `remaps = False` for a rule that scales logits alone.",
        )

    def edges(self, begin: int, end: int, step: int) -> list[int]:
        """Where queries `begin .. end - 1` are cut into blocks of at most `step` that one pass serves well."""
        return [*range(begin, end, step), end]

    def logit_scale(self, index: Tensor) -> Tensor | float:
        """By what the logits of a query at this index are multiplied; 1.0 for most."""
        return 1.0


def check_tokens(name: str, least: int, **numbers: int) -> None:
    """Every number is whole and at least `least`, or a RopeError names the one that is not."""
    for key, value in numbers.items():
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            raise RopeError(
                f"{name}: `{key}` must be a whole number of at least {least}.",
                facts={key: value},
                cure="Lengths are in tokens.",
            )


def check_scale(name: str, scale: float) -> None:
    """What logits are multiplied by is a finite number above 0."""
    if not 0 < scale < math.inf:
        raise RopeError(
            f"{name}: `scale` must be a finite number above 0.",
            facts={"scale": scale},
            cure="1 leaves logits as they are.",
        )


def same_index(index: Tensor) -> Tensor:
    """The index itself."""
    return index


def next_index(index: Tensor) -> Tensor:
    """The index after it."""
    return index + 1


def zero_index(index: Tensor) -> Tensor:
    """The row's first index."""
    return torch.zeros_like(index)


def real(index: Tensor) -> Tensor:
    """In float64; in float32 on MPS, which has no other."""
    return index.to(torch.float32 if index.device.type == "mps" else torch.float64)


def near_and_far(window: int) -> tuple[Region, Region]:
    """Keys nearer than `window`, at their own distance, and all before them; the far region's rules are blanks."""

    def border(m: Tensor) -> Tensor:
        return (m - (window - 1)).clamp(min=0)

    return Region(same_index, same_index, border, next_index), Region(same_index, same_index, zero_index, border)


def check_log_n(name: str, trained_length: int | None) -> None:
    """`log_n` is None or a length of at least 2 tokens."""
    if trained_length is not None:
        check_tokens(name, 2, log_n=trained_length)


def log_n_factor(index: Tensor, trained_length: int) -> Tensor:
    """max(1, ln(m + 1) / ln(trained_length)) in float64: keeps attention sharp where a query sees m + 1 tokens.

    Source: Su 2021, "Entropy invariance of softmax"; as ReRoPE's reference code has it.
    """
    return ((real(index) + 1).log() / math.log(trained_length)).clamp(min=1.0)
