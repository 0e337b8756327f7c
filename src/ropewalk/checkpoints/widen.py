"""Tensors of a safetensors file in another dtype, without the file's own bytes in memory beside them."""

from __future__ import annotations

import json
import mmap
import struct
from math import prod
from pathlib import Path

import torch
from torch import Tensor


def forget_pages(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Let the kernel take back the pages of a mapping that hold these bytes alone; nobody may have written to them."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    first, last = -(-begin // page) * page, (begin + size) // page * page
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


class Widened:
    """A safetensors file that safetensors has validated, in a mapping whose pages are let go as they are converted.

    In safetensors' own mapping they would stay: a second, narrower copy of the whole model.
    Source: the format as safetensors' README gives it (8 bytes of length, a JSON header, then the data).
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        header.pop("__metadata__", None)
        self._begins = {name: 8 + length + said["data_offsets"][0] for name, said in header.items()}

    def read(self, name: str, shape: tuple[int, ...], stored: torch.dtype, dtype: torch.dtype) -> Tensor:
        """One tensor, converted from dtype `stored` to the other dtype `dtype`."""
        count, begin = prod(shape), self._begins[name]
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        converted = torch.frombuffer(self._map, dtype=stored, count=count, offset=begin).to(dtype)
        forget_pages(self._map, begin, count * stored.itemsize)
        return converted.view(shape)
