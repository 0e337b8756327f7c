"""Shapes that the benchmarks time; the tests of every backend use the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import ropewalk as rw


@dataclass(frozen=True)
class Case:
    """One rotation: queries `[batch, seq, heads, head_dim]` of a dtype, in one pairing."""

    name: str
    batch: int
    seq: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    interleaved: bool

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Unit-normal queries, and cos and sin of positions 0 .. seq - 1."""
        x = torch.randn(self.batch, self.seq, self.heads, self.head_dim).to(self.dtype)
        rope = rw.RotaryEmbedding(rw.RopeConfig(self.head_dim, interleaved=self.interleaved))
        return (x, *rope.cos_sin(torch.arange(self.seq)))


CASES = tuple(
    Case(f"{'interleaved' if interleaved else 'half'} {str(dtype).removeprefix('torch.')} {seq}x{heads}x{head_dim}",
         1, seq, heads, head_dim, dtype, interleaved)
    for seq, heads, head_dim in ((1, 32, 128), (512, 32, 128), (4096, 32, 128))
    for dtype in (torch.float32, torch.bfloat16)
    for interleaved in (False, True)
)  # fmt: skip
