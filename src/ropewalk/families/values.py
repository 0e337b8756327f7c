"""Checks of numbers, and the values of a Hugging Face config: a wrong type or value raises `RopeError`."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError

MOST_TOKENS, MOST_SIZE = 2**31 - 1, 2**20  # the latter: features, heads or layers
TRAINED_KEY = "original_max_position_embeddings"


def is_number(value: object) -> bool:
    """Return whether the value is a finite real number within the range of float64.

    >>> [is_number(value) for value in (2, 2.5, "2", True, None, float("nan"), 10**400)]
    [True, True, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def as_whole(value: object) -> int | None:
    """Return the value as an int, or None if it is not one of 64 bits. 128.0 is not one: write `//`, not `/`.

    >>> as_whole(128), as_whole(128.0), as_whole("128"), as_whole(True)
    (128, None, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):  # compilers need not trace `operator.index`
        return value if abs(value) < 1 << 63 else None
    try:
        return as_whole(operator.index(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def whole_or_zero(value: object) -> int:
    """Return the value as `as_whole`, 0 for None."""
    return as_whole(value) or 0


def check_whole(
    where: str, *, least: int = 1, most: int = MOST_TOKENS, optional: bool = True, **values: object
) -> None:
    """Raise `RopeError` unless each value is a whole number from `least` to `most`, or None if `optional`.

    >>> check_whole("doctor", target=0)
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: doctor: `target` must be a whole number from 1 to 2,147,483,647.
      target  0
    Pass a whole number in this range.
    """
    for name, value in values.items():
        whole = as_whole(value)
        if not (optional and value is None) and not (whole is not None and least <= whole <= most):
            raise RopeError(
                f"{where}: `{name}` must be a whole number from {least:,} to {most:,}.",
                facts={name: value},
                cure="Pass a whole number in this range.",
            )


# --- values of a Hugging Face config


def first(fields: Mapping[str, Any], *keys: str) -> tuple[str, Any] | None:
    """Return the first of these keys with a value, and the value; null is none."""
    for key in keys:
        if fields.get(key) is not None:
            return key, fields[key]
    return None


def refuse_null(fields: Mapping[str, Any], *keys: str) -> None:
    """Raise `RopeError` if a key is null where its default would be used: transformers keeps the null, and fails."""
    for key in keys:
        if key in fields and fields[key] is None:
            raise RopeError(
                f"from_hf: `{key}` is null, for which transformers has no default.",
                facts={key: None},
                cure="Write the model's own value; remove the key only if the class's default is that value.",
            )


def size(fields: Mapping[str, Any], *keys: str, most: int = MOST_SIZE, default: int | None = None) -> int | None:
    """Return the first of these sizes that a config states, a whole number from 1 to `most`; else the default.

    Raises `RopeError` if a key is null in the place of a default.
    """
    stated = first(fields, *keys)
    if stated is None:
        refuse_null(fields, *(() if default is None else keys))
        return default
    check_whole("from_hf", most=most, **{stated[0]: stated[1]})
    return as_whole(stated[1])


def fraction(value: object, name: str, most: int = 1) -> float:
    """Return a share of the features, above 0 and at most `most`."""
    if not (is_number(value) and 0 < value <= most):  # type: ignore[operator]
        raise wrong_value(name, value, f"a number above 0, at most {most:,}")
    return float(value)  # type: ignore[arg-type]


def number(value: object, name: str) -> float:
    """Return a finite number as a float, or raise the error that names the key."""
    if not is_number(value):
        raise wrong_value(name, value, "a finite number")
    return float(value)  # type: ignore[arg-type]


def wrong_value(key: str, value: object, expected: str) -> RopeError:
    return RopeError(f"from_hf: `{key}` must be {expected}.", facts={key: value}, cure="Correct the config's value.")
