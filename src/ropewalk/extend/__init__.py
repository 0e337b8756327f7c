"""Extend a checkpoint's context: apply a method, tune under it, and write a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.extend.callback import DoctorCallback
    from ropewalk.extend.runs import apply
    from ropewalk.extend.settings import ApplySettings, TuneSettings
    from ropewalk.extend.tuning import tune
    from ropewalk.extend.windows import SkipCollator
    from ropewalk.serving.serve import serve_config

__all__ = ["ApplySettings", "DoctorCallback", "SkipCollator", "TuneSettings", "apply", "serve_config", "tune"]

_HOMES = {
    "ApplySettings": "ropewalk.extend.settings",
    "DoctorCallback": "ropewalk.extend.callback",
    "SkipCollator": "ropewalk.extend.windows",
    "TuneSettings": "ropewalk.extend.settings",
    "apply": "ropewalk.extend.runs",
    "serve_config": "ropewalk.serving.serve",
    "tune": "ropewalk.extend.tuning",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
