"""GGUF files that are cut off or damaged: named, and never a traceback."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.errors import RopeError
from ropewalk.readers.loading import load_gguf
from tests.layers.families import make
from tests.layers.material import write_gguf


class Bytes(bytes):
    """Bytes that do not fill the screen when an example fails."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bytes:
    """The bytes of a small GGUF, rope scaling and tokenizer included."""
    theirs = make("llama", num_hidden_layers=1)
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    metadata: dict[str, Any] = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
    }
    if request.param == "sentencepiece":
        metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-1.0, -2.0, -3.0, -4.0]}
    return Bytes(write_gguf(path, theirs.config, theirs.state_dict(), metadata=metadata).read_bytes())


HEADER = 2200  # bytes of a small file that hold its metadata and the names of its tensors


@given(st.integers(0, HEADER) | st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_truncation_anywhere_is_named(small: bytes, tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    """A file cut at any byte is a RopeError that names it."""
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(small[: end % len(small)])
    with pytest.raises(RopeError, match=r"cut\.gguf"):
        load_gguf(path)


@given(st.lists(st.tuples(st.integers(0, HEADER), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_damage_is_never_a_traceback(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    """A few bytes of the header changed: the file loads, or a RopeError says why not."""
    changed = bytearray(small)
    for at, value in changes:
        changed[at] = value
    path = tmp_path_factory.mktemp("damage") / "damaged.gguf"
    path.write_bytes(bytes(changed))
    with suppress(RopeError):
        load_gguf(path)


def test_versions_and_byte_order(small: bytes, tmp_path: Path) -> None:
    """Version 1 and big-endian files are refused by name."""
    path = tmp_path / "old.gguf"
    for version in (struct.pack("<I", 1), struct.pack(">I", 3)):
        path.write_bytes(small[:4] + version + small[8:])
        with pytest.raises(RopeError, match="unknown GGUF version"):
            load_gguf(path)


@pytest.mark.parametrize("depth", [9, 5000])
def test_arrays_within_arrays_are_refused(depth: int, tmp_path: Path) -> None:
    """A file whose metadata nests arrays without end is damaged: a message, and no RecursionError."""
    path = tmp_path / "nested.gguf"
    key = b"deep"
    array, number = struct.pack("<IQ", 9, 1), struct.pack("<IQI", 4, 1, 7)
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + struct.pack("<I", 9)
    path.write_bytes(header + array * depth + number)
    with pytest.raises(RopeError, match="nested too deep"):
        GGUFFile(path)


def test_a_few_arrays_within_arrays_are_read(tmp_path: Path) -> None:
    """The container allows them."""
    path = tmp_path / "nested.gguf"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 4) + b"deep" + struct.pack("<I", 9)
    path.write_bytes(header + struct.pack("<IQ", 9, 1) * 3 + struct.pack("<IQI", 4, 1, 7))
    assert GGUFFile(path).metadata == {"deep": [[[[7]]]]}
