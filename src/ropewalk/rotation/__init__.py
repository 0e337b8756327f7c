"""The rotation of queries and keys, its complex form, and learned frequencies."""

# mypy: implicit-reexport
# ruff: noqa: F401
from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.rotation.complex import apply_rotary_complex, freqs_cis
    from ropewalk.rotation.embedding import RotaryEmbedding, apply_rotary_pos_emb
    from ropewalk.rotation.learned import LearnedFrequencies
    from ropewalk.rotation.rotate import rotate_qk

_HOMES = {
    "LearnedFrequencies": "ropewalk.rotation.learned",
    "RotaryEmbedding": "ropewalk.rotation.embedding",
    "apply_rotary_complex": "ropewalk.rotation.complex",
    "apply_rotary_pos_emb": "ropewalk.rotation.embedding",
    "freqs_cis": "ropewalk.rotation.complex",
    "rotate_qk": "ropewalk.rotation.rotate",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
