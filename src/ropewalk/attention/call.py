"""What one call on attention needs before its layers run: where tokens lie, what they are turned by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.attention.cache import KVCache, SeqLen
from ropewalk.attention.extension import Extension
from ropewalk.attention.masks import Layout, lay_out
from ropewalk.encodings import Encoding, Places
from ropewalk.errors import RopeError
from ropewalk.rope.frequencies import attention_factor_of
from ropewalk.rotation.embedding import RotaryEmbedding


class RotaryTables(NamedTuple):
    """What one call rotates by: cos and sin `[seq or batch, seq, pairs]`, and the factor for queries and keys.

    `keys` are cos and sin of all slots `[total, pairs]`, where a cache keeps its keys unrotated.
    """

    cos: Tensor
    sin: Tensor
    scale: float
    keys: tuple[Tensor, Tensor] | None = None


def arrange(
    x: Tensor, attention_mask: Tensor | None, document_ids: Tensor | None, cache: KVCache | None, *, where: str
) -> Layout:
    """The layout of a call on `x` `[batch, seq, ...]`; refuses documents together with a cache."""
    batch, seq = x.shape[:2]
    if cache is None:
        return lay_out(batch, seq, x.device, attention_mask=attention_mask, document_ids=document_ids, where=where)
    if document_ids is not None:
        raise RopeError(
            f"{where}: packed documents cannot go through a cache.",
            facts={"document_ids": document_ids, "cache": cache},
            cure="Give each document its own row, with an attention_mask.",
        )
    return cache.lay_out(batch, seq, attention_mask=attention_mask)


def agreed_seq_len(seq_len: SeqLen | None, cache: KVCache | None) -> SeqLen | None:
    """The call's `seq_len`, or its cache's; refuses a call that says otherwise than its cache."""
    if cache is None:
        return seq_len
    if seq_len is not None and not _same_seq_len(seq_len, cache.seq_len):
        raise RopeError(
            "KVCache: `seq_len` differs from the one that the cache was made for.",
            facts={"seq_len": seq_len, "cache.seq_len": cache.seq_len},
            cure="It is fixed for a cache's life: leave it out, or make a new cache with it.",
        )
    return cache.seq_len


def rotary_tables(
    rotary: RotaryEmbedding,
    layout: Layout,
    position_ids: Tensor | None,
    seq_len: SeqLen | None,
    *,
    dtype: torch.dtype = torch.float32,
) -> RotaryTables:
    """cos, sin and factor of one rule for one call; `position_ids` None are the layout's own.

    The tables are float32, or float64 where the model's `dtype` is.
    """
    rope = rotary.config
    if rope.needs_seq_len and seq_len is None:
        raise RopeError(
            "RoPE: `seq_len` is required: these frequencies depend on the sequence's length.",
            facts={"scaling": rope.scaling},
            cure="Pass seq_len=... (tokens in all, to the end of generation), or a cache that was made with it.",
        )
    length = seq_len if rope.needs_seq_len else None
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    if layout.unrotated:
        return _tables_of_slots(rotary, layout, position_ids, length, exact)
    if position_ids is None:
        position_ids = layout.position_ids()
        if isinstance(length, Tensor) and position_ids.ndim == 1:
            position_ids = position_ids.expand(layout.batch, -1)
        if rope.num_axes > 1:
            position_ids = position_ids[..., None].expand(*position_ids.shape, rope.num_axes)
    cos, sin = rotary.cos_sin(position_ids, length, dtype=exact)
    if isinstance(length, Tensor) and length.ndim == 1:
        factors = [attention_factor_of(rope, int(row)) for row in length.tolist()]
        if len(set(factors)) > 1:  # Phi-3.5-MoE's two factors on both sides of the switch: each row carries its own
            by_row = torch.tensor(factors, dtype=exact, device=cos.device)[:, None, None]
            return RotaryTables(cos * by_row, sin * by_row, 1.0)
        return RotaryTables(cos, sin, factors[0])
    return RotaryTables(cos, sin, rotary.attention_factor_at(length))


def _tables_of_slots(
    rotary: RotaryEmbedding, layout: Layout, position_ids: Tensor | None, seq_len: SeqLen | None, dtype: torch.dtype
) -> RotaryTables:
    """Tables of every slot, and the queries' among them: for a cache of unrotated keys."""
    one_length = not isinstance(seq_len, Tensor) or seq_len.ndim == 0
    if position_ids is not None or not one_length or rotary.config.num_axes > 1:
        raise RopeError(
            "Attention: in a cache of unrotated keys a key stands at its slot, by one frequency for all rows.",
            facts={"position_ids": position_ids, "seq_len": seq_len, "axes": rotary.config.num_axes},
            cure="Leave position_ids out, give one seq_len for all rows, or make the cache with rotated=True.",
        )

    def make(slots: int) -> tuple[Tensor, Tensor]:
        return rotary.cos_sin(torch.arange(slots, device=layout.device), seq_len, dtype=dtype)

    length = None if seq_len is None else int(seq_len)
    assert layout.slot_tables is not None, "a cache of unrotated keys has them"
    cos, sin = layout.slot_tables.of((rotary.config, length, dtype), layout.total, layout.room, make)
    slots = layout.position_ids()
    return RotaryTables(cos[slots], sin[slots], rotary.attention_factor_at(seq_len), (cos, sin))


def find_places(layout: Layout, position_ids: Tensor | None) -> Places:
    """Positions of a call's queries and keys; `position_ids` None are the layout's own.

    In a cache a key's position is its slot, so other position ids are refused with one.
    """
    if layout.cached:
        if position_ids is not None:
            raise RopeError(
                "Attention: with this encoding a key in a cache is at its index in the row.",
                facts={"position_ids": position_ids},
                cure="Leave `position_ids` out, or run without a cache.",
            )
        queries, keys = layout.position_ids(), torch.arange(layout.total, device=layout.device)
        if queries.ndim == 1:
            return Places(queries, keys, run=(layout.start, 0))
        return Places(queries, keys.expand(layout.batch, -1))
    if position_ids is None:
        position_ids = layout.position_ids()
        if position_ids.ndim == 1:
            return Places(position_ids, position_ids, run=(layout.start, layout.start))
    return Places(position_ids, position_ids)


def check_unrotated(cache: KVCache, extension: Extension | None, encoding: Encoding | None) -> None:
    """An extension reads unrotated keys; an encoding that knows positions by more than slots cannot be read so."""
    if extension is not None and extension.remaps and cache.rotated:
        raise RopeError(
            "KVCache: an extension in attention reads unrotated keys.",
            facts={"extension": extension, "cache": cache},
            cure="Make the cache with rotated=False; model.new_cache does.",
        )
    if encoding is not None and not cache.rotated and not encoding.by_slots:
        raise RopeError(
            "KVCache: this encoding writes positions into embeddings or keys before they are stored.",
            facts={"encoding": encoding.config, "cache": cache},
            cure="Make the cache with rotated=True.",
        )


def _same_seq_len(left: SeqLen | None, right: SeqLen | None) -> bool:
    """Whether two lengths, ints or `[batch]`, say the same for every row."""
    if left is None or right is None:
        return left is right
    a, b = torch.as_tensor(left).cpu(), torch.as_tensor(right).cpu()
    if a.ndim and b.ndim and a.shape != b.shape:
        return False
    return bool((a == b).all())
