"""Copies of GGUF files with new rope keys, written with the `gguf` library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropewalk.atomic_io import whole_file
from ropewalk.checkpoints.gguf import ROPE_TENSORS
from ropewalk.checkpoints.gguf_file import GGUFFile, TypedValue
from ropewalk.optional import need
from ropewalk.progress import Progress, SilentProgress
from ropewalk.version import __version__

_VERSION = "ropewalk.version"  # marks a file that ropewalk may replace; see `atomic_io`


@dataclass(frozen=True)
class GGUFRope:
    """A rope in the form of a GGUF file.

    - `keys`: metadata without the architecture's prefix: str, bool, int and float values.
    - `divisors`: of each pair's frequency, by the name of the tensor without ".weight".
    """

    keys: Mapping[str, str | bool | int | float]
    divisors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Entry:
    """One tensor to write: its name, shape and type, the source of its bytes, and a function to call afterwards."""

    name: str
    shape: tuple[int, ...]
    kind: int
    source: npt.NDArray[Any]
    done: Callable[[], None] = lambda: None


def copy_gguf(source: GGUFFile, path: Path, rope: GGUFRope | None, progress: Progress | None = None) -> None:
    """Copy a GGUF file with a new rope, all other keys and weights byte for byte.

    `rope` None keeps the file's own. The write is atomic; it needs memory for one tensor.
    """
    arch = source.metadata["general.architecture"]
    writer = _writer(arch, int(source.metadata.get("general.alignment", 32)))
    replaced = () if rope is None else (f"{arch}.rope.scal", f"{arch}.rope.freq_base", f"{arch}.context_length")
    for key in source.metadata:
        if key not in ("general.architecture", _VERSION) and not key.startswith(replaced or "\0"):
            _add_typed(writer, key, source.typed(key))
    if rope is not None:
        _add_rope(writer, arch, rope)
    entries = [
        _Entry(name, tensor.shape, tensor.kind, source.stored(name), lambda name=name: source.forget(name))  # type: ignore[misc]
        for name, tensor in source.tensors.items()
        if rope is None or name not in ROPE_TENSORS
    ]
    _write(writer, path, [*_rope_entries(rope), *entries], progress)


def _rope_entries(rope: GGUFRope | None) -> list[_Entry]:
    """Return the divisors' tensors, float32."""
    return [
        _Entry(f"{name}.weight", (len(divisors),), 0, np.array(divisors, dtype=np.float32))
        for name, divisors in (rope.divisors if rope is not None else {}).items()
    ]


def _writer(arch: str, alignment: int = 32) -> Any:
    writer = need("gguf").GGUFWriter(None, arch)
    writer.data_alignment = alignment
    writer.add_string(_VERSION, __version__)
    return writer


def _add(writer: Any, key: str, value: Any) -> None:
    """Add one key by the type of its value: ints become uint32, floats float32."""
    adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    adders.get(type(value), writer.add_array)(key, value)


def _add_typed(writer: Any, key: str, value: TypedValue) -> None:
    """Add one key with its stored type, except an empty array, which the writer does not support."""
    kinds = need("gguf").GGUFValueType
    if value.element is None:
        writer.add_key_value(key, value.value, kinds(value.kind))
    elif value.value:
        writer.add_key_value(key, value.value, kinds(value.kind), kinds(value.element))


def _add_rope(writer: Any, arch: str, rope: GGUFRope) -> None:
    for key, value in rope.keys.items():
        _add(writer, f"{arch}.{key}", value)


def _write(writer: Any, path: Path, entries: list[_Entry], progress: Progress | None) -> None:
    """Write the file atomically: header, metadata, the tensors' information, then one tensor after the other."""
    kinds, shown = need("gguf").GGMLQuantizationType, progress or SilentProgress()
    for entry in entries:
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), entry.source.nbytes, kinds(entry.kind))
    shown.begin(f"writing {path.name} (MiB)", sum(entry.source.nbytes for entry in entries) >> 20)
    with whole_file(path) as temporary:
        try:
            writer.write_header_to_file(temporary)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            done = 0
            for entry in entries:
                writer.write_tensor_data(entry.source)
                entry.done()
                before, done = done, done + entry.source.nbytes
                shown.advance((done >> 20) - (before >> 20))
        finally:
            writer.close()
