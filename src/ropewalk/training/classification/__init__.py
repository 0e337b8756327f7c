"""Text classification: CSV files, the training of a classifier, and its scores next to those of a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.training.classification.settings import ClassifySettings
    from ropewalk.training.classification.task import train_classifier

__all__ = ["ClassifySettings", "train_classifier"]

_HOMES = {
    "ClassifySettings": "ropewalk.training.classification.settings",
    "train_classifier": "ropewalk.training.classification.task",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
