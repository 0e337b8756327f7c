"""cos and sin of one rule for one call, and for the slots of a cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ropewalk.rope.frequencies import attention_factor_of
from ropewalk.rotation.embedding import RotaryEmbedding

SeqLen = int | Tensor
"""A length in tokens for length-dependent frequencies: one for all rows, or int64 `[batch]`."""


def tables_at(
    rotary: RotaryEmbedding, position_ids: Tensor, seq_len: SeqLen | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, float]:
    """Return cos and sin at these positions, and the factor of queries and keys.

    If `seq_len` is `[batch]`, positions `[seq]` apply to every row. If the factors of the rows differ (Phi-3.5-MoE has
    two), the tables include them and the returned factor is 1.
    """
    if not isinstance(seq_len, Tensor) or seq_len.ndim == 0:
        cos, sin = rotary.cos_sin(position_ids, seq_len, dtype=dtype)
        return cos, sin, rotary.attention_factor_at(seq_len)
    if position_ids.ndim == 1:
        position_ids = position_ids.expand(seq_len.shape[0], -1)
    cos, sin = rotary.cos_sin(position_ids, seq_len, dtype=dtype)
    factors = [attention_factor_of(rotary.config, int(row)) for row in seq_len.tolist()]
    if len(set(factors)) == 1:
        return cos, sin, factors[0]
    by_row = torch.tensor(factors, dtype=dtype, device=cos.device)[:, None, None]
    return cos * by_row, sin * by_row, 1.0


def lengths_of(seq_len: SeqLen | None) -> int | tuple[int, ...] | None:
    """Return the length, or each row's, as Python numbers, for use in a key."""
    if isinstance(seq_len, Tensor):
        return tuple(seq_len.tolist()) if seq_len.ndim else int(seq_len)
    return seq_len


class SlotTables:
    """Tables of a cache's slots for each rope of its keys, built once for its whole capacity."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[Hashable, int, tuple[Tensor, Tensor, float]]] = {}

    def of(
        self,
        rule: Hashable,
        seq_len: SeqLen | None,
        total: int,
        capacity: int,
        make: Callable[[int], tuple[Tensor, Tensor, float]],
    ) -> tuple[Tensor, Tensor, float]:
        """Return cos and sin `[total, pairs]` or `[batch, total, pairs]`, and the factor.

        **Arguments:**

        - `rule`, `seq_len`: the inputs of the tables; each rule keeps only the tables of its last length.
        - `total`: slots to return; `capacity`: slots to build the tables for.
        - `make`: builds the tables of a number of slots.
        """
        lengths = lengths_of(seq_len)
        of_lengths, slots, tables = self._held.get(rule, (None, 0, None))
        if tables is None or slots < total or of_lengths != lengths:
            slots = max(total, capacity)
            tables = make(slots)
            self._held[rule] = lengths, slots, tables
        cos, sin, scale = tables
        return cos[..., :total, :], sin[..., :total, :], scale
