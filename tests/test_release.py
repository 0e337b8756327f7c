"""What a release is made of agrees with itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ropewalk import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> set[str]:
    """The packages that constraints.txt pins, by their normalised names."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines if "==" in line}


def test_the_citation_names_this_version() -> None:
    """CITATION.cff repeats the version, which stands in version.py."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert __version__ == cited[1]


def test_every_requirement_of_the_project_is_pinned() -> None:
    """A fresh clone installs the same packages tomorrow; torch is pinned by the Makefile, which takes the CPU build."""
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [each for name in extras if name != "lm-eval" for each in extras[name]] + PROJECT["project"][
        "dependencies"
    ]
    names = {re.split(r"[\[<>=;~ ]", each, maxsplit=1)[0].lower().replace("_", "-") for each in wanted}
    assert not names - pins() - {"ropewalk", "torch"}


def test_every_extra_is_in_the_install_page() -> None:
    """docs/install.md says what each extra brings."""
    page = (ROOT / "docs/install.md").read_text()
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev"}
    assert not {name for name in extras if f"| `{name}` |" not in page}


def test_the_demo_installs_the_runtime_alone() -> None:
    """`make demo` takes no development extra on a fresh clone."""
    makefile = (ROOT / "Makefile").read_text()
    assert "$(VENV)/.demo: EXTRAS := cli,figures" in makefile
    assert "demo: $(DEMO)" in makefile
