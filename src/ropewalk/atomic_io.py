"""Read files of bounded size, and write files and folders atomically.

A file that a command writes for the user replaces only an empty file or one of ropewalk's own (`write_output`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from ropewalk.errors import RopeError

LARGEST = 100_000_000
"""The most bytes of a file that is read whole, and of a safetensors header: safetensors' own limit."""

_WHOLE = "Pass the folder of a whole checkpoint: config.json, weights, tokenizer.json. Fetch a damaged file again."
_STAGED = ".ropewalk"  # ending of temporary files and folders
_MARKS = (
    b'"generator": "ropewalk',  # JSON
    b'"format": "ropewalk',
    b'"format": "rope-vectors',
    b'{"__metadata__":{"cases":"name=',  # safetensors of vectors
    b'name="generator" content="ropewalk',  # HTML
    b'name="ropewalk-sources"',
    b"<dc:title>ropewalk",  # SVG
    b"Software\0ropewalk",  # PNG
    b"by `ropewalk extend`",  # the note in a folder
    b"ropewalk.version",  # GGUF
)
"""What the files that commands write for the user contain in their first 4,096 bytes."""


def as_path(source: object, where: str) -> Path:
    """Return `source` as a path.

    Raises `RopeError` for an empty string, which would be the current folder, and for a name that is not UTF-8, as
    those in safetensors and JSON are.
    """
    cure = 'Pass "." for the current folder.'
    try:
        if isinstance(source, str | os.PathLike) and str(source):
            os.path.abspath(os.fsencode(source)).decode()
            return Path(source)
    except UnicodeError:
        cure = "Rename the file or folder."
    rule = f"{where}: a path must be a non-empty string or a pathlib.Path, in UTF-8."
    raise RopeError(rule, facts={"path": source}, cure=cure)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes; raise `OSError` for a folder, and for a pipe or a device, which may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")


