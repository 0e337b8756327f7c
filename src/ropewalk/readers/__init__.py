"""The interface for measuring models, and its adapters."""

from __future__ import annotations

CHUNK = 2048  # tokens of one forward: enough for large products, few enough for caches and memory
