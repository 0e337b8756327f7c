"""Rules for the package that import-linter does not check. `make check` also runs the contracts of pyproject.toml."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

import ropewalk

PACKAGE = Path(ropewalk.__file__).parent


def test_no_package_and_its_modules_import_each_other() -> None:
    """import-linter compares siblings; this compares a package's `__init__` with the modules that it imports."""
    graph = grimp.build_graph("ropewalk")
    circles = [
        (package, module)
        for package in graph.modules
        for module in graph.find_modules_directly_imported_by(package)
        if module.startswith(f"{package}.") and graph.find_shortest_chain(importer=module, imported=package)
    ]
    assert len(graph.modules) > 100
    assert circles == []


def test_no_two_classes_share_a_name() -> None:
    """A reader who searches for a class finds one."""
    files: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}
