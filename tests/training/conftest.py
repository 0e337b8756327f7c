"""A text to train on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.material import prose


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by a second thread, and badly on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A text file of 1,200 words."""
    path = tmp_path / "text.txt"
    path.write_text(prose(1200), encoding="utf-8")
    return str(path)
