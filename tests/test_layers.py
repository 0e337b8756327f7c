"""A module imports only from rooms above its own: read from the syntax tree, so lazy imports count as well."""

from __future__ import annotations

import ast
from pathlib import Path

import ropewalk

PACKAGE = Path(ropewalk.__file__).parent
ORDER = [
    "version", "lazy", "shapes", "errors", "optional", "atomic_io", "processes", "ledger", "statistics", "progress",
    "dispatch", "families", "rope", "positions", "backends", "rotation", "fused", "encodings", "attention", "models",
    "methods", "attachment", "checkpoints", "builtin", "readers", "audit", "measure", "training", "comparison",
    "figures", "report", "diagnosis", "verification", "extend", "cli", "__main__",
]  # fmt: skip
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
    """Imports of `path` that go down the list of rooms."""
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    wrong = []
    for name in sorted(imports_of(path)):
        there = room(name)
        if here in DOORS or there == here or (there in DOORS and here == "cli"):
            continue
        if there in DOORS or ORDER.index(there) > ORDER.index(here):
            wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    return wrong


def test_imports_go_one_way():
    """No file imports from a room below its own."""
    wrong = [line for path in sorted(PACKAGE.rglob("*.py")) for line in violations(path)]
    assert wrong == []


def names_of(path: Path) -> set[str]:
    """What a file takes out of other modules, with their names before: `ropewalk.rope.one` may be a module itself."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def circles(package: Path) -> list[str]:
    """Return the modules that import themselves by way of others, lazy imports included."""
    files = {
        ".".join(("ropewalk", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
        if path.parent != package or path.stem != "__init__"
    }
    imports = {name: (imports_of(path) | names_of(path)) & set(files) - {name} for name, path in files.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(imports[start])
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                ahead += imports[name]
        return seen

    return sorted(name for name in files if name in reached(name))


def test_no_import_circles():
    """No module needs itself."""
    assert circles(PACKAGE) == []


def test_a_circle_is_found(tmp_path):
    """Two modules that import each other, one of them inside a function."""
    (tmp_path / "rope").mkdir()
    (tmp_path / "rope" / "one.py").write_text("from ropewalk.rope.two import f\n")
    (tmp_path / "rope" / "two.py").write_text("def f():\n    from ropewalk.rope import one\n    return one\n")
    (tmp_path / "rope" / "three.py").write_text("from ropewalk.rope.one import f\n")
    assert circles(tmp_path) == ["ropewalk.rope.one", "ropewalk.rope.two"]


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


def test_no_two_classes_share_a_name():
    """One word, one meaning: a reader who finds a class by its name finds the one that is meant."""
    where: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
