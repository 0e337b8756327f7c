"""Nothing is said by transformers."""

from __future__ import annotations

import pytest
import transformers


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Its progress bars and notes are not what a test reads."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
