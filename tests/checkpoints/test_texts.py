"""Texts: the packaged one, files plain and gzipped, and what is refused."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from ropewalk.checkpoints.texts import STRETCHES, default_texts, novel, read_text, read_texts, text_files
from ropewalk.errors import RopeError

ROOT = Path(__file__).resolve().parents[2]


def test_the_packaged_text_is_moby_dick() -> None:
    """The default text ships with the package; its characters from the start that is given."""
    name, text = read_text(None)
    assert name == "moby_dick"
    assert "Call me Ishmael." in text
    assert len(text) > 1_000_000
    assert (novel(), novel(30_000), novel(30_000, 500)) == (text, text[30_000:], text[30_000:30_500])


def test_the_default_texts_are_stretches_of_equal_length() -> None:
    """Four books and code, of about 70,000 characters, no two of which share a paragraph."""
    texts = dict(default_texts())
    assert list(texts) == [f"{name} (stretch)" for name in STRETCHES]
    assert all(69_000 <= len(text) <= 70_000 for text in texts.values())
    parts = [{part for part in text.split("\n\n") if len(part) > 200} for text in texts.values()]
    assert not any(one & other for one, other in combinations(parts, 2))


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
        ("some words".encode("utf-16"), r"not UTF-8.*text\.txt.*iconv -f UTF-16 -t"),
        (b"caf\xe9", r"not UTF-8.*text\.txt"),
        (gzip.compress(b"caf\xe9", mtime=0), r"not UTF-8.*text\.txt"),
        ("some words".encode("utf-16-le"), r"not UTF-8.*zero bytes, as binary files and UTF-16 do"),
        (b"ab\0cd", r"not UTF-8.*text\.txt"),
        (b"\x89PNG\r\n\x1a\n\x01\x02\x03", r"not UTF-8.*text\.txt.*at byte 0"),
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


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_long_text_is_read_up_to_a_limit(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Also inside a character of several bytes; its name says so. A file of a few kilobytes may unpack to gigabytes."""
    (tmp_path / "a.txt").write_bytes(pack("né".encode() * 1_000_000))
    assert read_text(tmp_path / "a.txt", 5) == ("a.txt (first 0 MB)", "nén")
    assert read_text(tmp_path / "a.txt", 2_000_000) == ("a.txt (first 2 MB)", ("né" * 666_667)[:-1])
    tracemalloc.start()
    read_text(tmp_path / "a.txt", 1000)
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()
    (tmp_path / "b.txt").write_bytes(b"b" * 4)
    assert read_texts([tmp_path], 4)[1] == ("b.txt", "bbbb")


def test_many_texts_are_read_up_to_a_limit(tmp_path: Path) -> None:
    """Eight times that of one text; the warning counts those that are left out."""
    for name in range(10):
        (tmp_path / f"{name}.txt").write_bytes(b"words")
    with pytest.warns(UserWarning, match=r"first 9 of 10 texts .* 40 bytes"):
        assert len(read_texts([tmp_path], 5)) == 9


def test_pipes_devices_and_a_link_to_itself(tmp_path: Path) -> None:
    """A pipe that a shell opened is read; a named one would be waited for, and a device of zeros never ends."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, message in (
        (tmp_path / "pipe", "named pipe"),
        ("/dev/zero", "zero"),
        (tmp_path / "loop", "symbolic"),
    ):
        with pytest.raises(RopeError, match=message):
            read_texts([path], 1000)
    reading, writing = os.pipe()
    os.write(writing, b"words")
    os.close(writing)
    assert read_texts([f"/dev/fd/{reading}"], 1000) == [(str(reading), "words")]
    os.close(reading)


def filled(folder: Path) -> Path:
    """A folder with texts and what is none."""
    contents: dict[str, bytes] = {
        "b.txt": b"book",
        "a/notes.md": b"notes",
        "a/b.txt": b"chapter",
        "code.py": b"x = 1",
        "LICENSE": "n\u00e9".encode(),
        "packed.txt.gz": gzip.compress(b"packed"),
        "a/empty.txt": b"",
        "a/blank.py": b" \n",
        "a/empty.txt.gz": gzip.compress(b""),
        ".hidden.txt": b"hidden",
        ".git/config.txt": b"hidden",
        "picture.png": b"\x89PNG\r\n\x1a\n\x01\x02\x03",
        "weights": b"\0\0\0\1" * 40,
        "late": b"a" * 5_000 + b"\0",
        "latin": b"caf\xe9",
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.txt")
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    return folder


def test_a_folder_is_its_text_files(tmp_path: Path) -> None:
    """Sorted, from all depths; no hidden, empty or binary ones, nor a pipe; a file is itself, even if it is missing."""
    folder = filled(tmp_path / "texts")
    assert [file.relative_to(folder).as_posix() for file in text_files(folder)] == [
        "LICENSE", "a/b.txt", "a/notes.md", "b.txt", "code.py", "packed.txt.gz"
    ]  # fmt: skip
    assert text_files(str(folder / "latin")) == [folder / "latin"]
    assert text_files(tmp_path / "missing") == [tmp_path / "missing"]


def test_texts_have_distinct_names(tmp_path: Path) -> None:
    """The file's name, or its path if the name repeats; no file twice."""
    one, two = filled(tmp_path / "one"), tmp_path / "two"
    names = {"LICENSE": "né", "notes.md": "notes", "code.py": "x = 1", "packed.txt.gz": "packed"}
    names |= {str(one / "a" / "b.txt"): "chapter", str(one / "b.txt"): "book"}
    assert dict(read_texts([one])) == names
    assert len(read_texts([one, one / "b.txt", one / "a"])) == len(names)
    two.mkdir()
    (two / "b.txt").write_text("other")
    (two / "c.txt").write_text("third")
    assert dict(read_texts([one, two])) == names | {str(two / "b.txt"): "other", "c.txt": "third"}
    assert read_texts([two / "c.txt", two / "b.txt"]) == [("c.txt", "third"), ("b.txt", "other")]


def test_folders_without_texts_are_refused(tmp_path: Path) -> None:
    """With the number of their files; a text's ending on what is no UTF-8 is refused as the file itself is."""
    (tmp_path / "weights").write_bytes(b"\0\0\0\1")
    with pytest.raises(RopeError, match=r"(?s)contains no text.*files +1"):
        text_files(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(RopeError, match=r"(?s)not UTF-8.*latin\.txt"):
        read_texts([tmp_path])
    with pytest.raises(RopeError, match="No such file"):
        read_texts([tmp_path / "missing.txt"])
