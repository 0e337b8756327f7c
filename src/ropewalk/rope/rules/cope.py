"""CoPE-clip: the slowest pairs fade to a standstill."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling
from ropewalk.rope.values import as_whole


@dataclass(frozen=True)
class CoPE(Scaling):
    """The last `clipped` pairs are slowed by (1 + cos(pi t)) / 2, t from 0 at the first of them to 1 at the last.

    The slowest pair stands still, as a pair of a head without positions does. The authors clip 20 of 64 pairs and train
    on; "CoPE" here is clipped RoPE, and not the contextual position encoding of the same name.
    Source: "CoPE: clipped RoPE as a scalable free lunch for long context LLMs" 2026, arXiv:2602.05258, section 3.

    >>> CoPE(2).inv_freq(Ladder(10000.0, 8, (0, 1, 2, 3)), None)
    [1.0, 0.1, 0.01, 0.0]
    """

    clipped: int
    rope_type: ClassVar[str] = "cope"
    can_be_rounded: ClassVar[bool] = False
    can_be_extended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        clipped = as_whole(self.clipped)
        if clipped is None or clipped < 2:
            raise RopeError(
                "CoPE: `clipped` must be a whole number of pairs of at least 2.",
                facts={"clipped": self.clipped},
                cure="The authors clip 20 of 64 pairs.",
            )

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        if self.clipped > rotary_dim // 2:
            raise RopeError(
                "RopeConfig: CoPE clips more pairs than there are.",
                facts={"clipped": self.clipped, "pairs": rotary_dim // 2},
                cure="Clip about a third of them.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        plain = ladder.inv_freq()
        first = len(plain) - self.clipped
        return [f * self._share(i - first) for i, f in enumerate(plain)]

    def _share(self, place: int) -> float:
        if place <= 0:
            return 1.0
        return 0.0 if place == self.clipped - 1 else (1 + math.cos(math.pi * place / (self.clipped - 1))) / 2
