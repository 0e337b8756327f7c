"""A training file and a test file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.classification.material import texts, write


@pytest.fixture
def data(tmp_path: Path) -> str:
    """120 labelled texts of three classes."""
    return write(tmp_path / "train.csv", texts(120))


@pytest.fixture
def test_file(tmp_path: Path) -> str:
    """60 others."""
    return write(tmp_path / "test.csv", texts(60, seed=1))
