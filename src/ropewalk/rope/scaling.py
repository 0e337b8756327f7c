"""Scaling rules: each one turns a ladder of frequencies into another, and names one attention factor.

A rule is a frozen dataclass whose fields are spelled as in Hugging Face's `rope_parameters`. Where a paper and the code
in use differ, `variant` says which: `"transformers"` (the default) is what transformers 5.23 computes, `"paper"` is the
published formula. Everything here is Python's own float64 arithmetic: no tensor, so nothing that a device, a dtype, a
tracer or a meta-device context could change.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole, is_number

Variant = Literal["transformers", "paper"]


@dataclass(frozen=True)
class Ladder:
    """The unscaled frequencies theta^(-2i/dim) of one axis: what a scaling rule starts from.

    `columns` gives the index of each frequency among all pairs of the head; `max_position_embeddings` is the config's.
    """

    theta: float
    dim: int
    columns: tuple[int, ...]
    max_position_embeddings: int | None = None

    def inv_freq(self, theta: float | None = None) -> list[float]:
        """Inverse frequencies in radians per token, one per pair, highest first."""
        base = self.theta if theta is None else theta
        return [base ** (-2 * i / self.dim) for i in range(len(self.columns))]

    def ntk_theta(self, ratio: float, rule: str) -> float:
        """theta * ratio^(dim/(dim-2)): the base at which the slowest pair is slowed by exactly `ratio`."""
        if self.dim == 2:
            raise RopeError(
                f"{rule}: a single pair leaves NTK no slower frequency to stretch (dim / (dim - 2) divides by 0).",
                facts={"rotary_dim": self.dim},
                cure="Use Linear for one pair.",
            )
        return self.theta * float(ratio ** (self.dim / (self.dim - 2)))


class Scaling(ABC):
    """A rule that turns one ladder of inverse frequencies into another; abstract."""

    rope_type: ClassVar[str]
    needs_seq_len: ClassVar[bool] = False

    @abstractmethod
    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        """The scaled inverse frequencies, radians per token, one per pair of the ladder."""

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        """What queries and keys are each multiplied by; `ladder_max` is the config's max_position_embeddings."""
        return 1.0

    @property
    def trained_length(self) -> int | None:
        """The length before scaling, in tokens, where the rule itself states it."""
        return None


def _check_factor(name: str, factor: float) -> None:
    if not (is_number(factor) and factor >= 1):
        raise RopeError(
            f"{name}: `factor` must be a finite number of at least 1.",
            facts={"factor": factor},
            cure="The factor is target length / trained length; 1 leaves the frequencies alone.",
        )


def _check_length(name: str, length: int) -> None:
    if not is_number(length) or int(length) != length or length < 1:
        raise RopeError(
            f"{name}: `original_max_position_embeddings` must be a whole number of tokens, at least 1.",
            facts={"original_max_position_embeddings": length},
            cure="Give the length the model was trained at before extension.",
        )


def _check_above_zero(name: str, **values: float | None) -> None:
    for key, value in values.items():
        if value is not None and not (is_number(value) and value > 0):
            raise RopeError(
                f"{name}: `{key}` must be a finite number above 0.",
                facts={key: value},
                cure="It multiplies queries and keys; leave it out for the rule's own.",
            )


def _are_numbers(*values: object) -> bool:
    return all(map(is_number, values))


def _check_variant(name: str, variant: str) -> None:
    if variant not in ("transformers", "paper"):
        raise RopeError(
            f"{name}: unknown variant.", facts={"variant": variant}, cure='Choose "transformers" or "paper".'
        )


