"""The rotation of queries and keys, its complex form, and learned frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.rotation.embedding import RotaryEmbedding as RotaryEmbedding
    from ropewalk.rotation.embedding import apply_rotary_pos_emb as apply_rotary_pos_emb
    from ropewalk.rotation.learned import LearnedFrequencies as LearnedFrequencies
    from ropewalk.rotation.rotate import apply_rotary_complex as apply_rotary_complex
    from ropewalk.rotation.rotate import freqs_cis as freqs_cis
    from ropewalk.rotation.rotate import rotate_qk as rotate_qk

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
