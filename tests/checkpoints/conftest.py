"""A folder with a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.checkpoints.load import save
from tests.checkpoints.random_models import make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small Llama."""
    save(make(), tmp_path / "model")
    return tmp_path / "model"
