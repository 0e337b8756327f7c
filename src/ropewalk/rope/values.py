"""What counts as a number: Python's and numpy's, never a bool or a string, so that a wrong type is a RopeError."""

from __future__ import annotations

import math
import operator
from numbers import Real


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
