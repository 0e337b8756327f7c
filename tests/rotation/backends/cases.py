"""Rotations that the tests of every backend check and `benchmarks/rotation.py` times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.checks import Layout
from ropewalk.rotation.embedding import RotaryEmbedding

THETA = 10_000.0
Memory = Literal["contiguous", "padded", "transposed", "expanded"]
Tables = Literal["shared", "batch", "heads"]

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HEADS = ((1, 1), (3, 3), (17, 17), (32, 8))  # of queries and of keys
HEAD_DIMS = (2, 6, 8, 64, 80, 96, 112, 128, 192, 256)
FURTHEST = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rotation of unit-normal queries, and of keys where `kv_heads` is not 0.

    - `memory`: how the tensors lie: one after another; slices of wider ones; another order of dimensions in memory;
      or the batch expanded from one row (which cannot be written in place).
    - `tables`: one row of cos and sin for each token, for each token of each sequence, or for each head of those.
    - `offset`: the first position. Sequence b of the batch starts 7 * b later where the tables are its own.
    """

    seq: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    interleaved: bool
    batch: int = 1
    kv_heads: int = 0
    rotary_dim: int | None = None
    layout: Layout = "bshd"
    offset: int = 0
    memory: Memory = "contiguous"
    tables: Tables = "shared"

    @property
    def name(self) -> str:
        """Return a name that no other case has."""
        heads = f"{self.heads}/{self.kv_heads}" if self.kv_heads else f"{self.heads}"
        words = [str(self.dtype).removeprefix("torch."), "interleaved" if self.interleaved else "half",
                 f"{self.batch}x{self.seq}x{heads}x{self.head_dim}"]  # fmt: skip
        words += [self.layout] if self.layout != "bshd" else []
        words += [f"rotary_dim={self.rotary_dim}"] if self.rotary_dim is not None else []
        words += [f"from {self.offset}"] if self.offset else []
        words += [self.memory] if self.memory != "contiguous" else []
        words += [f"tables by {self.tables}"] if self.tables != "shared" else []
        return " ".join(words)

    @property
    def pairs(self) -> int:
        """Return the number of pairs that are rotated."""
        return (self.head_dim if self.rotary_dim is None else self.rotary_dim) // 2

    @property
    def bytes(self) -> int:
        """Return the bytes of queries and keys together."""
        return self.batch * self.seq * (self.heads + self.kv_heads) * self.head_dim * self.dtype.itemsize

    def positions(self) -> np.ndarray:
        """Return positions `[seq]`, or `[batch, seq]` if each sequence has its own."""
        row = self.offset + np.arange(self.seq)
        return row if self.tables == "shared" else row + 7 * np.arange(self.batch)[:, None]

    def cos_sin(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the package's float32 tables in the form that `layout` and `tables` require."""
        positions = torch.from_numpy(self.positions()).to(device)
        ropes = [RotaryEmbedding(RopeConfig(2 * self.pairs, interleaved=self.interleaved, theta=t))
                 for t in (self._thetas() if self.tables == "heads" else (THETA,))]  # fmt: skip
        made = [rope.cos_sin(positions) for rope in ropes]
        if self.tables != "heads":
            cos, sin = made[0]
        else:
            cos, sin = (torch.stack(list(each), dim=-2) for each in zip(*made, strict=True))
        return (cos.flatten(0, 1), sin.flatten(0, 1)) if self.layout == "thd" and cos.ndim > 2 else (cos, sin)

    def tensors(self, device: str = "cpu", seed: int = 0) -> tuple[Tensor, ...]:
        """Return unit-normal queries (and keys) in this layout and memory; equal for equal seeds."""
        source = torch.Generator().manual_seed(seed)
        heads = (self.heads, self.kv_heads) if self.kv_heads else (self.heads,)
        return tuple(self._place(torch.randn(self._shape(n), generator=source).to(device, self.dtype)) for n in heads)

    def as_bshd(self, x: Tensor) -> Tensor:
        """Return a tensor of this case as `[batch, seq, heads, head_dim]`."""
        if self.layout == "thd":
            return x.view(self.batch, self.seq, *x.shape[1:])
        return x.transpose(1, 2) if self.layout == "bhsd" else x

    def _thetas(self) -> tuple[float, ...]:
        return tuple(THETA * (1 + head) for head in range(self.heads))

    def _shape(self, heads: int) -> tuple[int, ...]:
        if self.layout == "thd":
            return (self.batch * self.seq, heads, self.head_dim)
        if self.layout == "bhsd":
            return (self.batch, heads, self.seq, self.head_dim)
        return (self.batch, self.seq, heads, self.head_dim)

    def _place(self, x: Tensor) -> Tensor:
        """Return the same values in the memory of this case; what surrounds a slice is NaN."""
        if self.memory == "padded":
            around = x.new_full((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1] + 3), math.nan)
            inner = around[..., :-1, 1:-2]
            return inner.copy_(x)
        if self.memory == "transposed":
            return x.movedim(-2, 0).contiguous().movedim(0, -2)
        if self.memory == "expanded":
            return x[:1].expand_as(x)
        return x


def _cases() -> tuple[Case, ...]:
    """Return every value of every variant, not their product."""
    small = Case(seq=5, heads=3, head_dim=8, dtype=torch.float32, interleaved=False)
    cases = []
    for interleaved in (False, True):
        base = replace(small, interleaved=interleaved)
        cases += [replace(base, dtype=dtype, head_dim=dim) for dtype in DTYPES for dim in HEAD_DIMS]
        cases += [replace(base, heads=q, kv_heads=k, head_dim=64, dtype=dtype) for q, k in HEADS for dtype in DTYPES]
        for dtype in (torch.float32, torch.bfloat16):
            wide = replace(base, batch=2, head_dim=16, dtype=dtype)
            cases += [replace(wide, layout=layout, tables=tables, rotary_dim=turned)
                      for layout in ("bshd", "bhsd", "thd") for tables in ("shared", "batch", "heads")
                      for turned in (None, 2, 10) if not (layout == "thd" and tables == "shared")]  # fmt: skip
            cases += [replace(wide, batch=1, layout="thd", rotary_dim=turned) for turned in (None, 2, 10)]
            cases += [replace(wide, memory=memory, layout=layout)
                      for memory in ("padded", "transposed", "expanded") for layout in ("bshd", "bhsd")]  # fmt: skip
        long = replace(base, seq=65, head_dim=128)
        cases += [replace(long, dtype=dtype, offset=first) for dtype in DTYPES
                  for first in (1, 4095, 131_008, FURTHEST - 64)]  # fmt: skip
        cases.append(replace(base, seq=1, heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16, offset=4095))
    return tuple(cases)


CASES = _cases()
