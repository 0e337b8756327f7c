"""The browser and the page that the explorer's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.figures.explorer import page_of
from tests.figures.browser import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the file."""
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page, as a file."""
    path: Path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(page_of(), encoding="utf-8")
    return path.as_uri()
