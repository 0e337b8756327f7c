"""The figures by name: each entry computes its numbers from models and ropes and hands them to `ropewalk.figures`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from ropewalk.gallery.entry import Entry, Value, known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ENTRIES", "Entry", "draw"]


def _discover() -> dict[str, Entry]:
    """The `ENTRIES` of every module of this folder, in the order of the lesson."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    entries: list[Entry] = [entry for module in modules for entry in getattr(module, "ENTRIES", ())]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.order)}


ENTRIES: dict[str, Entry] = _discover()
"""Every figure by its name, in the order of the lesson."""


def draw(name: str, **settings: Value) -> Figure:
    """The figure of this name under these settings, as `ropewalk figure NAME --set key=value` draws it.

    `ENTRIES[name].parameters` are its settings with types, bounds and defaults. Raises `RopeError` for an unknown name
    or setting, or a bad value.

    >>> len(draw("waves", head_dim=128, pairs=(0, 16, 32)).axes)
    3
    """
    return known(ENTRIES, name).figure(**settings)
