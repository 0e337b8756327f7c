"""A training file and a test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.classification.material import texts, write


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by a second thread, and badly on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """120 labelled texts of three classes."""
    return write(tmp_path / "train.csv", texts(120))


@pytest.fixture
def test_file(tmp_path: Path) -> str:
    """60 others."""
    return write(tmp_path / "test.csv", texts(60, seed=1))
