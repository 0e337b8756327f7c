"""The checks that scaling rules share, and the shape of a ramp."""

from __future__ import annotations

from typing import Literal

from ropewalk.errors import RopeError
from ropewalk.rope.values import is_number

Variant = Literal["transformers", "paper"]


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
