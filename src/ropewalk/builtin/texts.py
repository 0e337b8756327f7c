"""Texts that models are trained and measured on: UTF-8 files, plain or gzipped, or the novel in the package."""

from __future__ import annotations

import gzip
import zlib
from importlib import resources
from pathlib import Path

from ropewalk.errors import RopeError

DEFAULT_TEXT = "moby_dick"
_GZIP = b"\x1f\x8b"


def read_text(path: str | Path | None) -> tuple[str, str]:
    """The name and the contents of a UTF-8 text file, plain or gzipped; None is the packaged Moby Dick.

    A byte-order mark is left out. Raises `RopeError` for a file that is missing, a folder, damaged, not UTF-8, binary
    (it holds zero bytes), or empty.
    """
    if path is None:
        packaged = resources.files("ropewalk.builtin").joinpath("text", f"{DEFAULT_TEXT}.txt.gz")
        return DEFAULT_TEXT, gzip.decompress(packaged.read_bytes()).decode("utf-8")
    path = Path(path)
    try:
        stored = path.read_bytes()
        raw = gzip.decompress(stored) if stored.startswith(_GZIP) else stored
    except (OSError, EOFError, zlib.error) as error:  # a damaged gzip file raises any of them
        raise RopeError(
            "read_text: the text cannot be read.",
            facts={"file": str(path), "error": getattr(error, "strerror", None) or str(error)},
            cure="Pass the path of a UTF-8 text file, plain or gzipped.",
        ) from error
    return path.name, _decoded(path, raw)


def _decoded(path: Path, raw: bytes) -> str:
    """The text in a file's bytes, or a `RopeError` that says why there is none."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RopeError(
            "read_text: the text is not UTF-8.",
            facts={"file": str(path), "byte": error.start, "reason": error.reason},
            cure="Convert it first: iconv -f LATIN1 -t UTF-8.",
        ) from error
    if "\0" in text:
        raise RopeError(
            "read_text: the text holds zero bytes, so the file is binary.",
            facts={"file": str(path), "byte": raw.index(b"\0")},
            cure="Pass the path of a UTF-8 text file, plain or gzipped.",
        )
    if not text.strip():
        raise RopeError(
            "read_text: the text is empty.",
            facts={"file": str(path), "bytes": len(raw)},
            cure="Leave it out, or pass a file with text.",
        )
    return text
