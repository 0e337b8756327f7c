"""The GGUF container: metadata and tensors of one memory-mapped file, with checks for truncated files."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ropewalk.atomic_io import open_file
from ropewalk.errors import RopeError
from ropewalk.imports import need

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_CURE = "Fetch or convert the file again, or use the model's Hugging Face folder."
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Types that torch reads in place: ggml's number, torch's dtype, bytes of one element.
_STORED = {0: (torch.float32, 4), 1: (torch.float16, 2), 30: (torch.bfloat16, 2)}


@dataclass(frozen=True)
class GGUFTensor:
    """The place of one tensor: `shape` in torch's order (rows first), `offset` and `size` in bytes of the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    size: int


class GGUFFile:
    """A GGUF file (versions 2 and 3, little-endian), mapped copy-on-write, its tensors dequantised one at a time.

    - `metadata`: every key and value, as Python numbers, strings and lists. `entries`: the stored bytes of both.
    - `tensors`: name to `GGUFTensor`. `whole`: whether the file contains the names of all tensors.
    - `rope_only`: list only the tensors that divide frequencies; the file may end behind its metadata.

    **Raises:** `RopeError` with the file's name if it is not a complete GGUF file.
    **Source:** ggml's docs/gguf.md.
    """

    def __init__(self, path: str | os.PathLike[str], *, rope_only: bool = False) -> None:
        self.path, self.whole, self._rope_only = Path(path), True, rope_only
        try:
            with open_file(self.path) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise self.error("the file cannot be read.", facts={"error": str(error)}) from error
        self._at, self._end = 0, len(self._map)
        self.entries: dict[str, bytes] = {}
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        self._read_header()

    def error(self, rule: str, facts: dict[str, Any] | None = None, cure: str = _CURE) -> RopeError:
        """Return a `RopeError` with this file's name."""
        return RopeError(f"load: {rule}", facts={"file": str(self.path), **(facts or {})}, cure=cure)

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return one tensor, in float32 if `dtype` is None: a view of the mapping if no conversion is needed."""
        tensor = self.tensors[name]
        if tensor.kind in _STORED:
            stored, _ = _STORED[tensor.kind]
            flat = torch.frombuffer(self._map, dtype=stored, count=prod(tensor.shape), offset=tensor.offset)
            return flat.view(tensor.shape).to(dtype or torch.float32)
        gguf = need("gguf")
        kind = gguf.GGMLQuantizationType(tensor.kind)
        try:
            rows = self.stored(name).reshape(*tensor.shape[:-1], -1)
            return torch.from_numpy(gguf.quants.dequantize(rows, kind)).to(dtype or torch.float32)
        except NotImplementedError as error:
            raise self.error(
                "a tensor's type cannot be dequantised.",
                facts={"tensor": name, "type": kind.name},
                cure="Use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or one of the K types.",
            ) from error

    def stored(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes: a view of the mapping."""
        tensor = self.tensors[name]
        return np.frombuffer(self._map, dtype=np.uint8, count=tensor.size, offset=tensor.offset)

    def _take(self, code: str) -> tuple[Any, ...]:
        """Read the next numbers of the file."""
        size = struct.calcsize("<" + code)
        if self._at + size > self._end:
            raise self._truncated()
        values = struct.unpack_from("<" + code, self._map, self._at)
        self._at += size
        return values

    def _string(self) -> str:
        """Read the next string of the file."""
        start = self._at + 8
        self._at = start + self._take("Q")[0]
        if self._at > self._end:
            raise self._truncated()
        return self._map[start : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        """Read the next metadata value of the file; like llama.cpp's, no array contains arrays."""
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._take("IQ")
            if count > self._end - self._at:
                raise self._truncated()
            if inner == _STRING:
                return [self._string() for _ in range(count)]
            if inner in _SCALARS:
                return list(self._take(f"{count}{_SCALARS[inner]}"))
            kind = inner
        if kind not in _SCALARS:
            raise self.error("unknown metadata type: the file is damaged.", facts={"type": kind, "byte": self._at})
        return self._take(_SCALARS[kind])[0]

    def _truncated(self) -> RopeError:
        return self.error(
            "the file ends too early: it is truncated or damaged.",
            facts={"bytes": self._end, "reading at byte": self._at},
            cure="Fetch the file again.",
        )

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise self.error(
                "this is not a GGUF file.",
                facts={"first bytes": self._map[:4]},
                cure="Pass a .gguf file, or the folder of safetensors; pickled weights are not supported.",
            )
        self._at = 4
        (version,) = self._take("I")
        if version not in _VERSIONS:
            raise self.error(
                "unknown GGUF version (or a big-endian file).",
                facts={"version": version, "known": _VERSIONS},
                cure="Convert the model again with a current llama.cpp.",
            )
        tensors, keys = self._take("QQ")
        for _ in range(keys):
            start, key = self._at, self._string()
            self.metadata[key] = self._value(*self._take("I"))
            self.entries[key] = self._map[start : self._at]
        infos = []
        try:
            for _ in range(tensors):
                name, (dims,) = self._string(), self._take("I")
                if dims > 8:
                    raise self._truncated()
                *sizes, kind, offset = self._take(f"{dims}QIQ")
                infos.append((name, tuple(reversed(sizes)), kind, offset))
        except RopeError:
            if not self._rope_only:
                raise
            self.whole = False
            return
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self.error("the metadata is damaged.", facts={"general.alignment": alignment})
        start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in infos:
            if name in self.tensors:
                raise self.error("two tensors have the same name.", facts={"tensor": name})
            if not self._rope_only or name in ROPE_TENSORS:
                size = self._bytes(name, shape, kind)
                if start + offset + size > self._end:
                    raise self.error(
                        "the file ends inside this tensor: it is truncated.",
                        facts={"tensor": name, "ends at": start + offset + size, "bytes": self._end},
                        cure="Fetch the file again" + (", at least up to there." if self._rope_only else "."),
                    )
                self.tensors[name] = GGUFTensor(shape, kind, start + offset, size)

    def _bytes(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        """Return the size of a tensor in the file, in bytes."""
        if kind in _STORED:
            return prod(shape) * _STORED[kind][1]
        gguf = need("gguf")
        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        except (ValueError, KeyError) as error:
            raise self.error("unknown tensor type.", facts={"tensor": name, "type": kind}) from error
        if not shape or shape[-1] % block:
            raise self.error(
                "a quantised row must contain whole blocks.", facts={"tensor": name, "shape": shape, "block": block}
            )
        return int(prod(shape) // block * size)
