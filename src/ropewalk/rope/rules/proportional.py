"""p-RoPE: only the fastest pairs turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling
from ropewalk.rope.rules.checks import check_factor
from ropewalk.rope.values import is_number


@dataclass(frozen=True)
class Proportional(Scaling):
    """p-RoPE: only the fastest fraction of the pairs turns, the others stand still (frequency 0) over the whole head.

    Unlike a smaller rotary_dim, the exponents run over head_dim and the pairing over the whole head.
    Source: Barbero et al. 2024, arXiv:2410.06205; Gemma 4's `proportional`.

    >>> Proportional(partial_rotary_factor=0.5).inv_freq(Ladder(10000.0, 8, (0, 1, 2, 3)), None)
    [1.0, 0.1, 0.0, 0.0]
    """

    partial_rotary_factor: float = 1.0
    factor: float = 1.0
    rope_type: ClassVar[str] = "proportional"
    hf_names: ClassVar[tuple[str, ...]] = ("proportional",)
    optional_keys: ClassVar[tuple[str, ...]] = ("factor", "partial_rotary_factor")
    can_be_extended: ClassVar[bool] = False
    can_be_rounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_factor("Proportional", self.factor)
        if not (is_number(self.partial_rotary_factor) and 0 <= self.partial_rotary_factor <= 1):
            raise RopeError(
                "Proportional: `partial_rotary_factor` must lie between 0 and 1.",
                facts={"partial_rotary_factor": self.partial_rotary_factor},
                cure="It is the fraction of the pairs that turn.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        turning = int(self.partial_rotary_factor * ladder.dim // 2)
        return [f / self.factor if i < turning else 0.0 for i, f in enumerate(ladder.inv_freq())]

    def unscaled(self) -> Proportional:
        """The pairs that stand still keep standing."""
        return replace(self, factor=1.0)

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        if rotary_dim != head_dim:
            raise RopeError(
                "RopeConfig: Proportional pairs over the whole head, so rotary_dim must equal head_dim.",
                facts={"rotary_dim": rotary_dim, "head_dim": head_dim},
                cure="Say the fraction in Proportional(partial_rotary_factor=...) and leave rotary_dim out.",
            )
