"""What tests of several commands run on: a fresh cache, a small checkpoint and a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.cli.doctor_runs import TEXT, write_checkpoint
from tests.diagnosis.models import ROPE


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """State goes to a fresh cache, and tables are wide."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A Hugging Face folder: 256 trained tokens, 256 bytes of vocabulary."""
    return write_checkpoint(tmp_path / "model", dataclasses.replace(ROPE, max_position_embeddings=256))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """3,180 characters."""
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"
