"""Llama 3.1's scaling, by the wavelength of each pair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling
from ropewalk.rope.rules.block import TRAINED_KEY
from ropewalk.rope.rules.checks import are_numbers, check_factor, check_length, ramp


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
    hf_names: ClassVar[tuple[str, ...]] = ("llama3",)
    required_keys: ClassVar[tuple[str, ...]] = ("factor", "low_freq_factor", "high_freq_factor", TRAINED_KEY)

    def __post_init__(self) -> None:
        check_factor("Llama3", self.factor)
        check_length("Llama3", self.original_max_position_embeddings)
        bands = self.high_freq_factor, self.low_freq_factor
        if not (are_numbers(*bands) and self.high_freq_factor >= self.low_freq_factor > 0):
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
            kept = ramp(turns, low, high)
            scaled.append(f / self.factor * (1 - kept) + f * kept)
        return scaled

    @property
    def original_length(self) -> int | None:
        return self.original_max_position_embeddings

    def target_length(self, max_position_embeddings: int | None) -> int | None:
        return int(self.factor * self.original_max_position_embeddings)
