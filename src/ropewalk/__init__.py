"""ropewalk: rotary position embeddings, exact in every published variant.

Importing the package is nearly free: each public name, and torch with it, is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names
from ropewalk.version import __version__ as __version__

if TYPE_CHECKING:
    from ropewalk import encodings, figures, fused, positions, rotation
    from ropewalk.attachment.handle import attach
    from ropewalk.checkpoints.load import load, save
    from ropewalk.diagnosis.prepare import doctor
    from ropewalk.errors import RopeError
    from ropewalk.models.attention import Attention
    from ropewalk.models.cache import KVCache
    from ropewalk.models.classifier import TextClassifier
    from ropewalk.models.decoder import Decoder
    from ropewalk.models.generation import generate
    from ropewalk.rope import scaling
    from ropewalk.rope.config import RopeConfig
    from ropewalk.rope.frequencies import inverse_frequencies
    from ropewalk.rope.pairing import convert_pairing
    from ropewalk.rotation.backends import explain_backends
    from ropewalk.rotation.embedding import RotaryEmbedding, apply_rotary_pos_emb
    from ropewalk.rotation.rotate import rotate, rotate_qk
    from ropewalk.verification.verify import verify

__all__ = [
    "Attention",
    "Decoder",
    "KVCache",
    "RopeConfig",
    "RopeError",
    "RotaryEmbedding",
    "TextClassifier",
    "apply_rotary_pos_emb",
    "attach",
    "convert_pairing",
    "doctor",
    "encodings",
    "explain_backends",
    "figures",
    "fused",
    "generate",
    "inverse_frequencies",
    "load",
    "positions",
    "rotate",
    "rotate_qk",
    "rotation",
    "save",
    "scaling",
    "verify",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    """Return every public name, imported or not."""
    return sorted({*globals(), *__all__})