def read_text(path: Path, call: str = "load", cure: str = _WHOLE) -> str:
    """Return the text of a UTF-8 file; raise `RopeError` if it is missing, damaged or larger than `LARGEST`.

    `call` and `cure` are those of the error.
    """
    try:
        with open_file(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise OSError(errno.EFBIG, f"larger than {LARGEST:,} bytes")
        return content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise RopeError(f"{call}: there is no such file.", facts={"file": str(path)}, cure=cure) from error
    except (OSError, ValueError) as error:  # ValueError: UTF-8, a NUL in the path
        raise _unreadable(path, call, cure, error) from error


def read_json(path: Path, call: str = "load", cure: str = _WHOLE) -> dict[str, Any]:
    """Return the object in a JSON file; raises `RopeError` as `read_text`, and if the file contains no object."""
    return parse_object(read_text(path, call, cure), path, call, cure)


def parse_object(text: str, source: str | Path, call: str, cure: str) -> dict[str, Any]:
    """Return the object in JSON text; raise `RopeError` with the name of its source if there is none."""
    try:
        content = parse(text)
    except ValueError as error:
        raise _unreadable(source, call, cure, error) from error
    if not isinstance(content, dict):
        raise _unreadable(source, call, cure, f"it contains {type(content).__name__}, not an object")
    return content


def parse(text: str | bytes) -> Any:
    """Return the content of JSON; raise `ValueError` if it is damaged, or nested more than 100 deep."""
    with suppress(RecursionError):
        content = json.loads(text)
        level = [content]
        for _ in range(101):
            outer, level = level, []
            for one in outer:
                for value in one.values() if isinstance(one, dict) else one if isinstance(one, list) else ():
                    if isinstance(value, dict | list):
                        level.append(value)
            if not level:
                return content
    raise json.JSONDecodeError("nested too deeply", "", 0)


def _unreadable(source: str | Path, call: str, cure: str, error: object) -> RopeError:
    facts = {"source": str(source), "error": str(getattr(error, "strerror", None) or error)}
    return RopeError(f"{call}: the content cannot be read.", facts=facts, cure=cure)


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Write a JSON file atomically; raises `ValueError` for NaN and infinities (see `finite`)."""
    write_whole(path, json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically with `whole_file`; write directly into a device or a pipe (/dev/stdout).

    Raises `RopeError` if the file cannot be written.
    """
    check_writable(path)
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


def write_output(path: str | Path, content: str | bytes) -> None:
    """Write a file for the user with `write_whole`; raise `RopeError` as `check_output`."""
    check_output(path)
    write_whole(Path(path), content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary place for a file that replaces `path` if the block succeeds and is removed otherwise.

    Replaces the target of a symbolic link, not the link; creates the folder if it is missing. Raises `RopeError` if the
    file cannot be written, for example because the disk is full.
    """
    check_writable(path)
    path = path.resolve()
    with _staged(path, "file") as temporary:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)


@contextmanager
def _staged(path: Path, kind: str) -> Iterator[Path]:
    """Yield a place of the same name in a temporary folder beside `path`; raise `RopeError` if the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(_STAGED, f".{path.name}.", path.parent, ignore_cleanup_errors=True) as folder:
            yield Path(folder) / path.name
    except Exception as error:
        # `safetensors` has its own exception for what the system reports, and may be missing here
        if isinstance(error, OSError) or (type(error).__name__ == "SafetensorError" and "os error" in str(error)):
            raise _unwritable(kind, path, error) from error
        raise


def _unwritable(kind: str, path: Path, error: object) -> RopeError:
    return RopeError(
        f"ropewalk: the {kind} cannot be written.",
        facts={kind: str(path), "error": str(error)},
        cure="Free space on the disk, or choose a folder with write permission.",
    )


def check_writable(path: Path) -> None:
    """Check that a file can be written to `path`, before any work is done; its folder may not exist yet.

    Raises `RopeError` if the path is a folder, or the user may not write to it.
    """
    rule, facts, cure = "the path of the file is a folder", {"file": str(path)}, "Pass the path of a file."
    try:
        if not path.is_dir() and path.name:
            folder = next(one for one in path.resolve().parents if one.exists())
            if folder.is_dir():
                is_device = path.exists() and not path.is_file()
                if os.access(path, os.W_OK) if is_device else os.access(folder, os.W_OK | os.X_OK):
                    return
                raise _unwritable("file", path, os.strerror(errno.EACCES))
            rule, cure = "the path of the folder is a file", "Choose a different folder."
            facts["folder"] = str(folder)
    except OSError as error:  # a folder that may not be entered, a name that is too long
        raise _unwritable("file", path, error.strerror) from error
    raise RopeError(f"ropewalk: {rule}.", facts=facts, cure=cure)


def may_replace(path: Path) -> bool:
    """Return whether a file is empty, or ropewalk has written it for the user."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError:
        return False
    return not start or any(mark in start for mark in _MARKS)


def check_output(path: str | Path) -> None:
    """Check, before any work is done, that a command may write a file for the user.

    Raises `RopeError` as `check_writable`, for an empty path, and for a file that contains something and that ropewalk
    has not written.
    """
    path = as_path(path, "ropewalk")
    check_writable(path)
    if path.is_file() and path.parts[:2] != ("/", "dev") and not may_replace(path):  # /dev/stdout may be a file
        raise RopeError(
            "ropewalk: the file exists, and ropewalk has not written it, so it is not replaced.",
            facts={"file": str(path)},
            cure="Choose a different name, or remove the file.",
        )


COMPUTED = ("sentence", "exit_status")


def finite(value: Any) -> Any:
    """Return a copy for JSON: NaN and infinities become None, tuples lists, and dataclasses and named tuples objects.

    A dataclass with a property `sentence` or `exit_status` has that key, too. A field with the metadata
    {"json": False} is left out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.metadata.get("json", True)]
        own = {name: getattr(value, name) for name in names}
        value = own | {name: getattr(value, name) for name in COMPUTED if hasattr(type(value), name)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value


@contextmanager
def whole_folder(folder: Path, may_replace: frozenset[str]) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` if the block succeeds and is removed otherwise.

    A folder that exists is replaced only if `may_replace` names every file in it. Raises `RopeError` if it contains any
    other file, or if the folder cannot be written, for example because the disk is full.
    """
    folder = folder.resolve()
    if folder.is_file():
        raise RopeError(
            "save: the path of the folder is a file.",
            facts={"path": str(folder)},
            cure="Choose another folder, or remove the file.",
        )
    foreign = sorted(p.name for p in folder.iterdir() if p.name not in may_replace) if folder.is_dir() else []
    if foreign:
        raise RopeError(
            "save: the folder contains files that are no part of a checkpoint; saving would delete them.",
            facts={"folder": str(folder), "files": foreign[:8]},
            cure="Save into a new folder.",
        )
    with _staged(folder, "folder") as staging:
        staging.mkdir()
        yield staging
        for path in staging.rglob("*"):
            if path.is_file():
                path.chmod(staging.stat().st_mode & 0o666)  # safetensors writes for the owner only
            _flush(path)
        _flush(staging)
        if folder.is_dir():
            _exchange(staging, folder)
        else:
            os.rename(staging, folder)
        _flush(folder.parent)


def _flush(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders: in one step on Linux, otherwise by two renames; undone if the second fails."""
    swap_names, here = 2, -100  # RENAME_EXCHANGE, AT_FDCWD
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if renameat2 is not None and renameat2(here, os.fsencode(new), here, os.fsencode(old), swap_names) == 0:
        return
    aside = new.with_name("old")
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise


def remove_folder(folder: Path) -> None:
    """Remove a folder and its contents, in one step for who looks; raise `RopeError` if it cannot be removed."""
    with _staged(folder, "folder") as place:
        os.rename(folder, place)
