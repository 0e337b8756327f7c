"""Rules with their own divisor for each pair: YaRN (NTK by parts with a temperature) and LongRoPE."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.scaling.base import Ladder, Scaling
from ropewalk.rope.values import (
    TRAINED_KEY,
    Block,
    Variant,
    as_tuple,
    check_bounds,
    check_fields,
    check_trained_ratio,
    check_variant,
    is_number,
    ramp,
)


@dataclass(frozen=True)
class YaRN(Scaling):
    """NTK by parts with an attention factor.

    Fast pairs are unchanged, slow pairs are divided by `factor`, with a ramp in between. transformers' ramp is linear
    in the pair's index between two bounds (rounded outward if `truncate`). The paper's is linear in the number of
    rotations within the trained length, from `beta_slow` to `beta_fast`. They differ by up to 4.3x on real models.
    The attention factor multiplies queries and keys: `attention_factor` if given; else, if both `mscale` and
    `mscale_all_dim` are given, the ratio of their 0.1 m ln(factor) + 1; else 0.1 ln(factor) + 1.
    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2, eq. 17-23 and 3.4; DeepSeek-V2's mscale.

    >>> plain = Ladder(10000.0, 8, (0, 1, 2, 3))
    >>> scaled = YaRN(4.0, original_max_position_embeddings=1024).inv_freq(plain, None)
    >>> [round(f / g, 3) for f, g in zip(plain.inv_freq(), scaled)]  # the divisor of each pair
    [1.0, 1.333, 2.0, 4.0]
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    variant: Variant = "transformers"
    rope_type: ClassVar[str] = "yarn"
    hf_names: ClassVar[tuple[str, ...]] = ("yarn",)
    required_keys: ClassVar[tuple[str, ...]] = ("factor", TRAINED_KEY)
    optional_keys: ClassVar[tuple[str, ...]] = (
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        check_variant("YaRN", self.variant)
        check_kind("YaRN", bool, "True rounds the ramp's bounds outward to whole pairs.", truncate=self.truncate)
        check_bounds("YaRN", "32 and 1", beta_fast=self.beta_fast, beta_slow=self.beta_slow)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        plain = ladder.inv_freq()
        if self.variant == "paper":  # gamma(r), eq. 18
            rotations = [self.original_max_position_embeddings * f / (2 * math.pi) for f in plain]
            kept = [ramp(r, self.beta_slow, self.beta_fast) for r in rotations]
        else:
            kept = self._kept_by_index(ladder)
        return [f / self.factor * (1 - k) + f * k for f, k in zip(plain, kept, strict=True)]

    def _kept_by_index(self, ladder: Ladder) -> list[float]:
        """Return the reference code's ramp, linear in the pair's index between two bounds.

        They are the fractional indices of the pairs that rotate `beta_fast` and `beta_slow` times when trained.
        """
        trained = self.original_max_position_embeddings
        low, high = (ladder.index_at(beta * 2 * math.pi / trained) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, ladder.dim - 1.0)
        if low == high:
            high += 0.001  # as in the reference code: a step, not a division by zero
        return [1 - min(1.0, max(0.0, (i - low) / (high - low))) for i in range(len(ladder.columns))]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)

    @classmethod
    def from_block(cls, block: Block, max_position_embeddings: int | None) -> Scaling:
        """Return the rule as transformers: factor null is the ratio of lengths, truncate null false, beta 0 unset."""
        read = dict(block)
        if read.get("factor") is None:
            read["factor"] = check_trained_ratio(block, cls.rope_type, max_position_embeddings)
        if "truncate" in read and read["truncate"] is None:
            read["truncate"] = False
        for key in ("beta_fast", "beta_slow"):
            if read.get(key) == 0:
                del read[key]
        return super().from_block(read, max_position_embeddings)

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        """Return the block; the paper's ramp has no name in transformers and becomes `longrope`."""
        return self.longrope_block(ladder) if self.variant == "paper" else super().to_block(ladder)


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return 0.1 * mscale * ln(factor) + 1, YaRN's temperature; DeepSeek multiplies its softmax scale by its square."""
    return 0.1 * mscale * math.log(max(1.0, factor)) + 1.0


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

    def __post_init__(self) -> None:
        check_fields(self)
        if self.original_max_position_embeddings == 1:
            raise RopeError(
                "LongRoPE: `original_max_position_embeddings` must be above 1: the attention factor divides by its ln.",
                facts={"original_max_position_embeddings": 1},
                cure="Pass the length the model was trained at before extension.",
            )
        for name in ("short_factor", "long_factor"):
            given = getattr(self, name)
            factors = as_tuple(given)
            if not factors or not all(is_number(f) and f > 0 for f in factors):
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
        assert seq_len is not None, "RopeConfig.columns_at checks it"
        factors = self.long_factor if seq_len > self.switch_length else self.short_factor
        return [f / factors[column] for f, column in zip(ladder.inv_freq(), ladder.columns, strict=True)]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        short, long = self.short_mscale, self.long_mscale
        if (short, long) != (None, None):
            if short is None or long is None or (seq_len is None and short != long):
                raise RopeError(
                    "LongRoPE: `short_mscale` and `long_mscale` must both be given; `seq_len` chooses between them.",
                    facts={"short_mscale": short, "long_mscale": long, "seq_len": seq_len},
                    cure="Set both, and pass seq_len=...",
                )
            return float(long if seq_len is not None and seq_len > self.switch_length else short)
        if self.attention_factor is not None:
            return float(self.attention_factor)
        trained = self.original_max_position_embeddings
        factor = self.factor if self.factor is not None else (ladder_max or trained) / trained
        return math.sqrt(1 + math.log(max(1.0, factor)) / math.log(trained))
