"""LongRoPE: one divisor for each pair."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling
from ropewalk.rope.values import (
    TRAINED_KEY,
    Block,
    check_above_zero,
    check_factor,
    check_length,
    check_trained_ratio,
    is_number,
)


@dataclass(frozen=True)
class LongRoPE(Scaling):
    """One divisor per pair, found by search: `short_factor` up to the trained length, `long_factor` beyond it.

    The attention factor is Phi-3.5-MoE's `short_mscale` or `long_mscale` if given; else `attention_factor`; else
    sqrt(1 + ln(factor) / ln(trained)) at every length. `factor` defaults to max_position_embeddings / trained.
    Source: Ding et al. 2024, arXiv:2402.13753, eq. 3 and section 3.3.

    >>> rule = LongRoPE((1.0, 1.0), (1.0, 4.0), original_max_position_embeddings=1024, factor=4.0)
    >>> [rule.inv_freq(Ladder(10000.0, 4, (0, 1)), length) for length in (1024, 4096)]
    [[1.0, 0.01], [1.0, 0.0025]]
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    rope_type: ClassVar[str] = "longrope"
    hf_names: ClassVar[tuple[str, ...]] = ("longrope", "su")
    required_keys: ClassVar[tuple[str, ...]] = ("short_factor", "long_factor", TRAINED_KEY)
    optional_keys: ClassVar[tuple[str, ...]] = ("factor", "attention_factor", "short_mscale", "long_mscale")
    needs_seq_len: ClassVar[bool] = True
    reads_max_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_length("LongRoPE", self.original_max_position_embeddings)
        if self.factor is not None:
            check_factor("LongRoPE", self.factor)
        check_above_zero("LongRoPE", attention_factor=self.attention_factor)
        check_above_zero("LongRoPE", short_mscale=self.short_mscale, long_mscale=self.long_mscale)
        if self.original_max_position_embeddings == 1:
            raise RopeError(
                "LongRoPE: `original_max_position_embeddings` must be above 1: the attention factor divides by its ln.",
                facts={"original_max_position_embeddings": 1},
                cure="Pass the length the model was trained at before extension.",
            )
        for name in ("short_factor", "long_factor"):
            given = getattr(self, name)
            factors = tuple(given) if isinstance(given, Iterable) else (None,)
            if not all(is_number(f) and f > 0 for f in factors):
                raise RopeError(
                    f"LongRoPE: every entry of `{name}` must be a finite number above 0.",
                    facts={name: given},
                    cure="Each entry divides the frequency of one pair.",
                )
            object.__setattr__(self, name, tuple(float(f) for f in factors))

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if 2 * len(factors) != rotary_dim:
                raise RopeError(
                    f"RopeConfig: LongRoPE's `{name}` needs one entry for each pair.",
                    facts={f"len({name})": len(factors), "pairs": rotary_dim // 2, "rotary_dim": rotary_dim},
                    cure="Pass rotary_dim / 2 entries.",
                )

    @property
    def switch_length(self) -> int:
        return self.original_max_position_embeddings

    def written_out(self, max_position_embeddings: int | None) -> Scaling:
        if self.factor is not None or max_position_embeddings is None:
            return self
        return replace(self, factor=max(1.0, max_position_embeddings / self.original_max_position_embeddings))

    @classmethod
    def from_block(cls, block: Block, max_position_embeddings: int | None) -> Scaling:
        if all(block.get(key) is None for key in cls.optional_keys):
            check_trained_ratio(block, cls.rope_type, max_position_embeddings)
        return super().from_block(block, max_position_embeddings)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        if seq_len is None:
            raise RopeError(
                "LongRoPE: the sequence length chooses between the two lists of factors.",
                facts={"original_max_position_embeddings": self.original_max_position_embeddings},
                cure="Pass seq_len=...: the total length that the cache or the window will reach.",
            )
        factors = self.long_factor if seq_len > self.switch_length else self.short_factor
        return [f / factors[column] for f, column in zip(ladder.inv_freq(), ladder.columns, strict=True)]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        mscales = (self.short_mscale, self.long_mscale)
        if mscales != (None, None):
            if None in mscales or (seq_len is None and mscales[0] != mscales[1]):
                raise RopeError(
                    "LongRoPE: `short_mscale` and `long_mscale` must both be given; `seq_len` chooses between them.",
                    facts={"short_mscale": mscales[0], "long_mscale": mscales[1], "seq_len": seq_len},
                    cure="Set both, and pass seq_len=...",
                )
            chosen = mscales[1] if seq_len is not None and seq_len > self.switch_length else mscales[0]
            return float(chosen)  # type: ignore[arg-type]
        if self.attention_factor is not None:
            return float(self.attention_factor)
        trained = self.original_max_position_embeddings
        factor = self.factor if self.factor is not None else (ladder_max or trained) / trained
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
