"""The choice of the methods that a run compares."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.errors import RopeError
from ropewalk.methods.ropes import Reach
from ropewalk.methods.table import METHODS
from ropewalk.models.config import Positions

ALL = "all"


def named_methods(asked: Sequence[str] | None) -> list[str]:
    """Return the single names in `asked`; raise `RopeError` for a name that no method has.

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
    """Return the names of a run's methods in table order, always with `plain`, to which differences are paired.

    - `asked`: names of methods, single or separated by commas. "all" is every method that works without tuning,
      including those in attention. None or no names: `default_methods`.
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
    """Return `plain`, `crop`, and every method that config.json can express and that is not measured only on request.

    `as-is` is included if the checkpoint has an extension, or a scaling that it was not trained with. If the target is
    within the trained length, only `plain` and `as-is` remain.
    """
    scaled = any(rope.as_trained() != rope for rope in positions.present_ropes) or any(positions.extensions)
    fixed = any(not rope.can_be_extended for rope in positions.present_ropes)
    kept = {"plain"} | ({name for name, method in METHODS.items() if method.keeps_own} if scaled else set())
    if reach.extends:
        kept |= {name for name, method in METHODS.items() if method.crops}
        if not fixed:
            kept |= {name for name, method in METHODS.items() if method.scales_frequencies and not method.on_request}
    return tuple(name for name in METHODS if name in kept)
