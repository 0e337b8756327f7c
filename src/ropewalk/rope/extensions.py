"""Position rules in attention, which let a trained model process longer texts: the relative position of query and key.

Each rule is defined per query: the result for a query at index m depends only on m and on the keys up to it, not on the
number of tokens that follow or on how they were divided into calls. So decoding from a cache of unrotated keys equals
the full forward. A subclass of `Extension` registers itself: `Attention`, `DecoderConfig` and saved configs accept its
name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.values import check_whole


def __getattr__(name: str) -> Any:
    """Return a registered rule by its name."""
    if name in Extension.registry:
        return Extension.registry[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Rule = Callable[[Tensor], Tensor]
"""From int64 indices in the row to numbers of the same shape."""


class Region(NamedTuple):
    """Keys n with `low(m) <= n < high(m)`, visible to a query at index m at relative position `query(m) - key(n)`.

    The regions of an extension are disjoint parts of the keys `0 .. m`; a key in no region is not visible. `low` and
    `high` never decrease as m grows. `key` None: every key has position 0 and is not rotated.
    """

    query: Rule
    key: Rule | None
    low: Rule
    high: Rule


@dataclass(frozen=True)
class Extension:
    """A change of attention for longer texts, with the trained model's weights and frequencies unchanged.

    Config files contain its name in `registry` and its fields. `remaps`: whether it changes relative positions, so that
    keys must be kept unrotated.
    """

    registry: ClassVar[dict[str, type[Extension]]] = {}
    remaps: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        other = Extension.registry.get(cls.__name__)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise RopeError(
                "Extension: an extension with this name exists, and config files identify extensions by name.",
                facts={"name": cls.__name__, "existing": other.__module__, "new": cls.__module__},
                cure="Choose a different name for the class.",
            )
        Extension.registry[cls.__name__] = cls

    def regions(self) -> tuple[Region, ...]:
        """Return the keys visible to a query, with their relative positions."""
        raise RopeError(
            "Extension: a rule that remaps positions must define `regions`.",
            facts={"extension": self},
            cure="Define `regions`, or set `remaps = False` for a rule that only scales logits.",
        )

    def logit_scale(self, index: Tensor) -> Tensor | float:
        """Return the factor of the logits of queries at these indices: 1.0, or with a field `log_n` that of log-n.

        This is max(1, ln(m + 1) / ln(log_n)) in float64, which keeps attention sharp over m + 1 tokens.
        Source: Su 2021, "Entropy invariance of softmax", in the form of ReRoPE's reference code.
        """
        trained: int | None = getattr(self, "log_n", None)
        if trained is None:
            return 1.0
        real = index.to(torch.float32 if index.device.type == "mps" else torch.float64)  # MPS has no float64
        return ((real + 1).log() / math.log(trained)).clamp(min=1.0)


def same_index(index: Tensor) -> Tensor:
    """Return the index."""
    return index


def next_index(index: Tensor) -> Tensor:
    """Return the following index."""
    return index + 1


def zero_index(index: Tensor) -> Tensor:
    """Return the row's first index."""
    return torch.zeros_like(index)


def near_and_far(window: int) -> tuple[Region, Region]:
    """Return two regions: keys nearer than `window`, at their own distance, and earlier keys (a template)."""

    def border(m: Tensor) -> Tensor:
        return (m - (window - 1)).clamp(min=0)

    return Region(same_index, same_index, border, next_index), Region(same_index, same_index, zero_index, border)


@dataclass(frozen=True)
class LaMPE(Extension):
    """LaMPE: keys nearer than `window` keep their distance; `length` positions of farther ones map to `mapped`.

    With p(i) = floor(i mapped / (length - 1)), a far key is at distance p(m) - p(n) + window - p(window) - 1, which
    joins both parts; logits times (0.1 ln 2 + 1)^2, as in the released code. The paper chooses `mapped` by a sigmoid of
    the current length. Here `mapped` is fixed for `length`, so that decoding equals the full forward.
    Source: 2025, arXiv:2508.02308, section 3; github.com/scar-on/LaMPE (512 exact tokens, 1,536 mapped, of 4,096).

    >>> import torch
    >>> far = LaMPE(window=32, mapped=96, length=1024).regions()[1]
    >>> (far.query(torch.tensor(900)) - far.key(torch.tensor(100))).item()  # 800 tokens back
    103
    """

    window: int
    mapped: int
    length: int

    def __post_init__(self) -> None:
        check_whole("LaMPE", optional=False, window=self.window, mapped=self.mapped)
        check_whole("LaMPE", least=2, optional=False, length=self.length)

    def regions(self) -> tuple[Region, ...]:
        mapped, last = self.mapped, self.length - 1
        shift = self.window - self.window * mapped // last - 1
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m * mapped // last + shift, key=lambda n: n * mapped // last)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return (0.1 * math.log(2) + 1) ** 2


