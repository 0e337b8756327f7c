"""Texts to classes: CSV files, the training of a classifier, its scores beside a baseline's."""

from __future__ import annotations

from ropewalk.training.classification.run import train_classifier
from ropewalk.training.classification.settings import ClassifySettings

__all__ = ["ClassifySettings", "train_classifier"]
