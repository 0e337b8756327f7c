"""The page in the package is the one that web/'s sources give: told without Node."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
from importlib import resources
from pathlib import Path

import pytest

from ropewalk.report.explorer import built_page

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
SETTINGS = ("build.mjs", "package.json", "package-lock.json", "tsconfig.json")

NAMES = {
    "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1999/xlink",
    "http://www.w3.org/XML/1998/namespace", "http://www.w3.org/2000/xmlns", "https://arxiv.org/abs",
}  # fmt: skip
"""Addresses in programs that are no requests: namespaces, and links to papers."""


def digest(web: Path) -> str:
    """As web/build.mjs computes it: names and contents of every source, in order."""
    sources = [path.relative_to(web).as_posix() for path in (web / "src").rglob("*") if path.is_file()]
    found = hashlib.sha256()
    for name in sorted([*SETTINGS, *sources]):
        found.update(f"{name}\0".encode() + (web / name).read_bytes() + b"\0")
    return found.hexdigest()


def recorded(page: str) -> str | None:
    """The hash that a built page holds."""
    found = re.search(r'<meta name="ropewalk-sources" content="([0-9a-f]{64})">', page)
    return None if found is None else found[1]


def test_the_page_is_built_from_these_sources():
    """After a change of web/, `make web` builds the page anew."""
    assert recorded(built_page()) == digest(WEB), "web/ has changed since page.html was built: run `make web`"


def test_the_reports_program_is_built_from_these_sources():
    """The other file that `make web` writes; it names no other place either."""
    program = resources.files("ropewalk.report").joinpath("interactive.js").read_text(encoding="utf-8")
    assert program.partition("\n")[0] == f"// web/ {digest(WEB)}", "web/ has changed: run `make web`"
    assert {address.rstrip("/") for address in re.findall(r"https?://[\w./-]*", program)} <= NAMES


def test_a_changed_source_is_noticed(tmp_path):
    """Another content, another name."""
    for name in (*SETTINGS, "src/a.ts"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    first = digest(tmp_path)
    (tmp_path / "src" / "a.ts").write_text("changed")
    second = digest(tmp_path)
    (tmp_path / "src" / "a.ts").rename(tmp_path / "src" / "b.ts")
    assert len({first, second, digest(tmp_path)}) == 3


def test_the_page_names_no_other_place():
    """No address of a script, style, image or font: the only links lead to papers, and namespaces are names."""
    page = built_page()
    assert {address.rstrip("/") for address in re.findall(r"https?://[\w./-]*", page)} <= NAMES
    assert "default-src 'none'" in page


def test_the_lock_file_pins_every_package():
    """Each with its hash, and without the registry's address."""
    lock = json.loads((WEB / "package-lock.json").read_text())["packages"]
    packages = {name: entry for name, entry in lock.items() if name}
    assert packages
    assert all(entry.get("integrity") for entry in packages.values())
    assert not any("resolved" in entry for entry in packages.values())
    asked = json.loads((WEB / "package.json").read_text())
    versions = {**asked["dependencies"], **asked["devDependencies"]}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())


@pytest.mark.parametrize("script", ["explorer_golden"])
def test_the_golden_files_are_what_python_computes(script):
    """What web/'s own tests compare with."""
    made = runpy.run_path(str(ROOT / "scripts" / f"{script}.py"))
    assert json.loads(made["PATH"].read_text()) == json.loads(json.dumps(made["golden"]()))
