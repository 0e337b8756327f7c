"""What rows of the record have in common."""

from __future__ import annotations

from ropewalk import RopeError


def reason(error: RopeError) -> str:
    """The first line of an error, without the function's name."""
    return str(error).splitlines()[0].removeprefix("from_hf: ").removeprefix("attach: ")


def rounded(error: float) -> float:
    """Two digits: a record is not made to the bit."""
    return float(f"{error:.1e}")
