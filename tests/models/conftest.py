"""Fixtures of the tests of attention."""

from __future__ import annotations

import pytest

from ropewalk.attention import attend


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few queries, so that short rows have several."""
    monkeypatch.setattr(attend, "OPEN_BLOCK", 5)
