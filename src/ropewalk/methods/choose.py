"""Which methods a run compares."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.errors import RopeError
from ropewalk.methods.ropes import Reach
from ropewalk.methods.table import METHODS
from ropewalk.models.config import Positions

ALL = "all"


def named_methods(asked: Sequence[str] | None) -> list[str]:
    """The names in `asked`, one by one; raises `RopeError` for one that no method has.

    >>> named_methods(["yarn, dca", "all"])
    ['yarn', 'dca', 'all']
    """
    words = [word.strip() for given in asked or () for word in given.split(",") if word.strip()]
    unknown = sorted(set(words) - {ALL, *METHODS})
    if unknown:
        raise RopeError(
            "methods: unknown method.",
            facts={"method": ", ".join(unknown)},
            cure=f"Choose from all, {', '.join(METHODS)}.",
        )
    return words


def chosen_methods(asked: Sequence[str] | None, positions: Positions, reach: Reach) -> tuple[str, ...]:
    """The names of a run's methods, in order, `plain` among them (differences are paired to it).

    `asked` names methods, separated by commas or one by one; "all" is every method that applies without tuning, those
    in attention as well; None or nothing: those that a config can hold, and crop.
    """
    words = named_methods(asked)
    if not words:
        return default_methods(positions, reach)
    named = {"plain", *words} - {ALL}
    if ALL in words:
        named |= set(default_methods(positions, reach))
        if reach.extends:
            named |= {name for name, method in METHODS.items() if method.in_attention and not method.needs_tuning}
            if all(rope.can_be_extended for rope in positions.present_ropes):
                named |= {name for name, method in METHODS.items() if method.scales_frequencies}
    return tuple(name for name in METHODS if name in named)


def default_methods(positions: Positions, reach: Reach) -> tuple[str, ...]:
    """Every method that a config can hold and that is not measured on request alone, and crop.

    `as-is` only where the checkpoint carries a scaling that it was not trained with, or an extension; nothing but it
    and `plain` where the target is within the trained length.
    """
    scaled = any(rope.as_trained() != rope for rope in positions.present_ropes) or any(positions.extensions)
    fixed = any(not rope.can_be_extended for rope in positions.present_ropes)
    kept = {"plain"} | ({name for name, method in METHODS.items() if method.keeps_own} if scaled else set())
    if reach.extends:
        kept |= {name for name, method in METHODS.items() if method.crops}
        if not fixed:
            kept |= {name for name, method in METHODS.items() if method.scales_frequencies and not method.on_request}
    return tuple(name for name in METHODS if name in kept)
