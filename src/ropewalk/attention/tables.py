"""cos and sin of one rule for one call, and for the slots of a cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.frequencies import attention_factor_of
from ropewalk.rotation.embedding import RotaryEmbedding

SeqLen = int | Tensor
"""A length that frequencies depend on: one for all rows, or int64 `[batch]`."""


def tables_at(
    rotary: RotaryEmbedding, position_ids: Tensor, seq_len: SeqLen | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, float]:
    """cos and sin of these positions, and the factor that queries and keys are multiplied by.

    Where `seq_len` is `[batch]`, positions `[seq]` are those of every row. Rows whose factors differ carry them in
    their tables, and the factor is 1 (Phi-3.5-MoE's two factors on both sides of the switch).
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


def tables_of_parts(
    rotary: RotaryEmbedding, position_ids: Tensor, seq_len: SeqLen | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, float]:
    """As `tables_at` for positions `[..., parts]`: the pairs are cut into equal parts, and each has its positions."""
    pairs, parts = rotary.config.pairs, position_ids.shape[-1]
    if parts > pairs:
        raise RopeError(
            "Attention: this extension has more parts than the rope has pairs.",
            facts={"parts": parts, "pairs": pairs},
            cure="Give at most one number for each pair.",
        )
    cos, sin, factor = [], [], 1.0
    for part in range(parts):
        own = slice(pairs * part // parts, pairs * (part + 1) // parts)
        cos_of_part, sin_of_part, factor = tables_at(rotary, position_ids[..., part], seq_len, dtype)
        cos.append(cos_of_part[..., own])
        sin.append(sin_of_part[..., own])
    return torch.cat(cos, -1), torch.cat(sin, -1), factor


def lengths_of(seq_len: SeqLen | None) -> int | tuple[int, ...] | None:
    """The length, or each row's, as Python numbers: a part of a key."""
    if isinstance(seq_len, Tensor):
        return tuple(seq_len.tolist()) if seq_len.ndim else int(seq_len)
    return seq_len


class SlotTables:
    """Tables of a cache's slots under each rule that reads its keys: made once for all the room that it has."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[Hashable, int, tuple[Tensor, Tensor, float]]] = {}

    def of(
        self,
        rule: Hashable,
        seq_len: SeqLen | None,
        total: int,
        room: int,
        make: Callable[[int], tuple[Tensor, Tensor, float]],
    ) -> tuple[Tensor, Tensor, float]:
        """cos and sin `[total, pairs]` or `[batch, total, pairs]` and the factor; `make` gives those of so many slots.

        `rule` and `seq_len` hold all that they depend on; of each rule only the last length's are kept.
        """
        lengths = lengths_of(seq_len)
        of_lengths, slots, tables = self._held.get(rule, (None, 0, None))
        if tables is None or slots < total or of_lengths != lengths:
            slots = max(total, room)
            tables = make(slots)
            self._held[rule] = lengths, slots, tables
        cos, sin, scale = tables
        return cos[..., :total, :], sin[..., :total, :], scale