def _ramp(turns: float, low: float, high: float) -> float:
    """0 below `low`, 1 above `high`, linear between them; a step where they are equal (Llama 4, Kimi-K2)."""
    if low == high:
        return float(turns >= high)
    return min(1.0, max(0.0, (turns - low) / (high - low)))


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by `factor`.

    Source: Chen et al. 2023, arXiv:2306.15595, eq. 4.

    >>> Linear(factor=4.0).inv_freq(Ladder(10000.0, 4, (0, 1)), None)
    [0.25, 0.0025]
    """

    factor: float
    rope_type: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        _check_factor("Linear", self.factor)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        return [f / self.factor for f in ladder.inv_freq()]


@dataclass(frozen=True)
class NTK(Scaling):
    """NTK-aware scaling: theta becomes theta * factor^(dim/(dim-2)).

    The fastest pair stays and the slowest is divided by `factor`.
    `dim` is the rotary dimension. Source: bloc97 2023, r/LocalLLaMA; Peng et al. 2023, arXiv:2309.00071, section 3.1.
    HunYuan's `alpha` is this `factor`.

    >>> [round(f, 6) for f in NTK(factor=8.0).inv_freq(Ladder(10000.0, 4, (0, 1)), None)]
    [1.0, 0.00125]
    """

    factor: float
    rope_type: ClassVar[str] = "ntk"

    def __post_init__(self) -> None:
        _check_factor("NTK", self.factor)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        return ladder.inv_freq(ladder.ntk_theta(self.factor, "NTK"))


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK-aware scaling whose ratio follows the sequence length; nothing changes up to max_position_embeddings.

    With l the sequence length and L the config's max_position_embeddings: transformers uses factor * l/L - (factor - 1)
    (at l = 2L and factor 4 that is 5, not 2), `variant="paper"` uses l/L whatever the factor.
    Source: emozilla 2023; Peng et al. 2023, arXiv:2309.00071, section 3.3.
    """

    factor: float = 1.0
    variant: Variant = "transformers"
    rope_type: ClassVar[str] = "dynamic"
    needs_seq_len: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_factor("DynamicNTK", self.factor)
        _check_variant("DynamicNTK", self.variant)

    def ratio(self, over: Any) -> Any:
        """By what the slowest pair is divided at `over` (1 or more, a number or a tensor) times the trained length."""
        return over if self.variant == "paper" else self.factor * over - (self.factor - 1)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        trained = ladder.max_position_embeddings
        if trained is None or seq_len is None:
            raise RopeError(
                "DynamicNTK: frequencies depend on the sequence length and on max_position_embeddings.",
                facts={"seq_len": seq_len, "max_position_embeddings": trained},
                cure="Pass seq_len=..., and give RopeConfig its max_position_embeddings.",
            )
        ratio: float = self.ratio(max(seq_len, trained) / trained)
        return ladder.inv_freq() if ratio == 1 else ladder.inv_freq(ladder.ntk_theta(ratio, "DynamicNTK"))