@dataclass(frozen=True)
class DualChunk(Extension):
    """Dual chunk attention: positions restart in each chunk, and no distance exceeds the trained length.

    With chunk size s and trained length c, a query at m meets a key at n of its own chunk at m - n, of the previous
    chunk at min(s + m mod s, c - 1) - n mod s, and of earlier chunks at c - 1 - n mod s. So distances below c - s
    across a chunk's edge are exact. `log_n` as in `ReRoPE`.
    Source: An et al. 2024, arXiv:2402.17463, section 3.1, eq. 3-8 (the paper's form; its code has chunk 3/4 c).

    >>> import torch
    >>> far = DualChunk(chunk=192, trained_length=256).regions()[2]
    >>> (far.query(torch.tensor(900)) - far.key(torch.tensor(100))).item()  # 800 tokens back
    155
    """

    chunk: int
    trained_length: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        check_whole("DualChunk", optional=False, chunk=self.chunk, trained_length=self.trained_length)
        check_whole("DualChunk", least=2, log_n=self.log_n)
        if self.chunk >= self.trained_length:
            raise RopeError(
                "DualChunk: `chunk` must be less than the trained length.",
                facts={"chunk": self.chunk, "trained_length": self.trained_length},
                cure="Choose for example three quarters of the trained length, as the authors do.",
            )

    def regions(self) -> tuple[Region, ...]:
        size, last = self.chunk, self.trained_length - 1

        def begins(m: Tensor) -> Tensor:
            return m // size * size

        def before(m: Tensor) -> Tensor:
            return (m // size * size - size).clamp(min=0)

        def within(n: Tensor) -> Tensor:
            return n % size

        return (
            Region(within, within, begins, next_index),
            Region(lambda m: (size + m % size).clamp(max=last), within, before, begins),
            Region(lambda m: torch.full_like(m, last), within, zero_index, before),
        )


@dataclass(frozen=True)
class ReRoPE(Extension):
    """ReRoPE: distances are limited to `window`.

    Relative position: min(m - n, window). `log_n`: the trained length for the factor of `logit_scale`, or None.
    Source: Su 2023, "ReRoPE" and its reference code (`min(m - n, w)`, log-n in its results).

    >>> import torch
    >>> far = ReRoPE(window=64).regions()[1]
    >>> (far.query(torch.tensor([900])) - (far.key(torch.tensor([100])) if far.key else 0)).tolist()  # 800 tokens back
    [64]
    """

    window: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        check_whole("ReRoPE", optional=False, window=self.window)
        check_whole("ReRoPE", least=2, log_n=self.log_n)

    def regions(self) -> tuple[Region, ...]:
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: torch.full_like(m, self.window), key=None)


@dataclass(frozen=True)
class SelfExtend(Extension):
    """Self-Extend: keys nearer than `window` tokens keep their distance; farther positions form groups of `group`.

    Relative position: d = m - n if d < window, else floor(m / group) - floor(n / group) + window
    - floor(window / group). The largest, at m = N - 1, should stay within the trained length; the paper advises
    half to two thirds of it. `log_n` as in `ReRoPE`.
    Source: Jin et al. 2024, arXiv:2401.01325, section 3 and algorithm 1.

    >>> import torch
    >>> far = SelfExtend(group=8, window=64).regions()[1]
    >>> (far.query(torch.tensor(900)) - far.key(torch.tensor(100))).item()  # 800 tokens back
    156
    """

    group: int
    window: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        check_whole("SelfExtend", optional=False, group=self.group, window=self.window)
        check_whole("SelfExtend", least=2, log_n=self.log_n)

    def regions(self) -> tuple[Region, ...]:
        group, shift = self.group, self.window - self.window // self.group
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m // group + shift, key=lambda n: n // group)
