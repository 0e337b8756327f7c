"""Texts to classes: CSV files, the training of a classifier, its scores beside a baseline's."""

from __future__ import annotations

from ropewalk.classification.loop import train_classifier
from ropewalk.classification.settings import ClassifySettings

__all__ = ["ClassifySettings", "train_classifier"]
