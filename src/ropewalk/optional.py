"""Imports of optional packages on first use, with the command that installs a missing one."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ropewalk.errors import RopeError


def need(module: str, extra: str = "hf") -> Any:
    """Import `module`; if it is missing, raise `RopeError` with the extra that installs it.

    >>> need("json").dumps([1])
    '[1]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RopeError(
            f"ropewalk: the package `{module.partition('.')[0]}` is needed here and cannot be imported.",
            facts={"error": str(error)},
            cure=f"Install it: {install_command(extra)}",
        ) from error


def install_command(extra: str) -> str:
    """Return the command that installs ropewalk with an extra from this copy's source: a checkout, git, an index.

    >>> install_command("cli").endswith("[cli]'")
    True
    """
    checkout = Path(__file__).resolve().parents[2]
    if _is_ours(checkout):
        return _command("-e", f"{checkout}[{extra}]")
    origin = _origin()
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        folder = Path(url2pathname(urlsplit(url).path))
        if _is_ours(folder):
            return _command(f"{folder}[{extra}]")
    if "vcs_info" in origin:
        return _command(f"ropewalk[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}")
    return _command(f"ropewalk[{extra}]")


def _command(*words: str) -> str:
    """Return the command with quoted brackets."""
    return shlex.join(["pip", "install", *words])


def _is_ours(folder: Path) -> bool:
    """Return whether the folder is a checkout of this project."""
    try:
        return 'name = "ropewalk"' in (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False


def _origin() -> dict[str, Any]:
    """Return the origin of the installed package (PEP 610's direct_url.json); empty if it came from an index."""
    try:
        written = distribution("ropewalk").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    content = json.loads(written or "{}")
    return content if isinstance(content, dict) else {}
