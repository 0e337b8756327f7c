"""A checkpoint that reads further: a method applied, tuned or searched, and written for others to load."""

from __future__ import annotations

from ropewalk.extend.apply_run import apply
from ropewalk.extend.search_run import search
from ropewalk.extend.settings import ApplySettings, SearchSettings, TuneSettings
from ropewalk.extend.tune_run import tune

__all__ = ["ApplySettings", "SearchSettings", "TuneSettings", "apply", "search", "tune"]
