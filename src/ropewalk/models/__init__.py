"""A decoder language model, a text classifier, generation and a training loop, built on `ropewalk.Attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.models.classifier import TextClassifier, TextClassifierConfig
    from ropewalk.models.config import DecoderConfig
    from ropewalk.models.decoder import Decoder
    from ropewalk.models.generation import generate, stream
    from ropewalk.models.training import fit

__all__ = [
    "Decoder",
    "DecoderConfig",
    "TextClassifier",
    "TextClassifierConfig",
    "fit",
    "generate",
    "stream",
]

_HOMES = {
    "Decoder": "ropewalk.models.decoder",
    "DecoderConfig": "ropewalk.models.config",
    "TextClassifier": "ropewalk.models.classifier",
    "TextClassifierConfig": "ropewalk.models.classifier",
    "fit": "ropewalk.models.training",
    "generate": "ropewalk.models.generation",
    "stream": "ropewalk.models.generation",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
