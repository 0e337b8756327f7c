"""The spaces that `extend search --over` names."""

from __future__ import annotations

from ropewalk.errors import RopeError
from ropewalk.extend.dpe import DPESpace, dpe_space
from ropewalk.extend.factors import FactorSpace, factor_space
from ropewalk.extend.numbers import FAMILIES, number_space
from ropewalk.extend.space import Space
from ropewalk.methods import Reach
from ropewalk.models.positions import Positions

OVER = (*FAMILIES, FactorSpace.over, DPESpace.over)


def check_over(over: str, *, monotone: bool) -> None:
    """Raise `RopeError` for an unknown name, and for an order of divisors where none are searched."""
    if over not in OVER:
        raise RopeError(
            "search: --over names the numbers to search.", facts={"over": over}, cure=f"Choose from {', '.join(OVER)}."
        )
    if monotone and over != FactorSpace.over:
        raise RopeError(
            "search: --monotone orders the divisors of --over factors, and would be ignored.",
            facts={"over": over},
            cure="Leave it out, or pass --over factors.",
        )


def space_named(over: str, positions: Positions, reach: Reach, *, monotone: bool = False) -> Space:
    """What can be searched in a model of these positions; `over` is one of OVER. Raises `RopeError` as they do."""
    check_over(over, monotone=monotone)
    if over == FactorSpace.over:
        return factor_space(positions, reach, monotone=monotone)
    if over == DPESpace.over:
        return dpe_space(positions, reach)
    return number_space(over, positions, reach)
