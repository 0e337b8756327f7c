"""ropewalk: rotary position embeddings, exact in every published variant.

Importing the package is nearly free: each public name, and torch with it, is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names
from ropewalk.version import __version__ as __version__

if TYPE_CHECKING:
    from ropewalk import encodings as encodings
    from ropewalk import figures as figures
    from ropewalk import fused as fused
    from ropewalk import positions as positions
    from ropewalk import rotation as rotation
    from ropewalk.attachment.handle import attach as attach
    from ropewalk.checkpoints.load import load as load
    from ropewalk.checkpoints.load import save as save
    from ropewalk.diagnosis.run import doctor as doctor
    from ropewalk.errors import RopeError as RopeError
    from ropewalk.models.attention import Attention as Attention
    from ropewalk.models.cache import KVCache as KVCache
    from ropewalk.models.classifier import TextClassifier as TextClassifier
    from ropewalk.models.decoder import Decoder as Decoder
    from ropewalk.models.generation import generate as generate
    from ropewalk.rope import scaling as scaling
    from ropewalk.rope.config import RopeConfig as RopeConfig
    from ropewalk.rope.frequencies import inverse_frequencies as inverse_frequencies
    from ropewalk.rope.pairing import convert_pairing as convert_pairing
    from ropewalk.rotation.backends import explain_backends as explain_backends
    from ropewalk.rotation.embedding import RotaryEmbedding as RotaryEmbedding
    from ropewalk.rotation.embedding import apply_rotary_pos_emb as apply_rotary_pos_emb
    from ropewalk.rotation.rotate import rotate as rotate
    from ropewalk.rotation.rotate import rotate_qk as rotate_qk
    from ropewalk.verification.verify import verify as verify

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

    def __dir__() -> list[str]:
        """Return every public name, imported or not."""
        return sorted({*globals(), *__getattr__("__all__")})
