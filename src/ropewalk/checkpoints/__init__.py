"""Read and write files of weights with their configs and tokenizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.checkpoints.load import read_alpha

__all__ = ["read_alpha"]

_HOMES = {"read_alpha": "ropewalk.checkpoints.load"}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
