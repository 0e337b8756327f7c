"""Texts: the packaged one, files plain and gzipped, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError


def test_the_packaged_text_is_moby_dick() -> None:
    """The default text ships with the package."""
    name, text = read_text(None)
    assert name == "moby_dick"
    assert "Call me Ishmael." in text
    assert len(text) > 1_000_000


def test_texts_plain_and_gzipped(tmp_path: Path) -> None:
    """Characters are counted as decoded, line ends as they are; a byte-order mark is no character."""
    content = "né\r\nzwei"
    (tmp_path / "a.txt").write_bytes(content.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "c.txt").write_bytes(content.encode("utf-8-sig"))
    assert read_text(tmp_path / "a.txt") == ("a.txt", content)
    assert read_text(tmp_path / "b.txt.gz") == ("b.txt.gz", content)
    assert read_text(str(tmp_path / "c.txt")) == ("c.txt", content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read.*text\.txt.*No such file"),
        (gzip.compress(b"cut", mtime=0)[:-9], r"cannot be read.*text\.txt"),
        (gzip.compress(b"damaged inside", mtime=0)[:12] + b"\xff" * 9, r"cannot be read.*text\.txt"),
        ("some words".encode("utf-16"), r"is UTF-16, not UTF-8.*text\.txt.*iconv -f UTF-16 -t"),
        (b"caf\xe9", r"not UTF-8.*text\.txt"),
        (gzip.compress(b"caf\xe9", mtime=0), r"not UTF-8.*text\.txt"),
        ("some words".encode("utf-32"), r"is UTF-32.*iconv -f UTF-32 -t"),
        ("some words".encode("utf-16-le"), r"is UTF-16LE.*iconv -f UTF-16LE -t"),
        ("some words".encode("utf-16-be"), r"is UTF-16BE.*iconv -f UTF-16BE -t"),
        (b"ab\0cd", r"looks like a binary file.*text\.txt"),
        (b"\x89PNG\r\n\x1a\n\x01\x02\x03", r"looks like a binary file.*text\.txt"),
        (b" \n", r"empty.*text\.txt"),
    ],
)
def test_unreadable_texts_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """Missing, damaged, another encoding, binary, empty: each file is named, and what is wrong with it."""
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RopeError, match=f"(?s){message}"):
        read_text(path)
    with pytest.raises(RopeError, match="Is a directory"):
        read_text(tmp_path)
