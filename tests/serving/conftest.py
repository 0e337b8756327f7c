"""Nothing is said by transformers; a text to measure on."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.prose import prose


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Its progress bars and notes are not what a test reads."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A text file of 900 words."""
    path = tmp_path / "text.txt"
    path.write_text(prose(900), encoding="utf-8")
    return str(path)
