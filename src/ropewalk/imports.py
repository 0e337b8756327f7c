"""Imports on first use: of a package's own names, and of optional packages, with the command that installs them."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.metadata import version as _version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ropewalk.errors import RopeError, shell_command

OLDEST: dict[str, tuple[int, int]] = {"transformers": (5, 17)}
"""The oldest release of a package that is supported; pyproject.toml states the same."""
version = cache(_version)  # each call parses all of a package's metadata: 5 ms


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports a name on first use and keeps it as a plain attribute.

    The names and their homes are those of the imports in the package's `if TYPE_CHECKING:`, which type checkers read.
    They are its `__all__`. Its subpackages are attributes, too.

    >>> lazy_names("ropewalk")("RopeError").__name__
    'RopeError'
    """

    @cache
    def homes() -> dict[str, str]:
        spec: Any = sys.modules[package].__spec__
        blocks = [node for node in ast.parse(spec.loader.get_source(package)).body if isinstance(node, ast.If)]
        lines = next(block.body for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING")
        imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
        return {alias.name: str(line.module) for line in imports for alias in line.names}

    def name_of(name: str) -> Any:
        home = package if name.startswith("_") else homes().get(name, package)
        if name == "__all__":
            value: Any = sorted(homes())
        elif home != package and hasattr(module := import_module(home), name):
            value = getattr(module, name)
        elif not name.startswith("_") and find_spec(f"{home}.{name}") is not None:
            value = import_module(f"{home}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return name_of


def need(module: str, extra: str = "hf") -> Any:
    """Import `module`; if it is missing or too old, raise `RopeError` with the extra that installs it.

    >>> need("json").dumps([1])
    '[1]'
    """
    _check_release(module.partition(".")[0], extra)
    try:
        return import_module(module)
    except ImportError as error:
        raise RopeError(
            f"ropewalk: the package `{module.partition('.')[0]}` is needed here and cannot be imported.",
            facts={"error": str(error)},
            cure=f"Install it: {install_command(extra)}",
        ) from error


def _check_release(package: str, extra: str) -> None:
    """Raise `RopeError` if the installed release of the package is older than the oldest that is supported."""
    try:
        found = version(package) if package in OLDEST else ""
    except PackageNotFoundError:
        return
    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers and numbers < OLDEST[package]:
        oldest = ".".join(map(str, OLDEST[package]))
        raise RopeError(
            f"ropewalk: {package} {found} is too old: {oldest} is the oldest release that is supported.",
            facts={"installed": found, "needed": f">={oldest}"},
            cure=f"Install a newer one: {shell_command('pip', 'install', '--upgrade', f'{package}>={oldest}')}",
        )


def install_command(extra: str) -> str:
    """Return the command that installs ropewalk with an extra from this copy's source: a checkout, git, an index.

    pip writes where it installed a package from into direct_url.json (PEP 610), except from an index.

    >>> install_command("cli").endswith("[cli]'")
    True
    """
    try:
        origin = json.loads(distribution("ropewalk").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url, checkout = origin.get("url", ""), Path(__file__).resolve().parents[2]
    if _is_ours(checkout):
        return shell_command("pip", "install", "-e", f"{checkout}[{extra}]")
    if url.startswith("file:") and _is_ours(folder := Path(url2pathname(urlsplit(url).path))):
        return shell_command("pip", "install", f"{folder}[{extra}]")
    source = f" @ {origin['vcs_info'].get('vcs', 'git')}+{url}" if "vcs_info" in origin else ""
    return shell_command("pip", "install", f"ropewalk[{extra}]{source}")


def _is_ours(folder: Path) -> bool:
    """Return whether the folder is a checkout of this project."""
    try:
        return 'name = "ropewalk"' in (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
