"""A text to train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.material import prose


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A text file of 1,200 words."""
    path = tmp_path / "text.txt"
    path.write_text(prose(1200), encoding="utf-8")
    return str(path)
