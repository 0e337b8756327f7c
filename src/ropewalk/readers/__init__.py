"""The interface of models that can be measured, and the adapters that provide it."""

from __future__ import annotations

CHUNK = 2048  # tokens of one forward: enough for large products, few enough for caches and memory
