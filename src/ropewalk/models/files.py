"""Files and folders that are read whole or refused, and written whole or not at all."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; a RopeError names the file if it is missing, damaged or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RopeError(
            f"load: the folder has no {path.name}.",
            facts={"folder": str(path.parent)},
            cure="Pass the folder of a whole checkpoint: config.json, weights, tokenizer.json.",
        ) from error
    except (OSError, ValueError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise RopeError(
            f"load: {path.name} cannot be read.",
            facts={"file": str(path), "error": str(error)},
            cure="Fetch or save the file again.",
        ) from error
    if not isinstance(content, dict):
        raise RopeError(
            f"load: {path.name} must hold a JSON object.", facts={"file": str(path)}, cure="Download the file again."
        )
    return content


def write_json(path: Path, content: dict[str, Any], indent: int | None = 2) -> None:
    """Write a JSON file whole: under a temporary name in the same folder, flushed, then renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=indent, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    """The process's file mode mask, which mkstemp ignores."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def forget_pages(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Let the kernel take back the pages of a mapping that hold these bytes alone; nobody may have written to them."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    first, last = -(-begin // page) * page, (begin + size) // page * page
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


@contextmanager
def whole_folder(folder: Path, may_replace: frozenset[str]) -> Iterator[Path]:
    """A temporary sibling to write into; on success it takes the place of `folder` in one step, else it goes away.

    A folder that exists is replaced only if every file in it is named in `may_replace`: nobody else's files are lost.
    """
    folder = folder.resolve()
    if folder.is_file():
        raise RopeError(
            "save: there is a file where the folder should be.",
            facts={"path": str(folder)},
            cure="Choose another folder, or remove the file.",
        )
    foreign = sorted(p.name for p in folder.iterdir() if p.name not in may_replace) if folder.is_dir() else []
    if foreign:
        raise RopeError(
            "save: the folder holds files that a checkpoint does not, and would lose them.",
            facts={"folder": str(folder), "files": foreign[:8]},
            cure="Save into a new folder.",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield staging
        for path in staging.iterdir():
            os.chmod(path, 0o666 & ~_umask())  # safetensors writes for the owner alone
            _flush(path)
        _flush(staging)
        os.chmod(staging, 0o777 & ~_umask())
        if folder.is_dir():
            _exchange(staging, folder)
        else:
            os.rename(staging, folder)
        _flush(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _flush(path: Path) -> None:
    """Make sure that a file's or folder's contents are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders: in one step where the system can (Linux), else by two renames, undone if the second fails."""
    swap_names, here = 2, -100  # RENAME_EXCHANGE, AT_FDCWD
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if renameat2 is not None and renameat2(here, os.fsencode(new), here, os.fsencode(old), swap_names) == 0:
        return
    aside = new.with_name(new.name + ".old")
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise
    os.rename(aside, new)
