"""Check numbers, lists and keys of rope configs, so that a wrong type or value raises `RopeError`."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from numbers import Real
from types import NoneType
from typing import Any, Literal, get_args

from ropewalk.errors import RopeError


def is_number(value: object) -> bool:
    """A finite real number of a size that float64 holds.

    >>> [is_number(value) for value in (2, 2.5, "2", True, None, float("nan"), 10**400)]
    [True, True, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def as_whole(value: object) -> int | None:
    """The value as an int, or None if it is not one: 128.0 is what `/` gives where `//` was meant.

    >>> as_whole(128), as_whole(128.0), as_whole("128"), as_whole(True)
    (128, None, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


Block = Mapping[str, Any]
TRAINED_KEY = "original_max_position_embeddings"


def read_value(block: Block, key: str, kind: Any) -> Any:
    """The value of `key` as a field of type `kind`: float, int, bool, or a tuple of floats, each perhaps `| None`."""
    kinds = [option for option in get_args(kind) if option is not NoneType] if NoneType in get_args(kind) else [kind]
    readers = {float: number_of, int: whole_of, bool: flag_of, tuple[float, ...]: numbers_of}
    return readers[kinds[0]](block, key)


def number(value: object, name: str) -> float:
    """A finite number, or the error that names the key."""
    if not is_number(value):
        raise RopeError(
            f"from_hf: `{name}` must be a finite number.", facts={name: value}, cure="Correct the config's value."
        )
    return float(value)  # type: ignore[arg-type]


def number_of(block: Block, key: str) -> float:
    """A finite number; null and a missing key are none."""
    return number(block.get(key), key)


def numbers_of(block: Block, key: str) -> tuple[float, ...]:
    """A list of finite numbers."""
    values = block[key]
    if not isinstance(values, (list, tuple)) or not all(is_number(v) for v in values):
        raise RopeError(
            f"from_hf: `{key}` must be a list of numbers, one for each pair.",
            facts={key: values},
            cure="Correct the config's value.",
        )
    return tuple(float(v) for v in values)


def whole_of(block: Block, key: str) -> int:
    """A whole number."""
    value = number_of(block, key)
    if value != int(value):
        raise RopeError(
            f"from_hf: `{key}` must be a whole number.", facts={key: value}, cure="Correct the config's value."
        )
    return int(value)


def flag_of(block: Block, key: str) -> bool:
    """True or False."""
    value = block[key]
    if not isinstance(value, bool):
        raise RopeError(
            f"from_hf: `{key}` must be true or false.", facts={key: value}, cure="Correct the config's value."
        )
    return value


def check_trained_ratio(block: Block, rope_type: str, max_position_embeddings: int | None) -> float:
    """max_position_embeddings / original_max_position_embeddings: what transformers takes for a missing factor."""
    if max_position_embeddings is None:
        raise RopeError(
            f"from_hf: rope type {rope_type!r} without `factor` needs `max_position_embeddings`, to take their ratio.",
            facts={TRAINED_KEY: block.get(TRAINED_KEY)},
            cure="Add `factor` to the rope block, or `max_position_embeddings` to the config.",
        )
    return max_position_embeddings / whole_of(block, TRAINED_KEY)


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
