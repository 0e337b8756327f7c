"""Name the choices of retrieval; settings read them without importing a model."""

from __future__ import annotations

TASKS = ("numbers", "passkey")
DEFAULT_TASKS = ("numbers",)
HAYSTACKS = ("noise", "text")
SAMPLES = 4
"""Texts for each task and length."""
