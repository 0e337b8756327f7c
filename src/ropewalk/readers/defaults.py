"""What a reader is asked for unless said otherwise; settings read it without importing a model."""

from __future__ import annotations

CHUNK = 2048  # tokens of one forward: enough for large products, few enough for caches and memory
