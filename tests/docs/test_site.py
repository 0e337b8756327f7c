"""The site builds without a warning, and asks for nothing from elsewhere when it is opened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="mkdocs-material is in the extra `docs`")
ROOT = Path(__file__).parents[2]
if not (ROOT / "mkdocs.yml").exists():
    pytest.skip("the source distribution has no mkdocs.yml", allow_module_level=True)
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b[^>]*\bhref=[\"']?([^\"'\s>]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(site):
    """One HTML file for each page."""
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_nothing_is_fetched_from_elsewhere(site):
    """Scripts, styles, fonts and pictures lie in the folder; styles ask for no address."""
    for page in site.rglob("*.html"):
        loaded = [one or other for one, other in LOADED.findall(page.read_text(encoding="utf-8"))]
        assert loaded or page.parent.name == "explorer"  # one file that holds everything
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)[\s\"']*(https?:)?//", style.read_text(encoding="utf-8"))


def test_the_reference_has_every_public_name(site):
    """Each with its docstring's first words."""
    import ropewalk as rw

    text = (site / "reference.html").read_text(encoding="utf-8")
    assert [name for name in rw.__all__ if f"rw.{name}" not in text] == []
    assert "Turn each feature pair of" in text


def test_every_method_has_its_row(site):
    """What it changes, what it costs, whether a config can hold it."""
    from ropewalk.methods import METHODS

    text = (site / "extending.html").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"<code>{name}</code>" not in text] == []
