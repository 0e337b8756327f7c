"""The position rules that change attention, each with its source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.attention.extensions.base import (
    Extension,
    Region,
    Retained,
    check_log_n,
    check_scale,
    check_tokens,
    log_n_factor,
    near_and_far,
    next_index,
    real,
    same_index,
    zero_index,
)
from ropewalk.errors import RopeError

LOGIT_SCALE = (0.1 * math.log(2) + 1) ** 2
"""Of the released code, which multiplies queries and keys each by 0.1 ln 2 + 1."""


@dataclass(frozen=True)
class STRING(Extension):
    """Distances from `shift` on become smaller by `shift - window`, so that rare large ones are never met.

    Relative position: d = m - n where d < shift, else d - shift + window. Logits are multiplied by `scale`. The paper
    uses it within the trained length L, with shift L / 3 and window 128; with shift = L it reaches 2 L - window tokens.
    The released prefill counts the key at d = shift twice, its decoding does not: here each key counts once.
    Source: An et al. 2024, arXiv:2410.18745, section 4.1; github.com/HKUNLP/STRING.
    """

    shift: int
    window: int
    scale: float = LOGIT_SCALE

    def __post_init__(self) -> None:
        check_tokens("STRING", 1, shift=self.shift, window=self.window)
        if self.window > self.shift:
            raise RopeError(
                "STRING: `window` must not exceed `shift`.",
                facts={"window": self.window, "shift": self.shift},
                cure="The authors shift by a third of the trained length and keep 128 tokens.",
            )
        check_scale("STRING", self.scale)

    def regions(self) -> tuple[Region, ...]:
        back = self.shift - self.window
        near, far = near_and_far(self.shift)
        return near, far._replace(query=lambda m: m - back)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return self.scale


@dataclass(frozen=True)
class LaMPE(Extension):
    """Keys nearer than `window` at their distance; farther ones at their places on a row of `mapped` for `length`.

    With p(i) = floor(i mapped / (length - 1)), a far key stands p(m) - p(n) + window - p(window) - 1 back, so that the
    two parts join. Logits are multiplied by `scale`. The paper chooses `mapped` from the length at hand by a sigmoid
    that is fitted to the model; here it is fixed for `length`, so that decoding equals the full forward.
    Source: 2025, arXiv:2508.02308, section 3; github.com/scar-on/LaMPE (512 exact tokens, 1,536 mapped, of 4,096).
    """

    window: int
    mapped: int
    length: int
    scale: float = LOGIT_SCALE

    def __post_init__(self) -> None:
        check_tokens("LaMPE", 1, window=self.window, mapped=self.mapped)
        check_tokens("LaMPE", 2, length=self.length)
        check_scale("LaMPE", self.scale)

    def regions(self) -> tuple[Region, ...]:
        mapped, last = self.mapped, self.length - 1
        shift = self.window - self.window * mapped // last - 1
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m * mapped // last + shift, key=lambda n: n * mapped // last)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return self.scale


@dataclass(frozen=True)
class DPE(Extension):
    """Keys nearer than `window` tokens at their distance; farther ones in groups, by `divisors` for parts of the pairs.

    The pairs, from the fastest to the slowest, are cut into as many equal parts as there are divisors (the paper: 8).
    Those of a part with divisor s stand floor(m / s) - floor(n / s) + window - floor(window / s) apart: `SelfExtend`,
    part by part. The divisors belong to a model and a length: the paper finds them by retrieval, one part after the
    other. All pairs of a part are taken in every head; the paper's choice of some of them in each head is not built.
    Source: Lu et al. 2025, arXiv:2504.18857, section 3; github.com/LuLuLuyi/DPE, which holds the divisors of
    Llama-3-8B, Llama-3.1-8B, Mistral-7B-v0.2 and Qwen2.5-7B for 131,072 tokens (`window` 1,024).

    >>> DPE((2, 8, 2, 8, 32, 32, 32, 4), window=1024).divisors[-1]
    4
    """

    divisors: tuple[int, ...]
    window: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "divisors", tuple(self.divisors))
        if not self.divisors:
            raise RopeError(
                "DPE: `divisors` must name one number for each part of the pairs.",
                facts={"divisors": self.divisors},
                cure="Give eight, as the paper does.",
            )
        for place, divisor in enumerate(self.divisors):
            check_tokens("DPE", 1, **{f"divisors[{place}]": divisor})
        check_tokens("DPE", 1, window=self.window)

    def regions(self) -> tuple[Region, ...]:
        def places(index: Tensor) -> Tensor:
            return index[..., None] // index.new_tensor(self.divisors)

        def shifted(index: Tensor) -> Tensor:
            shifts = [self.window - self.window // divisor for divisor in self.divisors]
            return places(index) + index.new_tensor(shifts)

        near, far = near_and_far(self.window)
        return near, far._replace(query=shifted, key=places)


@dataclass(frozen=True)
class DroPE(Extension):
    """Logits times 1 + coefficient ln(factor), for a model whose rope was taken out and that was tuned without it.

    `factor` is target / trained length, at least 1. The paper's coefficients are 0.412 and 0.103, by model. An encoding
    that adds to scores refuses it.
    Source: Gelberg et al. 2025, "Extending the context of pretrained LLMs by dropping their positional embeddings".

    >>> import torch
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
        check_tokens("DualChunk", 1, chunk=self.chunk, trained_length=self.trained_length)
        check_log_n("DualChunk", self.log_n)
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
            Region(within, within, begins, next_index),
            Region(lambda m: (size + m % size).clamp(max=last), within, before, begins),
            Region(lambda m: torch.full_like(m, last), within, zero_index, before),
        )

    def edges(self, begin: int, end: int, step: int) -> list[int]:
        chunks = range(-(-begin // self.chunk) * self.chunk, end, self.chunk)
        starts = sorted({begin, *(start for start in chunks if start > begin)})
        cut = [edge for a, b in zip(starts, [*starts[1:], end], strict=True) for edge in range(a, b, step)]
        return [*cut, end]

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n_factor(index, self.log_n)


@dataclass(frozen=True)
class JetLong(Extension):
    """Keys nearer than `window` tokens at their distance; farther ones at floor(m / group) - floor(n / group).

    Self-Extend without the shift that joins its two parts. The released code takes group = ceil(length / trained
    length) from the length at hand, so that keys read in a prefill and in decoding may be grouped differently; here the
    group is fixed, and decoding equals the full forward.
    Source: "Jet-Long: efficient long-context extension with dynamic bifocal RoPE" 2026, arXiv:2604.13010;
    github.com/jet-ai-projects/Jet-Long.
    """

    group: int
    window: int

    def __post_init__(self) -> None:
        check_tokens("JetLong", 1, group=self.group, window=self.window)

    def regions(self) -> tuple[Region, ...]:
        group = self.group
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m // group, key=lambda n: n // group)


@dataclass(frozen=True)
class LogN(Extension):
    """Logits times max(1, ln(m + 1) / ln(trained_length)) for a query at index m; relative positions stay.

    `trained_length` in tokens, at least 2. An encoding that adds to scores (ALiBi, T5's, ...) refuses it: it is defined
    for q.k. Source: Su 2021; Chiang and Cholak 2022, arXiv:2202.12172.

    >>> import torch
    >>> LogN(trained_length=1024).logit_scale(torch.tensor([0, 1023, 2**20 - 1])).tolist()
    [1.0, 1.0, 2.0]
    """

    trained_length: int
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_tokens("LogN", 2, trained_length=self.trained_length)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return log_n_factor(index, self.trained_length)


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
        check_tokens("ReRoPE", 1, window=self.window)
        check_log_n("ReRoPE", self.log_n)
        if not 0.0 <= self.leak <= 1.0:
            raise RopeError(
                "ReRoPE: `leak` must lie between 0 and 1.",
                facts={"leak": self.leak},
                cure="0 cuts distances off at the window; 1 is plain RoPE.",
            )

    def regions(self) -> tuple[Region, ...]:
        window, leak = self.window, self.leak
        near, far = near_and_far(window)
        if not leak:
            return near, far._replace(query=lambda m: torch.full_like(m, window), key=None)
        return near, far._replace(query=lambda m: leak * real(m) + (1 - leak) * window, key=lambda n: leak * real(n))

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n_factor(index, self.log_n)


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
        check_tokens("SelfExtend", 1, group=self.group, window=self.window)
        check_log_n("SelfExtend", self.log_n)

    def regions(self) -> tuple[Region, ...]:
        group, shift = self.group, self.window - self.window // self.group
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m // group + shift, key=lambda n: n // group)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n_factor(index, self.log_n)


@dataclass(frozen=True)
class StreamingLLM(Extension):
    """The first `sinks` tokens and the last `window`: keeps a stream going in bounded memory; does not extend context.

    Positions are those in the cache: a query meets the window's keys at m - n, and a sink n at
    min(m, sinks + window - 1) - n. What lies between is not seen, and `KVCache.drop` may forget it.
    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.2.
    """

    window: int
    sinks: int = 4

    def __post_init__(self) -> None:
        check_tokens("StreamingLLM", 1, window=self.window)
        check_tokens("StreamingLLM", 0, sinks=self.sinks)

    @property
    def retained(self) -> Retained:
        """The sinks and the window."""
        return Retained(self.sinks, self.window)

    def regions(self) -> tuple[Region, ...]:
        sinks, last = self.sinks, self.sinks + self.window - 1
        near, far = near_and_far(self.window)
        if not sinks:
            return (near,)
        return near, far._replace(
            query=lambda m: m.clamp(max=last), key=same_index, high=lambda m: far.high(m).clamp(max=sinks)
        )
