"""Extend a checkpoint's context: apply a method, write a checkpoint, and tune it with transformers' Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.extend.callback import DoctorCallback
    from ropewalk.extend.collator import SkipCollator
    from ropewalk.extend.runs import apply
    from ropewalk.extend.settings import ApplySettings
    from ropewalk.serving.serve import serve_config

__all__ = ["ApplySettings", "DoctorCallback", "SkipCollator", "apply", "serve_config"]

_HOMES = {
    "ApplySettings": "ropewalk.extend.settings",
    "DoctorCallback": "ropewalk.extend.callback",
    "SkipCollator": "ropewalk.extend.collator",
    "apply": "ropewalk.extend.runs",
    "serve_config": "ropewalk.serving.serve",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