@dataclass(frozen=True)
class YaRN(Scaling):
    """NTK-by-parts with an attention factor: fast pairs stay, slow pairs are divided by `factor`, a ramp joins them.

    transformers' ramp is linear in the pair's index between two bounds (rounded outward if `truncate`); the paper's is
    linear in the number of turns within the trained length, from `beta_slow` to `beta_fast`. They differ by
    up to 4.3x on real models. The attention factor multiplies queries and keys: `attention_factor` if given; else,
    with both `mscale` and `mscale_all_dim`, the ratio of their 0.1 m ln(factor) + 1; else 0.1 ln(factor) + 1.
    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2, eq. 17-23 and 3.4; DeepSeek-V2's mscale.
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

    def __post_init__(self) -> None:
        _check_factor("YaRN", self.factor)
        _check_length("YaRN", self.original_max_position_embeddings)
        _check_variant("YaRN", self.variant)
        _check_above_zero("YaRN", attention_factor=self.attention_factor)
        for name in ("mscale", "mscale_all_dim"):  # 0 means absent, as in transformers
            _check_above_zero("YaRN", **{name: getattr(self, name) or None})
        if not isinstance(self.truncate, bool):
            raise RopeError(
                "YaRN: `truncate` must be True or False.",
                facts={"truncate": self.truncate},
                cure="True, the default, rounds the ramp's bounds outward to whole pairs.",
            )
        if not (_are_numbers(self.beta_fast, self.beta_slow) and self.beta_fast >= self.beta_slow > 0):
            raise RopeError(
                "YaRN: `beta_fast` must not be below `beta_slow`, and both above 0 (turns within the trained length).",
                facts={"beta_fast": self.beta_fast, "beta_slow": self.beta_slow},
                cure="The published values are beta_fast=32, beta_slow=1.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        kept = self._kept_by_turns if self.variant == "paper" else self._kept_by_index
        plain = ladder.inv_freq()
        return [f / self.factor * (1 - k) + f * k for f, k in zip(plain, kept(ladder, plain), strict=True)]

    def _kept_by_turns(self, ladder: Ladder, plain: list[float]) -> list[float]:
        """The paper's gamma(r), eq. 18: the share of a frequency kept, by its turns r in the trained length."""
        turns = [self.original_max_position_embeddings * f / (2 * math.pi) for f in plain]
        return [_ramp(r, self.beta_slow, self.beta_fast) for r in turns]

    def _kept_by_index(self, ladder: Ladder, plain: list[float]) -> list[float]:
        """The reference code's ramp, linear in the pair's index between the two bounds."""

        def index_with(turns: float) -> float:
            length = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return ladder.dim * math.log(length) / (2 * math.log(ladder.theta))

        low, high = index_with(self.beta_fast), index_with(self.beta_slow)
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, ladder.dim - 1.0)
        if low == high:
            high += 0.001  # as the reference code does, so that the ramp is a step and not a division by zero
        return [1 - min(1.0, max(0.0, (i - low) / (high - low))) for i in range(len(plain))]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)

    @property
    def trained_length(self) -> int | None:
        return self.original_max_position_embeddings


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 * mscale * ln(factor) + 1: YaRN's temperature; DeepSeek also multiplies its softmax scale by its square."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True)
class LongRoPE(Scaling):
    """One divisor per pair, found by search: `short_factor` up to the trained length, `long_factor` beyond it.

    The attention factor sqrt(1 + ln(factor) / ln(trained)) holds on both sides, unless `attention_factor`, or
    Phi-3.5-MoE's `short_mscale` and `long_mscale`, say otherwise; `factor` defaults to max_position_embeddings /
    trained. The paper's first tokens that stay unscaled are `unscaled_tokens` (section 3.2, n-hat); no published
    checkpoint uses them.
    Source: Ding et al. 2024, arXiv:2402.13753, eq. 3 and section 3.3.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    unscaled_tokens: int = 0
    rope_type: ClassVar[str] = "longrope"
    needs_seq_len: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_length("LongRoPE", self.original_max_position_embeddings)
        if self.factor is not None:
            _check_factor("LongRoPE", self.factor)
        _check_above_zero("LongRoPE", attention_factor=self.attention_factor)
        _check_above_zero("LongRoPE", short_mscale=self.short_mscale, long_mscale=self.long_mscale)
        if self.original_max_position_embeddings == 1:
            raise RopeError(
                "LongRoPE: `original_max_position_embeddings` must be above 1: the attention factor divides by its ln.",
                facts={"original_max_position_embeddings": 1},
                cure="Give the length the model was trained at before extension.",
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
        unscaled = as_whole(self.unscaled_tokens)
        if unscaled is None or unscaled < 0:
            raise RopeError(
                "LongRoPE: `unscaled_tokens` must be a whole number and must not be negative.",
                facts={"unscaled_tokens": self.unscaled_tokens},
                cure="Use 0 to scale every token.",
            )

    def is_long(self, seq_len: int) -> bool:
        """Whether `seq_len` tokens lie beyond the switch to `long_factor`."""
        return seq_len > self.original_max_position_embeddings

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        if seq_len is None:
            raise RopeError(
                "LongRoPE: which factors apply depends on the sequence length.",
                facts={"original_max_position_embeddings": self.original_max_position_embeddings},
                cure="Pass seq_len=...: the total length that the cache or the window will reach.",
            )
        factors = self.long_factor if self.is_long(seq_len) else self.short_factor
        return [f / factors[column] for f, column in zip(ladder.inv_freq(), ladder.columns, strict=True)]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        mscales = (self.short_mscale, self.long_mscale)
        if mscales != (None, None):
            if None in mscales or (seq_len is None and mscales[0] != mscales[1]):
                raise RopeError(
                    "LongRoPE: `short_mscale` and `long_mscale` come together, and a seq_len chooses between them.",
                    facts={"short_mscale": mscales[0], "long_mscale": mscales[1], "seq_len": seq_len},
                    cure="Give both, and pass seq_len=...",
                )
            chosen = mscales[1] if seq_len is not None and self.is_long(seq_len) else mscales[0]
            return float(chosen)  # type: ignore[arg-type]
        if self.attention_factor is not None:
            return float(self.attention_factor)
        trained = self.original_max_position_embeddings
        factor = self.factor if self.factor is not None else (ladder_max or trained) / trained
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))

    @property
    def trained_length(self) -> int | None:
        return self.original_max_position_embeddings


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1's: fast pairs stay, slow pairs are divided by `factor`, a ramp joins them; no attention factor.

    Pairs with at least `high_freq_factor` turns stay, with at most `low_freq_factor` are divided.
    Source: Meta's llama-models (Llama 3.1), `apply_scaling`; transformers' `llama3`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    rope_type: ClassVar[str] = "llama3"

    def __post_init__(self) -> None:
        _check_factor("Llama3", self.factor)
        _check_length("Llama3", self.original_max_position_embeddings)
        bands = self.high_freq_factor, self.low_freq_factor
        if not (_are_numbers(*bands) and self.high_freq_factor >= self.low_freq_factor > 0):
            raise RopeError(
                "Llama3: `high_freq_factor` must not be below `low_freq_factor`, and both above 0.",
                facts={"high_freq_factor": self.high_freq_factor, "low_freq_factor": self.low_freq_factor},
                cure="The published values are low_freq_factor=1, high_freq_factor=4.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        low, high = self.low_freq_factor, self.high_freq_factor
        scaled = []
        for f in ladder.inv_freq():
            turns = self.original_max_position_embeddings * f / (2 * math.pi)
            kept = _ramp(turns, low, high)
            scaled.append(f / self.factor * (1 - kept) + f * kept)
        return scaled

    @property
    def trained_length(self) -> int | None:
        return self.original_max_position_embeddings


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

    def __post_init__(self) -> None:
        _check_factor("Proportional", self.factor)
        if not (is_number(self.partial_rotary_factor) and 0 <= self.partial_rotary_factor <= 1):
            raise RopeError(
                "Proportional: `partial_rotary_factor` must lie between 0 and 1.",
                facts={"partial_rotary_factor": self.partial_rotary_factor},
                cure="It is the fraction of the pairs that turn.",
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        turning = int(self.partial_rotary_factor * ladder.dim // 2)
        return [f / self.factor if i < turning else 0.0 for i, f in enumerate(ladder.inv_freq())]
