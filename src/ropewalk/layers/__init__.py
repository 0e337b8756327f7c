"""Attention with its cache and masks, the rival encodings, a decoder, a text classifier, generation and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.layers.classifier import TextClassifier, TextClassifierConfig
    from ropewalk.layers.config import DecoderConfig
    from ropewalk.layers.decoder import Decoder
    from ropewalk.layers.generation import generate
    from ropewalk.layers.training import fit

__all__ = ["Decoder", "DecoderConfig", "TextClassifier", "TextClassifierConfig", "fit", "generate"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
