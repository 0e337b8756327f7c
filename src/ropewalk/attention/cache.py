"""A cache of rotated keys and of values, compact per row, that returns correct results or raises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.attention.extensions import Extension
from ropewalk.attention.masks import Branches, TokenLayout, real_tokens
from ropewalk.attention.tables import SeqLen, SlotTables
from ropewalk.backends.request import Store
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.values import as_whole
from ropewalk.shapes import Float


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


class KVCache:
    """Rotated keys and values of the tokens so far, per layer, preallocated and growing in steps.

    Padding is never stored: row r's real tokens lie in slots `0 .. lengths[r] - 1`, so rows may differ in length,
    and a slot is the token's index in its row, which is also its default position id. The buffers are
    `[batch, kv_heads, capacity, head_dim]`, one for keys and one for values in each layer.

    Where frequencies depend on length (`ropes` with dynamic NTK or LongRoPE), `seq_len` is required and fixed for
    the cache's life; a call that would outgrow it is refused, as keys in the cache would be rotated by frequencies
    that are no longer right. It holds no gradients: a forward with a cache runs without them.

    `seq_len` is an int or int64 `[batch]`; `capacity` (tokens) reserves room ahead; `ropes` are the rules its keys
    are rotated by, one per layer. `extensions` are those that its layers read it under, one or None per layer (None:
    none in any): a layer under another is refused, as what it gave is in the keys and values of deeper layers. Raises
    `RopeError` for impossible sizes or a missing `seq_len`.

    `rotated=False` keeps keys as they were before their rotation and turns them when they are read, each by its slot:
    for extensions that act in attention, and for `drop`, after which the later tokens stand at smaller positions. It
    costs one rotation of all keys for each call and layer.

    >>> cache = KVCache(num_layers=2, batch=1, num_key_value_heads=1, head_dim=4)
    >>> layout = cache.lay_out(1, 3)
    >>> keys = torch.ones(1, 3, 1, 4)
    >>> cache.write(0, keys, keys, layout)[0].shape
    torch.Size([1, 1, 3, 4])
    >>> cache.commit(layout); cache.lengths
    tensor([3])
    """

    def __init__(
        self,
        *,
        num_layers: int,
        batch: int,
        num_key_value_heads: int,
        head_dim: int,
        seq_len: SeqLen | None = None,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        ropes: Sequence[RopeConfig | None] | None = None,
        extensions: Sequence[Extension | None] | None = None,
        step: int = 256,
        rotated: bool = True,
    ) -> None:
        sizes = {
            "num_layers": num_layers,
            "batch": batch,
            "num_key_value_heads": num_key_value_heads,
            "head_dim": head_dim,
            "step": step,
        }
        if min(sizes.values()) < 1 or (capacity is not None and capacity < 0):
            raise RopeError(
                "KVCache: sizes must be at least 1.",
                facts={**sizes, "capacity": capacity},
                cure="model.new_cache(batch) takes the sizes from the model.",
            )
        self.num_layers, self.step, self.rotated = num_layers, step, rotated
        self.num_key_value_heads, self.head_dim = num_key_value_heads, head_dim
        self.dtype, self.device = dtype, torch.device(device)
        self.ropes = tuple(ropes) if ropes is not None else None
        self.extensions = (None,) * num_layers if extensions is None else tuple(extensions)
        for name, of_layers in (("ropes", self.ropes), ("extensions", self.extensions)):
            if of_layers is not None and len(of_layers) != num_layers:
                raise RopeError(
                    f"KVCache: `{name}` must have one entry per layer.",
                    facts={**sizes, name: of_layers},
                    cure="Give one, or None, for each layer; model.new_cache does.",
                )
        self._lengths = [0] * batch
        self._seq_len = row_lengths(seq_len, batch)
        self._one_seq_len = seq_len is not None and not (isinstance(seq_len, Tensor) and seq_len.ndim)
        if self._seq_len is None and any(rope is not None and rope.needs_seq_len for rope in self.ropes or ()):
            raise RopeError(
                "KVCache: `seq_len` is required: the frequencies of this model depend on length.",
                facts={"ropes": self.ropes},
                cure="Pass the length that the sequence will have in the end: seq_len=prompt + new tokens.",
            )
        self._slot_tables = None if rotated else SlotTables()
        self._capacity = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        for _ in range(num_layers):
            self._keys.append(self._empty(capacity or 0))
            self._values.append(self._empty(capacity or 0))
        self._capacity = capacity or 0

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self._lengths)

    @property
    def lengths(self) -> Tensor:
        """int64 `[batch]`: tokens stored per row."""
        return torch.tensor(self._lengths, dtype=torch.int64, device=self.device)

    @property
    def seq_len(self) -> SeqLen | None:
        """The length that this cache's frequencies were fixed for, as it was given: an int, int64 `[batch]`, None."""
        if self._seq_len is None:
            return None
        if self._one_seq_len:
            return self._seq_len[0]
        return torch.tensor(self._seq_len, dtype=torch.int64, device=self.device)

    @property
    def capacity(self) -> int:
        """Tokens per row that fit before the next growth."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in [*self._keys, *self._values])

    def __repr__(self) -> str:
        return (
            f"KVCache(layers={self.num_layers}, lengths={self._lengths}, capacity={self._capacity}, "
            f"seq_len={self._seq_len}, {self.nbytes / 2**20:.1f} MiB)"
        )

    def lay_out(
        self, batch: int, seq: int, *, attention_mask: Tensor | None = None, branches: Branches | None = None
    ) -> TokenLayout:
        """Where a call's tokens will be stored; reserves room, but nothing counts before `commit`.

        `attention_mask` is bool or integer `[batch, seq]` over the new tokens alone. `branches`: the tokens are several
        continuations of the one row, which are not kept: afterwards the cache holds what it held. Raises `RopeError` if
        the batch differs, if growth would change frequencies, and for branches of several rows or under a mask.
        """
        self._check_batch(batch)
        real, held = real_tokens(attention_mask, batch, seq, "KVCache"), self._lengths
        new = [seq] * batch if real is None else [int(count) for count in real.sum(1).tolist()]
        lengths = tuple(old + count for old, count in zip(held, new, strict=True))
        if branches is None:
            self._refuse_outgrowing(lengths)
        else:
            check_branches(branches, seq, self.batch, real is not None)
            self._refuse_outgrowing([held[0] + branches.deepest])
        total = max(lengths)
        layout = TokenLayout(
            batch, seq, self.device, total=total, cached=True, lengths=lengths, unrotated=not self.rotated
        )
        if branches is not None:
            layout.branches, layout.lengths = branches, tuple(held)
        layout.slot_tables = self._slot_tables
        if real is None and len(set(held)) == 1:
            layout.start = held[0]
        else:
            ones = torch.ones(batch, seq, dtype=torch.int64, device=self.device)
            counted = (ones if real is None else real.long()).cumsum(1) - 1
            layout.slots = (self.lengths[:, None] + counted).clamp_(min=0)
            layout.real = real
        if total > self._capacity:
            wanted = total + max(0, self._capacity // 8 if self._capacity else 0)
            self.reserve(math.ceil(wanted / self.step) * self.step)
        layout.room = self._capacity
        return layout

    def write(
        self,
        layer: int,
        keys: Float[Tensor, "batch seq kv_heads head_dim"],
        values: Float[Tensor, "batch seq kv_heads head_dim"],
        layout: TokenLayout,
    ) -> tuple[Float[Tensor, "batch kv_heads total head_dim"], Float[Tensor, "batch kv_heads total head_dim"]]:
        """Store `[batch, seq, kv_heads, head_dim]` of one layer; returns all its keys and values so far.

        What is returned is `[batch, kv_heads, layout.total, head_dim]`, views of the buffers in the cache's dtype.
        """
        self._check_written(layer, keys, layout)
        for buffer, fresh in ((self._keys[layer], keys), (self._values[layer], values)):
            fresh = fresh.detach().to(self.dtype)
            if layout.slots is None:
                buffer[:, :, layout.start : layout.start + layout.seq] = fresh.transpose(1, 2)
            else:
                rows, columns, slots = layout.stored()
                buffer[rows, :, slots] = fresh[rows, columns]
        return self.held(layer, layout)

    def store(
        self, layer: int, values: Float[Tensor, "batch seq kv_heads head_dim"], layout: TokenLayout
    ) -> Store | None:
        """Where a kernel may write this call's keys and values itself; None where their dtype is not the cache's."""
        self._check_written(layer, values, layout)
        if values.dtype != self.dtype or values.device != self._keys[layer].device:
            return None
        return Store(self._keys[layer], self._values[layer], values, layout.places())

    def held(self, layer: int, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        """All keys and values of one layer up to this call's, `[batch, kv_heads, layout.total, head_dim]`: views."""
        return self._keys[layer][:, :, : layout.total], self._values[layer][:, :, : layout.total]

    def _check_batch(self, batch: int) -> None:
        if batch != self.batch:
            raise RopeError(
                "KVCache: the batch must be the cache's.",
                facts={"batch": batch, "cache": self},
                cure="Make a new cache.",
            )

    def _check_written(self, layer: int, keys: Tensor, layout: TokenLayout) -> None:
        if not 0 <= layer < self.num_layers:
            raise RopeError(
                "KVCache: no such layer.",
                facts={"layer": layer, "cache": self},
                cure="Layers count from 0 to num_layers - 1.",
            )
        if keys.shape != (self.batch, layout.seq, self.num_key_value_heads, self.head_dim):
            raise RopeError(
                "KVCache: keys must be [batch, seq, kv_heads, head_dim].",
                facts={"keys": keys, "cache": self, "kv_heads": self.num_key_value_heads, "head_dim": self.head_dim},
                cure="Write one call's keys and values, before the heads and the tokens are swapped.",
            )

    def keep_local_heads(self, heads: int) -> None:
        """Hold so many of the key-value heads: those that this process computes under tensor parallelism.

        Raises `RopeError` for a cache that holds tokens of other heads already, and for no equal part of the heads.
        """
        if heads == self.num_key_value_heads:
            return
        if max(self._lengths) or self.num_key_value_heads % heads:
            raise RopeError(
                "KVCache: a layer computes other key-value heads than the cache holds.",
                facts={"heads": heads, "cache": self, "kv_heads": self.num_key_value_heads},
                cure="Make a new cache for each model, and shard all layers alike.",
            )
        self.num_key_value_heads = heads
        for buffers in (self._keys, self._values):
            buffers[:] = [self._empty(self._capacity) for _ in buffers]

    def commit(self, layout: TokenLayout) -> None:
        """Count a call's tokens as stored, once every layer has written them."""
        self._lengths = list(layout.lengths)

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens per row, keeping what is stored; never shrinks."""
        if capacity <= self._capacity:
            return
        longest = max(self._lengths)
        for buffers in (self._keys, self._values):
            for layer, old in enumerate(buffers):
                buffers[layer] = self._empty(capacity)
                buffers[layer][:, :, :longest] = old[:, :, :longest]
        self._capacity = capacity

    def truncate(self, length: int | Sequence[int]) -> None:
        """Forget all but the first `length` tokens of each row (an int, or one per row); the room is kept."""
        wanted = [length] * self.batch if isinstance(length, int) else list(length)
        if len(wanted) != self.batch or min(wanted) < 0:
            raise RopeError(
                "KVCache.truncate: one length of at least 0, or one per row.",
                facts={"length": length, "cache": self},
                cure="Pass an int, or a list with one length for each row.",
            )
        self._lengths = [min(old, new) for old, new in zip(self._lengths, wanted, strict=True)]

    def drop(self, count: int | Sequence[int], *, sinks: int = 0) -> None:
        """Forget `count` tokens of each row (an int, or one per row) after its first `sinks`; the rest move down.

        A slot is a position: what was token n stands at n - count from then on, and so do the tokens that follow. Keys
        are kept unrotated and turned by their slot when read, so that they equal keys computed afresh at the new
        positions, however often tokens are dropped. What deeper layers took from a dropped token stays in their values.

        Raises `RopeError` for a cache of rotated keys, and where a row holds fewer than `sinks` + `count` tokens.
        Source: Xiao et al. 2023, arXiv:2309.17453, section 3.2.
        """
        counts = list(count) if isinstance(count, Sequence) else [count] * self.batch
        check_counts(counts, sinks, self._lengths, self.rotated, self)
        lengths = self._lengths
        for row, (drop, held) in enumerate(zip(counts, lengths, strict=True)):
            if drop:
                for buffer in (*self._keys, *self._values):
                    buffer[row, :, sinks : held - drop] = buffer[row, :, sinks + drop : held].clone()
        self._lengths = [held - drop for drop, held in zip(counts, lengths, strict=True)]

    def reset(self) -> None:
        """Forget every token, keep the room and `seq_len`."""
        self.truncate(0)

    def select(self, rows: Sequence[int] | Tensor) -> None:
        """Keep the named rows, in that order, repeated where named twice: beams, or rows that are not finished."""
        chosen = named_rows(rows, self.batch, self)
        if chosen == list(range(self.batch)):
            return
        index = torch.tensor(chosen, device=self.device)
        with torch.inference_mode(False), torch.no_grad():
            for buffers in (self._keys, self._values):
                for layer, old in enumerate(buffers):
                    buffers[layer] = old.index_select(0, index)
        held = self._lengths
        self._lengths = [held[row] for row in chosen]
        if self._seq_len is not None:
            self._seq_len = tuple(self._seq_len[row] for row in chosen)

    def replace(self, rows: Sequence[int], other: KVCache) -> None:
        """Begin the named rows anew as the rows of `other`, their tokens and their `seq_len`."""
        if len(rows) != other.batch or not all(0 <= row < self.batch for row in rows):
            raise RopeError(
                "KVCache.replace: one row of `other` for each row named.",
                facts={"rows": list(rows), "cache": self, "other": other},
                cure="Name as many rows as `other` has, each from 0 to batch - 1.",
            )
        if (other._seq_len is None) != (self._seq_len is None) or other._made_for() != self._made_for():
            raise RopeError(
                "KVCache.replace: the caches are of different models.",
                facts={"cache": self, "other": other},
                cure="Make both with the same model's new_cache.",
            )
        longest = max(other._lengths)
        if longest > self._capacity:
            self.reserve(math.ceil(longest / self.step) * self.step)
        index = torch.tensor(list(rows), device=self.device)
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            for layer in range(self.num_layers):
                mine[layer][index, :, :longest] = theirs[layer][:, :, :longest].to(self.dtype)
        if self._seq_len is not None and other._seq_len is not None:
            fixed = list(self._seq_len)
            for row, length in zip(rows, other._seq_len, strict=True):
                fixed[row] = length
            self._seq_len, self._one_seq_len = tuple(fixed), self._one_seq_len and len(set(fixed)) == 1
        lengths = self._lengths
        for row, length in zip(rows, other._lengths, strict=True):
            lengths[row] = length
        self._lengths = lengths

    def _made_for(self) -> tuple[object, ...]:
        """What caches of one model have in common."""
        sizes = (self.num_layers, self.num_key_value_heads, self.head_dim)
        return (*sizes, self.rotated, self.ropes, self.extensions)

    def _empty(self, capacity: int) -> Tensor:
        # Zeros, as what is hidden must still be finite; and not an inference tensor, so that it can be used anywhere.
        with torch.inference_mode(False):
            shape = (self.batch, self.num_key_value_heads, capacity, self.head_dim)
            return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _refuse_outgrowing(self, lengths: Sequence[int]) -> None:
        if self._seq_len is not None:
            refuse_outgrowing(lengths, self._seq_len, self.ropes or ())
