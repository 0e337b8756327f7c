"""Reading one key of a Hugging Face rope block as a number, a list, a length or a flag."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

from ropewalk.errors import RopeError
from ropewalk.rope.values import is_number

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
