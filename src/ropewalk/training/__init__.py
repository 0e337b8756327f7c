"""Train a decoder from scratch: windows of text, the loop, and runs that resume bit for bit after a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.training.language_model import train
    from ropewalk.training.settings import SIZES, Event, Housekeeping, TrainSettings

__all__ = ["SIZES", "Event", "Housekeeping", "TrainSettings", "train"]

_HOMES = {
    "Event": "ropewalk.training.settings",
    "Housekeeping": "ropewalk.training.settings",
    "SIZES": "ropewalk.training.settings",
    "TrainSettings": "ropewalk.training.settings",
    "train": "ropewalk.training.language_model",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
