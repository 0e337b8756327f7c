"""Facts and warnings about a config and its frequencies, and a check of a live model, without running the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.audit.findings import Finding as Finding
    from ropewalk.audit.live_check import check as check

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
