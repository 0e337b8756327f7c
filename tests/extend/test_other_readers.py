"""Extending knows readers alone: nothing else names our decoder, and a reader of another kind is applied."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk
from ropewalk import extend, load
from ropewalk.extend.writable import WritableDecoder, writable
from ropewalk.readers.reader import Reader, WritableReader
from tests.extend.material import TARGET, checkpoint

ROOM = Path(ropewalk.__file__).parent / "extend"
ADAPTER = {"writable.py"}  # our decoder's half of `WritableReader`


class OtherReader:
    """A reader of another kind: what a `WritableReader` has, and no class or attribute of our decoder's."""

    def __init__(self, inner: WritableReader) -> None:
        self._inner = inner


def _member(name: str) -> Any:
    """A member that passes on to the reader within, and wraps the readers that come back."""

    def wrapped(value: Any) -> Any:
        return OtherReader(value) if isinstance(value, WritableDecoder) else value

    if isinstance(inspect.getattr_static(WritableReader, name), property):
        return property(lambda self: getattr(self._inner, name))
    return lambda self, *given, **named: wrapped(getattr(self._inner, name)(*given, **named))


for protocol in (Reader, WritableReader):
    for member in [name for name in vars(protocol) if not name.startswith("_")]:
        setattr(OtherReader, member, _member(member))


def names_of(path: Path) -> set[str]:
    """Every name and attribute in a file's code, and what it imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return found


def test_nothing_but_the_adapter_names_decoder() -> None:
    """By the syntax tree, lazy imports as well; the adapter does, so the check can fail."""
    naming = {path.name for path in ROOM.glob("*.py") if names_of(path) & {"Decoder", "DecoderReader", "DecoderConfig"}}
    assert naming == ADAPTER


def test_a_reader_of_another_kind_is_applied(tmp_path: Path) -> None:
    """Written as our own reader is."""
    folder = checkpoint(tmp_path / "source")
    settings = extend.ApplySettings(target=TARGET, dtype="bfloat16")
    for name, kind in (("ours", writable), ("other", OtherReader)):
        reader = kind(WritableDecoder(load(folder, dtype=torch.float32), "m"))
        assert extend.apply(reader, tmp_path / name, settings).dtype == torch.bfloat16
        assert "# m, extended" in (tmp_path / name / "README.md").read_text()
    assert load(tmp_path / "other").config.ropes == load(tmp_path / "ours").config.ropes


@pytest.mark.parametrize("unknown", ["a reader", object()])
def test_what_is_no_reader_is_refused(unknown: object, tmp_path: Path) -> None:
    """A name that is no checkpoint, and an object that no adapter knows."""
    with pytest.raises(ropewalk.RopeError):
        extend.apply(unknown, tmp_path / "out")
