"""Resonance RoPE: every pair turns in a whole number of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import RULES, Ladder, Scaling


@dataclass(frozen=True)
class Resonance(Scaling):
    """Wavelengths rounded to the nearest whole number of tokens, on top of the rule `of` (None: plain RoPE).

    With `of` a YaRN this is the paper's Resonance YaRN; the attention factor stays that of `of`. A pair then repeats
    itself exactly, so that a model that has seen one whole turn meets no new angle in that pair. Every pair is rounded,
    as the authors' code does; their theorem speaks of the pairs that turn within the trained length, and for the others
    the frequency moves by less than half a token in the wavelength. Halves go to the even number, as `torch.round`
    does.
    In a Hugging Face config it becomes `longrope` with two equal lists.
    Source: Wang et al. 2024, arXiv:2403.00071; github.com/sheryc/resonance_rope, `resonance_register`.

    >>> [round(2 * math.pi / f, 9) for f in Resonance().inv_freq(Ladder(10000.0, 4, (0, 1)), None)]
    [6.0, 628.0]
    """

    of: Scaling | None = None
    rope_type: ClassVar[str] = "resonance"
    can_be_rounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.of is not None and not (isinstance(self.of, Scaling) and _can_be_rounded(type(self.of))):
            known = sorted(name for name, rule in RULES.items() if _can_be_rounded(rule))
            raise RopeError(
                "Resonance: `of` must be None or a rule whose frequencies are the same at every length.",
                facts={"of": self.of},
                cure=f"Choose from {', '.join(known)}, or leave it out for plain RoPE.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        below = ladder.inv_freq() if self.of is None else self.of.inv_freq(ladder, seq_len)
        return [2 * math.pi / round(2 * math.pi / f) for f in below]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        return 1.0 if self.of is None else self.of.attention_factor_at(ladder_max, seq_len)

    @property
    def original_length(self) -> int | None:
        return None if self.of is None else self.of.original_length

    def target_length(self, max_position_embeddings: int | None) -> int | None:
        return None if self.of is None else self.of.target_length(max_position_embeddings)


def _can_be_rounded(rule: type[Scaling]) -> bool:
    return rule.can_be_rounded and not rule.needs_seq_len
