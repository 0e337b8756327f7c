"""What a reader is asked for unless said otherwise; settings read it without importing a model."""

from __future__ import annotations

CHUNK = 1024  # tokens of one forward; on two cores 512 to 2,048 differ by a few per cent
