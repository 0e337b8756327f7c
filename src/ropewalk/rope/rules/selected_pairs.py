"""Rules that change single pairs: CoPE-clip, p-RoPE ("proportional") and Resonance RoPE."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import RULES, Ladder, Scaling
from ropewalk.rope.values import as_whole, check_factor, is_number


@dataclass(frozen=True)
class CoPE(Scaling):
    """Slow the last `clipped` pairs by (1 + cos(pi t)) / 2, with t from 0 at the first of them to 1 at the last.

    The slowest pair does not rotate. The authors clip 20 of 64 pairs and continue training. This is clipped RoPE, not
    the contextual position encoding of the same name.
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
                cure="Pass for example 20 of 64 pairs, as the authors do.",
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


@dataclass(frozen=True)
class Proportional(Scaling):
    """p-RoPE: only the fastest fraction of the pairs rotates; the others have frequency 0.

    Unlike with a smaller rotary_dim, exponents and pairing run over the whole head.
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
                "Proportional: `partial_rotary_factor` must be between 0 and 1.",
                facts={"partial_rotary_factor": self.partial_rotary_factor},
                cure="Pass the fraction of rotated pairs.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        rotating = int(self.partial_rotary_factor * ladder.dim // 2)
        return [f / self.factor if i < rotating else 0.0 for i, f in enumerate(ladder.inv_freq())]

    def unscaled(self) -> Proportional:
        """Return the rule without its factor; the same pairs rotate."""
        return replace(self, factor=1.0)

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        if rotary_dim != head_dim:
            raise RopeError(
                "RopeConfig: Proportional pairs over the whole head, so rotary_dim must equal head_dim.",
                facts={"rotary_dim": rotary_dim, "head_dim": head_dim},
                cure="Pass the fraction as Proportional(partial_rotary_factor=...) and leave rotary_dim out.",
            )


@dataclass(frozen=True)
class Resonance(Scaling):
    """Round wavelengths to the nearest whole number of tokens, on top of the rule `of` (None: plain RoPE).

    With YaRN as `of` this is the paper's Resonance YaRN; the attention factor is that of `of`. A rounded pair repeats
    exactly, so a model trained on one full rotation meets no new angle there. Every pair is rounded, as in the
    authors' code; their theorem covers only the pairs that rotate fully within the trained length. A wavelength changes
    by at most half a token. Halves are rounded to the even number, as by `torch.round`.
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
                "Resonance: `of` must be None or a rule with the same frequencies at every length.",
                facts={"of": self.of},
                cure=f"Choose from {', '.join(known)}, or omit it for plain RoPE.",
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
