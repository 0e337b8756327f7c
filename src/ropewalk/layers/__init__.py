"""Attention with its cache and masks, the rival encodings, a decoder, a text classifier, generation and training."""

# mypy: implicit-reexport
# ruff: noqa: F401
from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.layers.classifier import TextClassifier, TextClassifierConfig
    from ropewalk.layers.config import DecoderConfig
    from ropewalk.layers.decoder import Decoder
    from ropewalk.layers.generation import generate
    from ropewalk.layers.training import fit

_HOMES = {
    "Decoder": "ropewalk.layers.decoder",
    "DecoderConfig": "ropewalk.layers.config",
    "TextClassifier": "ropewalk.layers.classifier",
    "TextClassifierConfig": "ropewalk.layers.classifier",
    "fit": "ropewalk.layers.training",
    "generate": "ropewalk.layers.generation",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
