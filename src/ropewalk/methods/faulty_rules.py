"""Wrong rules that engines were found to apply: positions, scales of attention, and a factor for each request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ropewalk.rope.extensions import Extension, Region, next_index, zero_index
from ropewalk.rope.scaling import Ladder, Scaling
from ropewalk.rope.values import check_positive, check_whole


@dataclass(frozen=True)
class FaultyPositions(Extension):
    """Positions that are right for the first `start` tokens, and wrong after them by one of these faults.

    - "held": they stop at `start - 1`, as with a table of cos and sin that is too short.
    - "restarted": they restart at 0 after every `start` tokens, as in an engine that numbers each chunk separately.
      Keys stay visible across the border, at the distance between their positions.
    - "shifted": they are too large by `by`, as with a wrong offset of a chunk. Decoding is such a chunk: the prompt's
      positions are right, and those of the generated tokens are wrong.
    - "rounded": they have as many binary digits as `start - 1`, as when they are computed in bfloat16 (256).
    """

    fault: Literal["held", "restarted", "shifted", "rounded"]
    start: int
    by: int = 0

    def __post_init__(self) -> None:
        check_whole("FaultyPositions", optional=False, start=self.start)

    def position(self, index: Tensor) -> Tensor:
        """Return the positions of tokens at these indices in the row."""
        if self.fault == "held":
            return index.clamp(max=self.start - 1)
        if self.fault == "restarted":
            return index % self.start
        if self.fault == "shifted":
            return index + self.by * (index >= self.start)
        step = (torch.exp2(index.double().log2().floor() + 1) / self.start).clamp(min=1)
        return ((index / step).round() * step).to(index.dtype)

    def regions(self) -> tuple[Region, ...]:
        return (Region(self.position, self.position, zero_index, next_index),)


@dataclass(frozen=True)
class ScaledLogits(Extension):
    """Logits times a constant, as with a wrong scale of the softmax."""

    scale: float
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive("ScaledLogits", scale=self.scale)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return self.scale


@dataclass(frozen=True)
class ByRequest(Scaling):
    """A rule with the smallest factor of 1, 2, 4, ... that covers each request, in place of its own (vLLM #53964).

    Keys in a cache that requests share then have the frequencies of the request that wrote them.
    """

    of: Any
    needs_seq_len: ClassVar[bool] = True

    @property
    def original_length(self) -> int | None:
        length: int | None = self.of.original_length
        return length

    def _rule(self, seq_len: int | None) -> Scaling | None:
        factor = 1
        while factor * self.of.original_length < (seq_len or 1):
            factor *= 2
        return replace(self.of, factor=min(float(factor), self.of.factor)) if factor > 1 else None

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        rule = self._rule(seq_len)
        return ladder.inv_freq() if rule is None else rule.inv_freq(ladder, seq_len)

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        rule = self._rule(seq_len)
        return 1.0 if rule is None else rule.attention_factor_at(ladder_max, seq_len)
