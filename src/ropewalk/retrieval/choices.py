"""What can be chosen of retrieval, by name; settings read it without importing a model."""

from __future__ import annotations

TASKS = ("passkey", "niah_single", "niah_multikey", "niah_multivalue", "vt", "cwe", "fwe")
HAYSTACKS = ("noise", "text")
SCORINGS = ("choice", "generate")
SAMPLES = 10
"""Examples for each task, length and depth."""
