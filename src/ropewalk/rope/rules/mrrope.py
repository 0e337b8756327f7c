"""MrRoPE: YaRN's bounds with divisors in a geometric row between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling
from ropewalk.rope.rules.checks import are_numbers, check_above_zero, check_factor, check_length
from ropewalk.rope.rules.yarn import yarn_mscale


@dataclass(frozen=True)
class MrRoPE(Scaling):
    """Fast pairs stay, slow pairs are divided by `factor`, and the divisors between them are powers of it.

    With l and h the indices of the pairs that turn `beta_fast` and `beta_slow` times within the trained length, rounded
    outward as YaRN rounds them, pair i is divided by factor^e: e = (i - l) / (h - l) for `variant="uni"`, where each
    digit of a mixed radix gets the same share, and e = (i - l)(i - l + 1) / ((h - l)(h - l + 1)) for `"pro"`, where the
    share grows with the pair. The attention factor is YaRN's, 0.1 ln(factor) + 1, unless `attention_factor` is given.
    In a Hugging Face config it becomes `longrope` with two equal lists.
    Source: "MrRoPE: mixed-radix rotary position embedding" 2026, arXiv:2601.22181, section 4;
    github.com/mattian7/mrRoPE.

    >>> rule = MrRoPE(4.0, 256, variant="uni")
    >>> plain = Ladder(10000.0, 32, tuple(range(16))).inv_freq()
    >>> [round(f / g, 2) for f, g in zip(plain, rule.inv_freq(Ladder(10000.0, 32, tuple(range(16))), None))]
    [1.0, 1.22, 1.49, 1.81, 2.21, 2.69, 3.28, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    variant: Literal["pro", "uni"] = "pro"
    rope_type: ClassVar[str] = "mrrope"

    def __post_init__(self) -> None:
        check_factor("MrRoPE", self.factor)
        check_length("MrRoPE", self.original_max_position_embeddings)
        check_above_zero("MrRoPE", attention_factor=self.attention_factor)
        if self.variant not in ("pro", "uni"):
            raise RopeError("MrRoPE: unknown variant.", facts={"variant": self.variant}, cure='Choose "pro" or "uni".')
        if not (are_numbers(self.beta_fast, self.beta_slow) and self.beta_fast >= self.beta_slow > 0):
            raise RopeError(
                "MrRoPE: `beta_fast` must not be below `beta_slow`, and both above 0.",
                facts={"beta_fast": self.beta_fast, "beta_slow": self.beta_slow},
                cure="They are turns within the trained length; the published values are 32 and 1.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        trained = self.original_max_position_embeddings
        fast, slow = (ladder.index_at(turns * 2 * math.pi / trained) for turns in (self.beta_fast, self.beta_slow))
        low, high = max(math.floor(fast), 0), min(math.ceil(slow), ladder.dim - 1)
        return [f / self.factor ** self._exponent(i, low, high) for i, f in enumerate(ladder.inv_freq())]

    def _exponent(self, index: int, low: int, high: int) -> float:
        if index >= high:
            return 1.0
        if index <= low:
            return 0.0
        steps, width = index - low, high - low
        return steps / width if self.variant == "uni" else steps * (steps + 1) / (width * (width + 1))

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        return yarn_mscale(self.factor, 1.0) if self.attention_factor is None else float(self.attention_factor)

    @property
    def original_length(self) -> int | None:
        return self.original_max_position_embeddings

    def target_length(self, max_position_embeddings: int | None) -> int | None:
        return int(self.factor * self.original_max_position_embeddings)
