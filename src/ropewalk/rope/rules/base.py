"""What every scaling rule is made of: the ladder that it starts from, the rule itself, and its checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from ropewalk.errors import RopeError
from ropewalk.rope.values import is_number

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


def check_factor(name: str, factor: float) -> None:
    if not (is_number(factor) and factor >= 1):
        raise RopeError(
            f"{name}: `factor` must be a finite number of at least 1.",
            facts={"factor": factor},
            cure="The factor is target length / trained length; 1 leaves the frequencies alone.",
        )


def check_length(name: str, length: int) -> None:
    if not is_number(length) or int(length) != length or length < 1:
        raise RopeError(
            f"{name}: `original_max_position_embeddings` must be a whole number of tokens, at least 1.",
            facts={"original_max_position_embeddings": length},
            cure="Give the length the model was trained at before extension.",
        )


def check_above_zero(name: str, **values: float | None) -> None:
    for key, value in values.items():
        if value is not None and not (is_number(value) and value > 0):
            raise RopeError(
                f"{name}: `{key}` must be a finite number above 0.",
                facts={key: value},
                cure="It multiplies queries and keys; leave it out for the rule's own.",
            )


def are_numbers(*values: object) -> bool:
    return all(map(is_number, values))


def check_variant(name: str, variant: str) -> None:
    if variant not in ("transformers", "paper"):
        raise RopeError(
            f"{name}: unknown variant.", facts={"variant": variant}, cure='Choose "transformers" or "paper".'
        )


def ramp(turns: float, low: float, high: float) -> float:
    """0 below `low`, 1 above `high`, linear between them; a step where they are equal (Llama 4, Kimi-K2)."""
    if low == high:
        return float(turns >= high)
    return min(1.0, max(0.0, (turns - low) / (high - low)))
