"""Files written whole, and numbers that JSON can hold."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ropewalk.errors import RopeError

FoundT = TypeVar("FoundT")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under another name in the same folder, then move it into place: never half a file.

    What a symbolic link points to is replaced, not the link; a device or a pipe (/dev/stdout) is written into.
    """
    check_writable(path)
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        return
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise RopeError(
            "ropewalk: the file cannot be written.",
            facts={"file": str(path), "error": str(error)},
            cure="Choose a folder that exists and that you may write to.",
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_begins(path: Path | None, is_state: Callable[[dict[str, Any]], bool], *, where: str) -> None:
    """Refuse to begin a state anew in a file that holds something else: it would be overwritten.

    `is_state` says whether a file's content is a state; it may raise ValueError, KeyError or TypeError where it is not.
    """
    if path is None or not path.exists():
        return
    check_writable(path)
    try:
        stored = json.loads(path.read_text(encoding="utf-8") or "{}")
        ours = isinstance(stored, dict) and is_state(stored)
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise RopeError(
            f"{where}: the file named for the state holds something else, and would be overwritten.",
            facts={"state": str(path)},
            cure="Name a new file: --state FILE.",
        )


def read_state(
    path: Path | None, fingerprint: str, parse: Callable[[Any], FoundT], *, where: str, of: str
) -> FoundT | None:
    """What a state file holds, by `parse`; None where there is no file.

    Raises `RopeError` for a file that is not a state (`parse` raises ValueError, KeyError, TypeError or
    AttributeError), and for one under another fingerprint: results of another `of`.
    """
    if path is None or not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        found, its = parse(stored), stored["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RopeError(
            f"{where}: the state file cannot be read.",
            facts={"state": str(path), "error": str(error)},
            cure="Remove it, or begin anew.",
        ) from error
    if its != fingerprint:
        raise RopeError(
            f"{where}: the state belongs to another {of}.",
            facts={"state": str(path), "its fingerprint": its, "this run's": fingerprint},
            cure="Begin anew, or name another state.",
        )
    return found


def check_writable(path: Path) -> None:
    """Refuse, before any work is done, a path that no file can be written to."""
    if path.is_dir() or not path.name:
        raise RopeError(
            "ropewalk: there is a folder where the file should be.",
            facts={"file": str(path)},
            cure="Name a file.",
        )


def finite(value: Any) -> Any:
    """The same structure with NaN and infinities as None, tuples as lists: what JSON may hold."""
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
