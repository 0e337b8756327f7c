"""Extend a checkpoint's context: apply a method, tune under it, write it for others to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.extend.apply_run import apply
    from ropewalk.extend.serve import serve_config
    from ropewalk.extend.settings import ApplySettings, TuneSettings
    from ropewalk.extend.tune_run import tune

__all__ = ["ApplySettings", "TuneSettings", "apply", "serve_config", "tune"]

_HOMES = {
    "ApplySettings": "ropewalk.extend.settings",
    "TuneSettings": "ropewalk.extend.settings",
    "apply": "ropewalk.extend.apply_run",
    "serve_config": "ropewalk.extend.serve",
    "tune": "ropewalk.extend.tune_run",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
