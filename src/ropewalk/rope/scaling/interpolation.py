"""Rules that scale frequencies by formula (linear, NTK, ABF, Llama 3.1), one only of some pairs (p-RoPE)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.scaling.base import Ladder, Scaling
from ropewalk.rope.values import (
    MOST_FACTOR,
    TRAINED_KEY,
    Block,
    Variant,
    check_bounds,
    check_fields,
    check_variant,
    ramp,
    read_value,
)


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: divide every frequency by `factor`.

    Source: Chen et al. 2023, arXiv:2306.15595, eq. 4.

    >>> Linear(factor=4.0).inv_freq(Ladder(10000.0, 4, (0, 1)), None)
    [0.25, 0.0025]
    """

    factor: float
    rope_type: ClassVar[str] = "linear"
    hf_names: ClassVar[tuple[str, ...]] = ("linear",)
    required_keys: ClassVar[tuple[str, ...]] = ("factor",)

    def __post_init__(self) -> None:
        check_fields(self)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        return [f / self.factor for f in ladder.inv_freq()]


@dataclass(frozen=True)
class NTK(Scaling):
    """NTK-aware scaling: theta becomes theta * factor^(dim/(dim-2)).

    The fastest pair is unchanged and the slowest is divided by `factor`; `dim` is the rotary dimension. transformers
    has no name for it: it becomes a default block with the changed theta. HunYuan's `alpha` is this `factor`; its class
    ignores the other keys of its block.
    Source: bloc97 2023, r/LocalLLaMA; Peng et al. 2023, arXiv:2309.00071, section 3.1.

    >>> [round(f, 6) for f in NTK(factor=8.0).inv_freq(Ladder(10000.0, 4, (0, 1)), None)]
    [1.0, 0.00125]
    """

    factor: float
    rope_type: ClassVar[str] = "ntk"
    required_keys: ClassVar[tuple[str, ...]] = ("alpha",)
    optional_keys: ClassVar[tuple[str, ...]] = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")

    def __post_init__(self) -> None:
        check_fields(self)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        return ladder.inv_freq(ladder.ntk_theta(self.factor, "NTK"))

    @classmethod
    def from_block(cls, block: Block, max_position_embeddings: int | None) -> NTK:
        return cls(read_value(block, "alpha", float))

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": ladder.ntk_theta(self.factor, "to_hf")}


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """NTK-aware scaling with a ratio that grows with the sequence length; unscaled up to max_position_embeddings.

    For sequence length l and max_position_embeddings L, transformers uses factor * l/L - (factor - 1) (5, not 2, at
    l = 2L and factor 4). `variant="paper"` uses l/L for every factor.
    Source: emozilla 2023; Peng et al. 2023, arXiv:2309.00071, section 3.3.

    >>> ladder = Ladder(10000.0, 4, (0, 1), max_position_embeddings=1024)
    >>> [[round(f, 6) for f in DynamicNTK().inv_freq(ladder, length)] for length in (1024, 2048)]
    [[1.0, 0.01], [1.0, 0.005]]
    """

    factor: float = 1.0
    variant: Variant = "transformers"
    rope_type: ClassVar[str] = "dynamic"
    hf_names: ClassVar[tuple[str, ...]] = ("dynamic",)
    required_keys: ClassVar[tuple[str, ...]] = ("factor",)
    needs_seq_len: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)
        check_variant("DynamicNTK", self.variant)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        trained = ladder.max_position_embeddings
        assert trained, "`check` refuses a config without it"
        assert seq_len, "RopeConfig.columns_at checks it"
        over = max(seq_len, trained) / trained
        ratio = over if self.variant == "paper" else self.factor * over - (self.factor - 1)
        return ladder.inv_freq() if ratio == 1 else ladder.inv_freq(ladder.ntk_theta(ratio, "DynamicNTK"))

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        if max_position_embeddings is None:
            raise RopeError(
                "RopeConfig: DynamicNTK starts at max_position_embeddings, which is not set.",
                facts={"scaling": self},
                cure="Pass the trained length as max_position_embeddings.",
            )

    def longest_at(self, seq_len: int, max_position_embeddings: int | None) -> int | float:
        return max(seq_len, max_position_embeddings or seq_len)

    def target_length(self, max_position_embeddings: int | None) -> int | None:
        return max_position_embeddings and int(self.factor * max_position_embeddings)

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        """Return transformers' block; the paper's variant is transformers' with factor 1."""
        factor = 1.0 if self.variant == "paper" else self.factor
        return {"rope_type": "dynamic", "rope_theta": ladder.theta, "factor": factor}


@dataclass(frozen=True)
class ABF(Scaling):
    """Adjusted base frequency: RoPE with a larger `theta` instead of the config's.

    In a Hugging Face config it is a default block with this `rope_theta`. `ropewalk.rope.frequencies.smallest_theta`
    computes one for a length. Source: Xiong et al. 2023, arXiv:2309.16039, section 4.1.

    >>> ABF(theta=1e6).inv_freq(Ladder(10000.0, 4, (0, 1)), None)
    [1.0, 0.001]
    """

    theta: float
    rope_type: ClassVar[str] = "abf"

    def __post_init__(self) -> None:
        check_fields(self)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        return ladder.inv_freq(self.theta)

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": float(self.theta)}


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1's rule: fast pairs are unchanged, slow pairs are divided by `factor`, with a ramp in between.

    Pairs with at least `high_freq_factor` rotations within the trained length are unchanged; pairs with at most
    `low_freq_factor` are divided. There is no attention factor.
    Source: Meta's llama-models (Llama 3.1), `apply_scaling`; transformers' `llama3`.

    >>> plain = Ladder(10000.0, 8, (0, 1, 2, 3))
    >>> scaled = Llama3(4.0, 1.0, 4.0, original_max_position_embeddings=1024).inv_freq(plain, None)
    >>> [round(f / g, 3) for f, g in zip(plain.inv_freq(), scaled)]  # the divisor of each pair
    [1.0, 1.0, 2.454, 4.0]
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    rope_type: ClassVar[str] = "llama3"
    hf_names: ClassVar[tuple[str, ...]] = ("llama3",)
    required_keys: ClassVar[tuple[str, ...]] = ("factor", "low_freq_factor", "high_freq_factor", TRAINED_KEY)

    def __post_init__(self) -> None:
        check_fields(self, MOST_FACTOR)  # the largest stops a pair, as in an export of p-RoPE
        bounds = {"high_freq_factor": self.high_freq_factor, "low_freq_factor": self.low_freq_factor}
        check_bounds("Llama3", "4 and 1", **bounds)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        scaled = []
        for f in ladder.inv_freq():
            rotations = self.original_max_position_embeddings * f / (2 * math.pi)
            kept = ramp(rotations, self.low_freq_factor, self.high_freq_factor)
            scaled.append(f / self.factor * (1 - kept) + f * kept)
        return scaled


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

    def __post_init__(self) -> None:
        check_fields(self)

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
