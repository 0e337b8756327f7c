"""`Attention` and its cache, the rival encodings, a decoder, a text classifier, generation and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.models.classifier import TextClassifier as TextClassifier
    from ropewalk.models.config import DecoderConfig as DecoderConfig
    from ropewalk.models.config import TextClassifierConfig as TextClassifierConfig
    from ropewalk.models.decoder import Decoder as Decoder
    from ropewalk.models.generation import generate as generate
    from ropewalk.models.training import fit as fit

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
