"""Serving engines and the methods that they run: the command that serves a model, and the checkpoint that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.serving.serve import apply as apply
    from ropewalk.serving.serve import serve_config as serve_config

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
