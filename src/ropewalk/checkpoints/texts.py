"""Texts for training and measuring: UTF-8 files, plain or gzipped, and the packaged ones."""

from __future__ import annotations

import codecs
import errno
import gzip
import os
import stat
import warnings
import zlib
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ropewalk.atomic_io import as_path
from ropewalk.errors import RopeError

DEFAULT_TEXT = "moby_dick"
STRETCHES = ("moby_dick", "middlemarch", "bleak_house", "shakespeare", "python_code")
LEAST_BYTES, MOST_BYTES = 2**23, 2**27
"""The bytes that are read of one text: for a few windows, and by default."""
_GZIP = b"\x1f\x8b"
_TEXT_ENDINGS = (".txt", ".md", ".rst", ".py", ".txt.gz")


class _EmptyText(RopeError):
    """A text without words."""


def read_text(path: str | Path | None, most: int = MOST_BYTES) -> tuple[str, str]:
    """Return the name and the contents of a UTF-8 text file, plain or gzipped; None is the packaged Moby-Dick.

    A byte-order mark is left out. At most `most` bytes are read and unpacked; the name of a longer text contains the
    limit. Raises `RopeError` for a path that is missing, a folder, a named pipe, damaged, not UTF-8, binary, or empty.
    """
    if path is None:
        return DEFAULT_TEXT, _packaged(f"{DEFAULT_TEXT}.txt.gz")
    path = as_path(path, "read_text")
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode) and path.parts[:2] != ("/", "dev"):  # /dev/stdin has a writer
            raise OSError(errno.EINVAL, "Is a named pipe")
        with path.open("rb") as file:
            raw = (gzip.GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP) else file).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:  # a damaged gzip file raises any of them
        raise RopeError(
            "read_text: the text cannot be read.",
            facts={"file": str(path), "error": getattr(error, "strerror", None) or str(error)},
            cure="Pass the path of a UTF-8 text file, plain or gzipped.",
        ) from error
    longer, raw = len(raw) > most, raw[:most]
    try:
        text = codecs.utf_8_decode(raw, "strict", not longer)[0].removeprefix("\ufeff")  # may end inside a character
    except UnicodeDecodeError as error:
        raise _not_utf8(path, f"{error.reason} at byte {error.start:,}") from error
    if "\0" in text:
        raise _not_utf8(path, "it contains zero bytes, as binary files and UTF-16 do")
    if not text.strip():
        raise _EmptyText("read_text: the text is empty.", facts={"file": str(path)}, cure="Pass a file with text.")
    return f"{path.name} (first {most / 1e6:.0f} MB)" if longer else path.name, text


def default_texts() -> list[tuple[str, str]]:
    """Return the name and the contents of each packaged stretch of about 70,000 characters: of four books and of code.

    >>> [name for name, _ in default_texts()][:2]
    ['moby_dick (stretch)', 'middlemarch (stretch)']
    """
    return [(f"{name} (stretch)", _packaged("stretches", f"{name}.txt.gz")) for name in STRETCHES]


def novel(start: int = 0, length: int | None = None) -> str:
    """Return `length` characters of the packaged Moby-Dick, from character `start`; all that follow if it is None.

    `tiny`, the built-in model, was not trained on this text.

    >>> from ropewalk.checkpoints.texts import novel
    >>> novel(27_214, 16)
    'Call me Ishmael.'
    """
    return read_text(None)[1][start : None if length is None else start + length]


def text_files(path: str | Path) -> list[Path]:
    """Return the text files of a folder and its subfolders, sorted by path; a file is returned as it is.

    A folder's text files are those whose names end in .txt, .md, .rst, .py or .txt.gz, and all others in UTF-8. Hidden
    and empty ones are left out, and so are folders behind links. Raises `RopeError` if there is none.
    """
    path = as_path(path, "text_files")
    if not path.is_dir():
        return [path]
    candidates = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = [Path(folder, name) for name in names if not name.startswith(".")]
        candidates += [file for file in files if file.is_file()]  # no pipes, which would be waited for
    chosen = [file for file in sorted(candidates) if _has_text(file)]
    if not chosen:
        raise RopeError(
            "text_files: the folder contains no text.",
            facts={"folder": str(path), "files": len(candidates)},
            cure="Pass a folder with UTF-8 text files that are not hidden, or the files themselves.",
        )
    return chosen


def read_texts(paths: Sequence[str | Path], most: int = MOST_BYTES) -> list[tuple[str, str]]:
    """Return a distinct name and the contents of each text file; a folder stands for its text files.

    A file that is named twice is read once. Files of one name are called by their paths. At most `most` bytes of each
    are read. Files after the first 8 * `most` bytes are left out, with a warning.
    """
    files: dict[str, Path] = {}
    for path in paths:
        for file in text_files(path):
            files.setdefault(os.path.realpath(file), file)  # `resolve` raises for a link to itself
    count = Counter(file.name for file in files.values())
    texts: list[tuple[str, str]] = []
    for file in files.values():
        if sum(len(text) for _, text in texts) > 8 * most:
            warnings.warn(
                f"Only the first {len(texts)} of {len(files)} texts are used: {8 * most:,} bytes.", stacklevel=2
            )
            break
        name, text = read_text(file, most)
        texts.append((name if count[file.name] == 1 else f"{file}{name.removeprefix(file.name)}", text))
    return texts


def _has_text(path: Path) -> bool:
    """Return whether a file of a folder is one of its texts; one with a text's ending is, unless it is empty."""
    try:
        read_text(path)
    except _EmptyText:
        return False
    except RopeError:
        return path.name.endswith(_TEXT_ENDINGS)  # `read_text` names the fault to the caller
    return True


def _packaged(*path: str) -> str:
    """Return the contents of a gzipped text of the package."""
    return gzip.decompress(resources.files("ropewalk").joinpath("builtin", "text", *path).read_bytes()).decode("utf-8")


def _not_utf8(path: Path, reason: str) -> RopeError:
    return RopeError(
        "read_text: the text is not UTF-8.",
        facts={"file": str(path), "reason": reason},
        cure="Pass a text file, or convert it, for example: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE.",
    )
