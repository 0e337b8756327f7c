"""Compare encodings: the same decoder, text and order, several seeds; losses far beyond the trained length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy import lazy_names

if TYPE_CHECKING:
    from ropewalk.comparison.record import PRESETS, CompareSettings, Curve, Row, convergence, summarise
    from ropewalk.comparison.run import compare, packaged_text

__all__ = ["PRESETS", "CompareSettings", "Curve", "Row", "compare", "convergence", "packaged_text", "summarise"]

_HOMES = {
    "CompareSettings": "ropewalk.comparison.record",
    "Curve": "ropewalk.comparison.record",
    "PRESETS": "ropewalk.comparison.record",
    "Row": "ropewalk.comparison.record",
    "compare": "ropewalk.comparison.run",
    "convergence": "ropewalk.comparison.record",
    "packaged_text": "ropewalk.comparison.run",
    "summarise": "ropewalk.comparison.record",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
