"""Rotations that `benchmarks/rotation.py` times, as it and its peers lay them out: `[batch, seq, heads, head_dim]`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding

THETA = 10_000.0
FURTHEST = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rotation of unit-normal queries, and of keys where `kv_heads` is not 0; `offset` is the first position."""

    seq: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    interleaved: bool
    batch: int = 1
    kv_heads: int = 0
    offset: int = 0

    @property
    def name(self) -> str:
        """Return a name that no other case has."""
        heads = f"{self.heads}/{self.kv_heads}" if self.kv_heads else f"{self.heads}"
        words = [str(self.dtype).removeprefix("torch."), "interleaved" if self.interleaved else "half",
                 f"{self.batch}x{self.seq}x{heads}x{self.head_dim}"]  # fmt: skip
        words += [f"from {self.offset}"] if self.offset else []
        return " ".join(words)

    @property
    def pairs(self) -> int:
        """Return the number of pairs that are rotated."""
        return self.head_dim // 2

    @property
    def bytes(self) -> int:
        """Return the bytes of queries and keys together."""
        return self.batch * self.seq * (self.heads + self.kv_heads) * self.head_dim * self.dtype.itemsize

    def positions(self) -> np.ndarray:
        """Return positions `[seq]`."""
        return self.offset + np.arange(self.seq)

    def cos_sin(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the package's float32 tables."""
        rope = RotaryEmbedding(RopeConfig(self.head_dim, interleaved=self.interleaved, theta=THETA))
        return rope.cos_sin(torch.from_numpy(self.positions()).to(device))

    def tensors(self, device: str = "cpu", seed: int = 0) -> tuple[Tensor, ...]:
        """Return unit-normal queries (and keys); equal for equal seeds."""
        source = torch.Generator().manual_seed(seed)
        heads = (self.heads, self.kv_heads) if self.kv_heads else (self.heads,)
        shapes = [(self.batch, self.seq, n, self.head_dim) for n in heads]
        return tuple(torch.randn(shape, generator=source).to(device, self.dtype) for shape in shapes)
