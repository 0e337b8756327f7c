"""ropewalk: rotary position embeddings, exact in every published variant.

Importing the package costs nearly nothing: each public name is imported when it is first used, and torch with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names
from ropewalk.version import __version__ as __version__

if TYPE_CHECKING:
    from ropewalk import distributed, encodings
    from ropewalk.attachment.handle import attach, attached
    from ropewalk.attention.attention import Attention
    from ropewalk.attention.cache import KVCache
    from ropewalk.backends import explain_backends
    from ropewalk.backends.request import Store
    from ropewalk.checkpoints.load import load, save
    from ropewalk.diagnosis.doctor import doctor
    from ropewalk.errors import RopeError
    from ropewalk.models.classifier import TextClassifier, TextClassifierConfig
    from ropewalk.models.config import DecoderConfig
    from ropewalk.models.decoder import Decoder
    from ropewalk.models.generate import generate, stream
    from ropewalk.rope import scaling
    from ropewalk.rope.axes import axes_from_sections
    from ropewalk.rope.config import RopeConfig
    from ropewalk.rope.frequencies import Frequencies, inverse_frequencies
    from ropewalk.rope.grids import grid_positions
    from ropewalk.rope.mrope import mrope_positions
    from ropewalk.rope.pairing import convert_pairing
    from ropewalk.rope.positions import page_slots, positions_from
    from ropewalk.rope.tables import text_positions
    from ropewalk.rotation.complex import apply_rotary_complex, freqs_cis
    from ropewalk.rotation.embedding import RotaryEmbedding, apply_rotary_pos_emb
    from ropewalk.rotation.learned import LearnedFrequencies
    from ropewalk.rotation.qk_norm import qk_norm_rotate, rotate_store
    from ropewalk.rotation.rotate import rotate, rotate_qk
    from ropewalk.verification.verify import verify

__all__ = [
    "Attention",
    "Decoder",
    "DecoderConfig",
    "Frequencies",
    "KVCache",
    "LearnedFrequencies",
    "RopeConfig",
    "RopeError",
    "RotaryEmbedding",
    "Store",
    "TextClassifier",
    "TextClassifierConfig",
    "apply_rotary_complex",
    "apply_rotary_pos_emb",
    "attach",
    "attached",
    "axes_from_sections",
    "convert_pairing",
    "distributed",
    "doctor",
    "encodings",
    "explain_backends",
    "freqs_cis",
    "generate",
    "grid_positions",
    "inverse_frequencies",
    "load",
    "mrope_positions",
    "page_slots",
    "positions_from",
    "qk_norm_rotate",
    "rotate",
    "rotate_qk",
    "rotate_store",
    "save",
    "scaling",
    "stream",
    "text_positions",
    "verify",
]

_HOMES = {
    "Attention": "ropewalk.attention.attention",
    "Decoder": "ropewalk.models.decoder",
    "DecoderConfig": "ropewalk.models.config",
    "Frequencies": "ropewalk.rope.frequencies",
    "KVCache": "ropewalk.attention.cache",
    "LearnedFrequencies": "ropewalk.rotation.learned",
    "RopeConfig": "ropewalk.rope.config",
    "RopeError": "ropewalk.errors",
    "RotaryEmbedding": "ropewalk.rotation.embedding",
    "Store": "ropewalk.backends.request",
    "TextClassifier": "ropewalk.models.classifier",
    "TextClassifierConfig": "ropewalk.models.classifier",
    "apply_rotary_complex": "ropewalk.rotation.complex",
    "apply_rotary_pos_emb": "ropewalk.rotation.embedding",
    "attach": "ropewalk.attachment.handle",
    "attached": "ropewalk.attachment.handle",
    "axes_from_sections": "ropewalk.rope.axes",
    "convert_pairing": "ropewalk.rope.pairing",
    "distributed": "ropewalk.distributed",
    "doctor": "ropewalk.diagnosis.doctor",
    "encodings": "ropewalk.encodings",
    "explain_backends": "ropewalk.backends",
    "freqs_cis": "ropewalk.rotation.complex",
    "grid_positions": "ropewalk.rope.grids",
    "generate": "ropewalk.models.generate",
    "inverse_frequencies": "ropewalk.rope.frequencies",
    "load": "ropewalk.checkpoints.load",
    "mrope_positions": "ropewalk.rope.mrope",
    "page_slots": "ropewalk.rope.positions",
    "positions_from": "ropewalk.rope.positions",
    "qk_norm_rotate": "ropewalk.rotation.qk_norm",
    "rotate": "ropewalk.rotation.rotate",
    "rotate_qk": "ropewalk.rotation.rotate",
    "rotate_store": "ropewalk.rotation.qk_norm",
    "save": "ropewalk.checkpoints.load",
    "scaling": "ropewalk.rope.scaling",
    "stream": "ropewalk.models.generate",
    "text_positions": "ropewalk.rope.tables",
    "verify": "ropewalk.verification.verify",
}
"""The module of each public name: what the imports above say to a type checker."""

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES, modules=("distributed", "encodings", "scaling"))


def __dir__() -> list[str]:
    """Every public name, used or not."""
    return sorted({*globals(), *__all__})
