"""A module imports only from rooms above its own: read from the syntax tree, so lazy imports count as well."""

from __future__ import annotations

import ast
from pathlib import Path

import ropewalk

PACKAGE = Path(ropewalk.__file__).parent
ORDER = ["shapes", "errors", "eager", "compiled", "rope", "backends", "rotation", "encodings", "attention", "models",
         "training", "classification", "context", "bench", "comparison", "extend", "figures",
         "gallery", "report", "cli", "__main__"]  # fmt: skip
APART = {("training", "context"), ("context", "training"), ("context", "figures"), ("figures", "context"),
         ("bench", "context"), ("bench", "training"), ("figures", "bench"),
         ("figures", "extend")}  # fmt: skip
# the two doors: the package's own list of names, and the version that the command line prints
DOORS = {"__init__"}


def room(module: str) -> str:
    """`ropewalk.rope.config` is in the room `rope`; `ropewalk` itself is the door `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path) -> set[str]:
    """The ropewalk modules that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "ropewalk"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ropewalk":
            if node.module == "ropewalk":
                found |= {f"ropewalk.{alias.name}" for alias in node.names if (PACKAGE / alias.name).exists()
                          or (PACKAGE / f"{alias.name}.py").exists()} or {"ropewalk"}  # fmt: skip
            else:
                found.add(node.module)
    return found


def violations(path: Path) -> list[str]:
    """Imports of `path` that go down the list of rooms, or between rooms that stand side by side."""
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    wrong = []
    for name in sorted(imports_of(path)):
        there = room(name)
        if here in DOORS or there == here or (there in DOORS and here == "cli"):
            continue
        if there in DOORS or ORDER.index(there) > ORDER.index(here) or (here, there) in APART:
            wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    return wrong


def test_imports_go_one_way():
    """No file imports from a room below its own."""
    wrong = [line for path in sorted(PACKAGE.rglob("*.py")) for line in violations(path)]
    assert wrong == []


def test_every_room_is_in_the_order():
    """A new folder or module of the package has its place in the list."""
    there = {
        path.name.removesuffix(".py")
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there - DOORS <= set(ORDER)


def test_the_check_can_fail(tmp_path, monkeypatch):
    """An import downwards, hidden in a function, is found."""
    (tmp_path / "rope").mkdir()
    bad = tmp_path / "rope" / "bad.py"
    bad.write_text("def f():\n    from ropewalk.models.decoder import Decoder\n    return Decoder\n")
    monkeypatch.setattr("tests.test_layers.PACKAGE", tmp_path)
    assert violations(bad) == ["rope/bad.py imports ropewalk.models.decoder"]
