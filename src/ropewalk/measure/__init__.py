"""Measure a model on text: losses, copies of distant tokens, and retrieval, with one job engine and one estimate."""

from __future__ import annotations

TASKS = ("numbers", "passkey")
DEFAULT_TASKS = ("numbers",)
HAYSTACKS = ("noise", "text")
SAMPLES = 4
"""Texts for each task and length."""
