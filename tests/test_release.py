"""Consistency of the files that a release consists of."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ropewalk import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> set[str]:
    """Return the normalised names of the packages that constraints.txt pins."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines if "==" in line}


def test_the_citation_names_this_version() -> None:
    """CITATION.cff repeats the version of version.py."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert __version__ == cited[1]


def test_every_requirement_of_the_project_is_pinned() -> None:
    """A fresh clone installs the same packages tomorrow; torch is pinned by the Makefile, which takes the CPU build."""
    lists = {**PROJECT["project"]["optional-dependencies"], **PROJECT["dependency-groups"]}
    wanted = [each for entries in lists.values() for each in entries if isinstance(each, str)]
    names = {re.split(r"[\[<>=;~ ]", each, maxsplit=1)[0] for each in wanted + PROJECT["project"]["dependencies"]}
    assert not {name.lower().replace("_", "-") for name in names} - pins() - {"ropewalk", "torch"}


def test_every_extra_is_in_the_install_page() -> None:
    """docs/install.md says what each extra and each group of developers brings."""
    path = ROOT / "docs/install.md"
    if not path.exists():
        pytest.skip("the source distribution has no docs/")
    page = path.read_text()
    names = [*PROJECT["project"]["optional-dependencies"], *PROJECT["dependency-groups"]]
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_contributing_has_the_order_of_the_contract() -> None:
    """The subpackages in CONTRIBUTING.md are those of import-linter's contract, from the lowest."""
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    (block,) = re.findall(r"(?ms)^    version, .*?-> cli$", (ROOT / "CONTRIBUTING.md").read_text())
    names = re.findall(r"\w+", block.replace("(plain data)", ""))
    assert names == [name for name in contract[::-1] if name != "__main__"]
