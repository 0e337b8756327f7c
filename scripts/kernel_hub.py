"""Write the rotation's Triton kernels in the layout of the Hugging Face Kernel Hub.

    python scripts/kernel_hub.py --out ropewalk-rotary [--backends cuda rocm cpu]

The folder has `build.toml` and `torch-ext/ropewalk_rotary` for kernel-builder, and `build/torch-BACKEND` with
`metadata.json`, which `kernels` loads. hub/rotary holds what only this form needs (functions, layers, README). The
rest is copied from the package: the module of the rotation and everything that it imports, with relative imports, so
that it loads from any path and beside an installed ropewalk.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, OWN = ROOT / "src", ROOT / "hub" / "rotary"
PACKAGE, ENTRY, COPIED = "ropewalk", "ropewalk.rotation.rotate", "_ropewalk"
IMPORT = re.compile(r"^(\s*)from ropewalk(\.[\w.]+)? import ", re.MULTILINE)
OTHER_IMPORT = re.compile(r"^\s*import ropewalk\b", re.MULTILINE)
EXTENSION = '"ropewalk._kernels"'  # the compiled extension, which does not travel


def main() -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backends", nargs="+", help="default: those of build.toml")
    options = parser.parse_args()
    for path in write(options.out, options.backends):
        print(path)
    return 0


def write(out: Path, backends: list[str] | None = None) -> list[Path]:
    """Write the folder anew; return its variants.

    Raises SystemExit if the folder holds something else.
    """
    if out.exists() and any(out.iterdir()) and not (out / "build.toml").is_file():
        sys.exit(f"{out} is not empty and no kernel. Choose a new folder.")
    general = tomllib.loads((OWN / "build.toml").read_text(encoding="utf-8"))["general"]
    name, module = general["name"], general["name"].replace("-", "_")
    for old in ("torch-ext", "build"):
        shutil.rmtree(out / old, ignore_errors=True)
    package = out / "torch-ext" / module
    package.mkdir(parents=True)
    for file in ("build.toml", "README.md"):
        shutil.copyfile(OWN / file, out / file)
    for file in sorted(OWN.glob("*.py")):
        shutil.copyfile(file, package / file.name)
    for dotted in closure(ENTRY):
        write_module(dotted, package / COPIED)
    shutil.copyfile(ROOT / "LICENSE", package / "LICENSE")
    digest = digest_of(package)
    variants = []
    for backend in backends or general["backends"]:
        variant = out / "build" / f"torch-{backend}"
        shutil.copytree(package, variant)
        facts = {"name": name, "id": f"_{module}_{backend}_{digest}", "version": general["version"],
                 "license": general["license"], "python-depends": [], "backend": {"type": backend}}  # fmt: skip
        (variant / "metadata.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        variants.append(variant)
    return variants


def closure(entry: str) -> list[str]:
    """Return a module of the package and all of the package that it imports, also inside functions."""
    seen: dict[str, None] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen[name] = None
            waiting += imported(name)
    return sorted(seen)


def imported(name: str) -> Iterator[str]:
    """Yield the package's modules that a module imports."""
    text = file_of(name).read_text(encoding="utf-8")
    assert not OTHER_IMPORT.search(text), f"{name} imports the package by `import`, which this script does not rewrite"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if file_of(inner).is_file() else str(node.module)


def file_of(name: str) -> Path:
    """Return the file of a module or a package."""
    path = SOURCE / name.replace(".", "/")
    return path / "__init__.py" if (path / "__init__.py").is_file() else path.with_suffix(".py")


def write_module(name: str, target: Path) -> None:
    """Copy a module with relative imports; packages that are not copied become empty."""
    source = file_of(name)
    place = source.relative_to(SOURCE / PACKAGE)
    dots = "." * len(place.parts)
    text = IMPORT.sub(lambda found: f"{found[1]}from {dots}{(found[2] or '.')[1:]} import ", source.read_text("utf-8"))
    text = text.replace(EXTENSION, f'f"{{__package__}}.{EXTENSION.strip(chr(34)).rpartition(".")[2]}"')
    path = target / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for folder in [path.parent, *path.parent.parents]:
        if not (folder / "__init__.py").exists():
            (folder / "__init__.py").write_text("", encoding="utf-8")
        if folder == target:
            break


def digest_of(folder: Path) -> str:
    """Return a short digest of all files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:8]


if __name__ == "__main__":
    sys.exit(main())
