"""A checkpoint that reads further: a method applied, tuned or searched, and written for others to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.extend.apply_run import apply
    from ropewalk.extend.search_run import search
    from ropewalk.extend.serve import serve_config
    from ropewalk.extend.settings import ApplySettings, SearchSettings, TuneSettings
    from ropewalk.extend.tune_run import tune

__all__ = ["ApplySettings", "SearchSettings", "TuneSettings", "apply", "search", "serve_config", "tune"]

_HOMES = {
    "ApplySettings": "ropewalk.extend.settings",
    "SearchSettings": "ropewalk.extend.settings",
    "TuneSettings": "ropewalk.extend.settings",
    "apply": "ropewalk.extend.apply_run",
    "search": "ropewalk.extend.search_run",
    "serve_config": "ropewalk.extend.serve",
    "tune": "ropewalk.extend.tune_run",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
