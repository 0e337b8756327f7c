"""Methods that extend context inside attention: which relative position each query meets each key at.

Each is defined per query row: what a query at index m does depends on m and on the keys before it alone, never on how
many tokens follow or how they were fed in. So decoding from a cache of unrotated keys equals the full forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import RopeError

Rule = Callable[[Tensor], Tensor]
"""From int64 indices in the row to numbers of the same shape."""


class Region(NamedTuple):
    """Keys n with `low(m) <= n < high(m)`, which a query at index m meets at relative position `query(m) - key(n)`.

    The regions of an extension part the keys `0 .. m` among them; what no region holds is not seen.
    `low` and `high` never fall as m grows. `key` None: every key stands at position 0, and is not rotated.
    """

    query: Rule
    key: Rule | None
    low: Rule
    high: Rule


@dataclass(frozen=True)
class Extension:
    """A change of attention that lets a trained model read further; its weights and frequencies stay.

    `attends_to_all`: whether every earlier token is still seen. `remaps`: whether it changes relative positions, so
    that keys must be kept unrotated.
    """

    attends_to_all: ClassVar[bool] = True
    remaps: ClassVar[bool] = True

    def regions(self) -> tuple[Region, ...]:
        """Which keys are met at which relative position."""
        raise AssertionError("each remapping extension says its own")

    def edges(self, begin: int, end: int, step: int) -> list[int]:
        """Where queries `begin .. end - 1` are cut into blocks of at most `step` that one pass serves well."""
        return [*range(begin, end, step), end]

    def logit_scale(self, index: Tensor) -> Tensor | float:
        """By what the logits of a query at this index are multiplied; 1.0 for most."""
        return 1.0


def _at_least(name: str, least: int, **numbers: int) -> None:
    for key, value in numbers.items():
        if not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            raise RopeError(
                f"{name}: `{key}` must be a whole number of at least {least}.",
                facts={key: value},
                cure="Lengths are in tokens.",
            )


def _same(index: Tensor) -> Tensor:
    return index


def _next(index: Tensor) -> Tensor:
    return index + 1


def _zero(index: Tensor) -> Tensor:
    return torch.zeros_like(index)


def log_n(index: Tensor, trained_length: int) -> Tensor:
    """max(1, ln(m + 1) / ln(trained_length)) in float64: keeps attention sharp where a query sees m + 1 tokens.

    Source: Su 2021, "Entropy invariance of softmax"; as ReRoPE's reference code has it.
    """
    return ((_real(index) + 1).log() / math.log(trained_length)).clamp(min=1.0)


def _real(index: Tensor) -> Tensor:
    """In float64; in float32 on MPS, which has no other."""
    return index.to(torch.float32 if index.device.type == "mps" else torch.float64)


@dataclass(frozen=True)
class LogN(Extension):
    """Logits times max(1, ln(m + 1) / ln(trained_length)) for a query at index m; relative positions stay.

    `trained_length` in tokens, at least 2. An encoding that adds to scores (ALiBi, T5's, ...) refuses it: it is defined
    for q.k. Source: Su 2021; Chiang and Cholak 2022, arXiv:2202.12172.

    >>> LogN(trained_length=1024).logit_scale(torch.tensor([0, 1023, 2**20 - 1])).tolist()
    [1.0, 1.0, 2.0]
    """

    trained_length: int
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _at_least("LogN", 2, trained_length=self.trained_length)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return log_n(index, self.trained_length)


@dataclass(frozen=True)
class DroPE(Extension):
    """Logits times 1 + coefficient ln(factor), for a model whose rope was taken out and that was tuned without it.

    `factor` is target / trained length, at least 1. The paper's coefficients are 0.412 and 0.103, by model. An encoding
    that adds to scores refuses it.
    Source: Gelberg et al. 2025, "Extending the context of pretrained LLMs by dropping their positional embeddings".

    >>> DroPE(factor=1.0).logit_scale(torch.tensor([5]))
    1.0
    """

    factor: float
    coefficient: float = 0.412
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and self.coefficient >= 0 and math.isfinite(self.factor * self.coefficient)):
            raise RopeError(
                "DroPE: `factor` must be at least 1 and `coefficient` at least 0.",
                facts={"factor": self.factor, "coefficient": self.coefficient},
                cure="factor is target / trained length.",
            )

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 + self.coefficient * math.log(self.factor)


@dataclass(frozen=True)
class ReRoPE(Extension):
    """Distances are cut at `window`; with `leak` they grow on beyond it, by `leak` for each token.

    Relative position: d = m - n where d < window, else window + leak (d - window). `log_n`: the trained length for
    the logits' factor max(1, ln(m + 1) / ln(log_n)), or None. No distance beyond `window` ever turns up without a leak.
    Source: Su 2023, "ReRoPE" and its reference code (`min(m - n, w)`, log-n in its results; "Leaky ReRoPE" has 1 / k).
    """

    window: int
    leak: float = 0.0
    log_n: int | None = None

    def __post_init__(self) -> None:
        _at_least("ReRoPE", 1, window=self.window)
        _check_log_n("ReRoPE", self.log_n)
        if not 0.0 <= self.leak <= 1.0:
            raise RopeError(
                "ReRoPE: `leak` must lie between 0 and 1.",
                facts={"leak": self.leak},
                cure="0 cuts distances off at the window; 1 is plain RoPE.",
            )

    def regions(self) -> tuple[Region, ...]:
        window, leak = self.window, self.leak
        near, far = _near_and_far(window)
        if not leak:
            return near, far._replace(query=lambda m: torch.full_like(m, window), key=None)
        return near, far._replace(query=lambda m: leak * _real(m) + (1 - leak) * window, key=lambda n: leak * _real(n))

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n(index, self.log_n)


@dataclass(frozen=True)
class SelfExtend(Extension):
    """Keys nearer than `window` tokens as ever; positions of farther ones in groups of `group`.

    Relative position: d = m - n where d < window, else floor(m / group) - floor(n / group) + window
    - floor(window / group). The largest, at m = N - 1, should stay within the trained length; the paper advises
    half to two thirds of it. `log_n` as in `ReRoPE`.
    Source: Jin et al. 2024, arXiv:2401.01325, section 3 and algorithm 1.
    """

    group: int
    window: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        _at_least("SelfExtend", 1, group=self.group, window=self.window)
        _check_log_n("SelfExtend", self.log_n)

    def regions(self) -> tuple[Region, ...]:
        group, shift = self.group, self.window - self.window // self.group
        near, far = _near_and_far(self.window)
        return near, far._replace(query=lambda m: m // group + shift, key=lambda n: n // group)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n(index, self.log_n)


@dataclass(frozen=True)
class DualChunk(Extension):
    """Dual chunk attention: positions count anew in each chunk, and none exceeds the trained length.

    With chunk size s and trained length c, a query at m meets a key at n of its own chunk at m - n; of the chunk
    before at min(s + m mod s, c - 1) - n mod s; of earlier chunks at c - 1 - n mod s. So distances below c - s across a
    chunk's edge are exact. `log_n` as in `ReRoPE`.
    Source: An et al. 2024, arXiv:2402.17463, section 3.1, eq. 3-8 (the paper's form; its code has chunk 3/4 c).
    """

    chunk: int
    trained_length: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        _at_least("DualChunk", 1, chunk=self.chunk, trained_length=self.trained_length)
        _check_log_n("DualChunk", self.log_n)
        if self.chunk >= self.trained_length:
            raise RopeError(
                "DualChunk: `chunk` must be less than the trained length.",
                facts={"chunk": self.chunk, "trained_length": self.trained_length},
                cure="Three quarters of the trained length is the authors' choice.",
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
            Region(within, within, begins, _next),
            Region(lambda m: (size + m % size).clamp(max=last), within, before, begins),
            Region(lambda m: torch.full_like(m, last), within, _zero, before),
        )

    def edges(self, begin: int, end: int, step: int) -> list[int]:
        chunks = range(-(-begin // self.chunk) * self.chunk, end, self.chunk)
        starts = sorted({begin, *(start for start in chunks if start > begin)})
        cut = [edge for a, b in zip(starts, [*starts[1:], end], strict=True) for edge in range(a, b, step)]
        return [*cut, end]

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n(index, self.log_n)


@dataclass(frozen=True)
class StreamingLLM(Extension):
    """The first `sinks` tokens and the last `window`: keeps a stream going in bounded memory; does not extend context.

    Positions are those in the cache: a query meets the window's keys at m - n, and a sink n at
    min(m, sinks + window - 1) - n. What lies between is not seen, and `KVCache.drop` may forget it.
    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.2.
    """

    window: int
    sinks: int = 4
    attends_to_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _at_least("StreamingLLM", 1, window=self.window)
        _at_least("StreamingLLM", 0, sinks=self.sinks)

    @property
    def kept(self) -> int:
        """Tokens that a query sees at most."""
        return self.sinks + self.window

    def regions(self) -> tuple[Region, ...]:
        sinks, last = self.sinks, self.sinks + self.window - 1
        near, far = _near_and_far(self.window)
        if not sinks:
            return (near,)
        return near, far._replace(
            query=lambda m: m.clamp(max=last), key=_same, high=lambda m: far.high(m).clamp(max=sinks)
        )


def _near_and_far(window: int) -> tuple[Region, Region]:
    """Keys nearer than `window`, at their own distance, and all before them; the far region's rules are blanks."""

    def border(m: Tensor) -> Tensor:
        return (m - (window - 1)).clamp(min=0)

    return Region(_same, _same, border, _next), Region(_same, _same, _zero, border)


def _check_log_n(name: str, trained_length: int | None) -> None:
    if trained_length is not None:
        _at_least(name, 2, log_n=trained_length)
