"""What can be chosen of retrieval, by name; settings read it without importing a model."""

from __future__ import annotations

TASKS = ("numbers", "passkey", "niah_single", "niah_multikey", "niah_multivalue", "vt", "cwe", "fwe")
DEFAULT_TASKS = ("numbers",)
FORMS = ("many", "one")
"""Many questions after one text, or one question at the end of a text of its own."""
HAYSTACKS = ("noise", "text")
SCORINGS = ("choice", "generate")
SAMPLES = 4
"""Texts for each task and length; where a text has one question, for each depth as well."""
