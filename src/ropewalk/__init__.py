"""ropewalk: rotary position embeddings, exact in every published variant."""

from ropewalk import encodings
from ropewalk.attention.attention import Attention
from ropewalk.attention.cache import KVCache
from ropewalk.backends import explain_backends
from ropewalk.backends.request import Store
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint import load, save
from ropewalk.models.classifier import TextClassifier, TextClassifierConfig
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.generate import generate, stream
from ropewalk.rope import scaling
from ropewalk.rope.config import RopeConfig, axes_from_sections
from ropewalk.rope.frequencies import Frequencies, inverse_frequencies
from ropewalk.rope.pairing import convert_pairing
from ropewalk.rope.tables import text_positions
from ropewalk.rotation.complex import apply_rotary_complex, freqs_cis
from ropewalk.rotation.embedding import RotaryEmbedding, apply_rotary_pos_emb
from ropewalk.rotation.learned import LearnedFrequencies
from ropewalk.rotation.qk_norm import qk_norm_rotate
from ropewalk.rotation.rotate import rotate, rotate_qk

__version__ = "0.1.0"

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
    "axes_from_sections",
    "convert_pairing",
    "encodings",
    "explain_backends",
    "freqs_cis",
    "generate",
    "inverse_frequencies",
    "load",
    "qk_norm_rotate",
    "rotate",
    "rotate_qk",
    "save",
    "scaling",
    "stream",
    "text_positions",
]
