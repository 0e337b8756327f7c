"""Dual chunk attention: positions count anew in each chunk. An et al. 2024, arXiv:2402.17463."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.attention.extensions.base import (
    Extension,
    Region,
    check_log_n,
    check_tokens,
    log_n_factor,
    next_index,
    zero_index,
)
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class DualChunk(Extension):
    """Dual chunk attention: positions count anew in each chunk, and none exceeds the trained length.

    With chunk size s and trained length c, a query at m meets a key at n of its own chunk at m - n; of the chunk
    before at min(s + m mod s, c - 1) - n mod s; of earlier chunks at c - 1 - n mod s. So distances below c - s across a
    chunk's edge are exact. `log_n` as in `ReRoPE`.
    Source: An et al. 2024, arXiv:2402.17463, section 3.1, eq. 3-8 (the paper's form; its code has chunk 3/4 c).
    """

    chunk: int
    trained_length: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        check_tokens("DualChunk", 1, chunk=self.chunk, trained_length=self.trained_length)
        check_log_n("DualChunk", self.log_n)
        if self.chunk >= self.trained_length:
            raise RopeError(
                "DualChunk: `chunk` must be less than the trained length.",
                facts={"chunk": self.chunk, "trained_length": self.trained_length},
                cure="Three quarters of the trained length is the authors' choice.",
            )

    def regions(self) -> tuple[Region, ...]:
        size, last = self.chunk, self.trained_length - 1

        def begins(m: Tensor) -> Tensor:
            return m // size * size

        def before(m: Tensor) -> Tensor:
            return (m // size * size - size).clamp(min=0)

        def within(n: Tensor) -> Tensor:
            return n % size

        return (
            Region(within, within, begins, next_index),
            Region(lambda m: (size + m % size).clamp(max=last), within, before, begins),
            Region(lambda m: torch.full_like(m, last), within, zero_index, before),
        )

    def edges(self, begin: int, end: int, step: int) -> list[int]:
        chunks = range(-(-begin // self.chunk) * self.chunk, end, self.chunk)
        starts = sorted({begin, *(start for start in chunks if start > begin)})
        cut = [edge for a, b in zip(starts, [*starts[1:], end], strict=True) for edge in range(a, b, step)]
        return [*cut, end]

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n_factor(index, self.log_n)
