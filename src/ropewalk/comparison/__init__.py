"""The same decoder with each encoding: one text, one order, several seeds; loss far beyond the trained length."""

from __future__ import annotations

from ropewalk.comparison.run import compare, packaged_text
from ropewalk.comparison.settings import PRESETS, CompareSettings
from ropewalk.comparison.summary import Curve, Row, convergence, summarise

__all__ = ["PRESETS", "CompareSettings", "Curve", "Row", "compare", "convergence", "packaged_text", "summarise"]
