"""What must hold of a cache's arguments, and the error that says what does not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.attention.branches import Branches
from ropewalk.attention.tables import SeqLen
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.values import as_whole


def row_lengths(seq_len: SeqLen | None, batch: int) -> tuple[int, ...] | None:
    """`seq_len` as one int per row."""
    if seq_len is None:
        return None
    if isinstance(seq_len, Tensor):
        whole = not (seq_len.is_floating_point() or seq_len.is_complex() or seq_len.dtype == torch.bool)
        rows: list[int] = (seq_len.flatten().tolist() if seq_len.ndim else [int(seq_len)] * batch) if whole else []
    else:
        rows = [as_whole(seq_len) or 0] * batch
    if len(rows) != batch or min(rows) < 1:
        raise RopeError(
            "KVCache: `seq_len` must be an int of at least 1, or int64 [batch].",
            facts={"seq_len": seq_len, "batch": batch},
            cure="Give the final length in tokens, one for all rows or one for each.",
        )
    return tuple(rows)


def refuse_outgrowing(lengths: Sequence[int], fixed: Sequence[int], ropes: Sequence[RopeConfig | None]) -> None:
    """A row may not become longer than its frequencies are right for: those of the `seq_len` that it was made with."""
    for rope in {rope for rope in ropes if rope is not None and rope.needs_seq_len}:
        for row, (length, seq_len) in enumerate(zip(lengths, fixed, strict=True)):
            if length > rope.longest_at(seq_len):
                raise RopeError(
                    "KVCache: this call outgrows the `seq_len` that the cache's frequencies are fixed for.",
                    facts={"row": row, "tokens": length, "seq_len": seq_len, "scaling": rope.scaling},
                    cure="Make the cache with the final length: seq_len=...; or recompute its tokens in a new one.",
                )


def check_branches(branches: Branches, seq: int, rows: int, masked: bool) -> None:
    """Branches follow the one row of their cache."""
    if rows != 1 or len(branches) != seq or masked:
        raise RopeError(
            "KVCache: branches go on from one row, and say of each new token what it follows.",
            facts={"rows": rows, "tokens": seq, "branches": len(branches), "masked": masked},
            cure="Ask them of a cache of one row, one parent for each token, without an attention_mask.",
        )


def check_counts(counts: Sequence[int], sinks: int, lengths: Sequence[int], rotated: bool, cache: object) -> None:
    """Rows hold the tokens that are to be dropped, and their keys can take other positions."""
    whole = all(as_whole(number) is not None for number in [*counts, sinks])
    if len(counts) != len(lengths) or not whole or min([*counts, sinks]) < 0:
        raise RopeError(
            "KVCache.drop: one count of at least 0, or one per row, and at least 0 sinks.",
            facts={"count": counts, "sinks": sinks, "cache": cache},
            cure="Counts and sinks are tokens.",
        )
    if rotated:
        raise RopeError(
            "KVCache.drop: its keys are rotated by the positions that they were stored at.",
            facts={"cache": cache},
            cure="Make it with new_cache(rotated=False).",
        )
    if any(drop and sinks + drop > held for drop, held in zip(counts, lengths, strict=True)):
        raise RopeError(
            "KVCache.drop: a row holds fewer tokens than its sinks and the count together.",
            facts={"count": counts, "sinks": sinks, "lengths": lengths},
            cure="Drop fewer tokens.",
        )


def named_rows(rows: Sequence[int] | Tensor, batch: int, cache: object) -> list[int]:
    """The rows that `select` keeps, at least one, each of them there."""
    chosen = rows.flatten().tolist() if isinstance(rows, Tensor) else list(rows)
    whole = all(isinstance(row, int) and not isinstance(row, bool) for row in chosen)
    if not chosen or not whole or not all(0 <= row < batch for row in chosen):
        raise RopeError(
            "KVCache.select: `rows` must name rows of the cache.",
            facts={"rows": chosen, "cache": cache},
            cure="Rows count from 0 to batch - 1, and at least one is kept.",
        )
    return chosen
