"""A cache of fixed capacity whose lengths are a tensor: under `torch.compile` one graph serves every decoding step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.attention.masks import Branches, CompiledWrite, TokenLayout, real_tokens
from ropewalk.attention.tables import SlotTables
from ropewalk.errors import RopeError


class StaticCache(KVCache):
    """A `KVCache` that never grows and counts its tokens in a tensor; `model.new_cache(static=True)` makes one.

    A compiled model reads no number from it: keys go to slots that the graph computes, and queries are held against the
    whole capacity under a mask. So attention costs as much as a full cache does. Without a compiler it computes what a
    `KVCache` computes, bit for bit, and reads its lengths once for each call.

    `capacity` (tokens of each row) is required; other arguments as `KVCache`'s. A call that exceeds it raises
    `RopeError`. A compiled call cannot raise: the row's logits are NaN from this call on, until the row is truncated.
    `RopeError` also where frequencies depend on length and are not right up to `capacity`.

    >>> cache = StaticCache(num_layers=1, batch=1, num_key_value_heads=1, head_dim=4, capacity=8)
    >>> layout = cache.lay_out(1, 3)
    >>> keys = torch.ones(1, 3, 1, 4)
    >>> cache.write(0, keys, keys, layout)[0].shape
    torch.Size([1, 1, 3, 4])
    """

    def __init__(self, *, capacity: int | None, **arguments: Any) -> None:
        if capacity is None or capacity < 1:
            raise RopeError(
                "StaticCache: `capacity` is required: it never grows.",
                facts={"capacity": capacity},
                cure="Pass the final length in tokens: capacity=prompt + new tokens.",
            )
        super().__init__(capacity=capacity, **arguments)
        self._refuse_outgrowing([capacity] * self.batch)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._used.shape[0]

    @property
    def lengths(self) -> Tensor:
        """int64 `[batch]`: tokens stored per row."""
        return self._used.clone()

    @property
    def _lengths(self) -> list[int]:
        return self._used.tolist()

    @_lengths.setter
    def _lengths(self, lengths: list[int]) -> None:
        with torch.inference_mode(False):
            self._used = torch.tensor(lengths, dtype=torch.int64, device=self.device)

    def lay_out(
        self, batch: int, seq: int, *, attention_mask: Tensor | None = None, branches: Branches | None = None
    ) -> TokenLayout:
        """As `KVCache.lay_out`; under a compiler in tensor arithmetic alone, and without branches."""
        if not torch.compiler.is_compiling():
            return super().lay_out(batch, seq, attention_mask=attention_mask, branches=branches)
        if branches is not None:
            raise RopeError("StaticCache: branches are not compiled.", cure="Ask them outside of torch.compile.")
        self._check_batch(batch)
        real = real_tokens(attention_mask, batch, seq, "KVCache")
        if real is None:
            slots = self._used[:, None] + torch.arange(seq, device=self.device)
            ends = self._used + seq
        else:
            slots = (self._used[:, None] + real.long().cumsum(1) - 1).clamp(min=0)
            ends = self._used + real.long().sum(1)
        layout = TokenLayout(batch, seq, self.device, total=self._capacity, cached=True, unrotated=not self.rotated)
        layout.slot_tables, layout.room = None if self.rotated else SlotTables(), self._capacity
        layout.slots, layout.real = slots.clamp(max=self._capacity - 1), real
        # padding goes to the slot behind the last one, which nothing reads
        targets = layout.slots if real is None else layout.slots.masked_fill(~real, self._capacity)
        layout.compiled_write = CompiledWrite(targets, ends > self._capacity, ends)
        return layout

    def write(self, layer: int, keys: Tensor, values: Tensor, layout: TokenLayout) -> tuple[Tensor, Tensor]:
        """As `KVCache.write`; what is returned under a compiler has the whole capacity."""
        to = layout.compiled_write
        if to is None:
            return super().write(layer, keys, values, layout)
        self._check_written(layer, keys, layout)
        index = to.targets[:, None, :, None].expand(-1, keys.shape[2], -1, keys.shape[3])
        # NaN reaches the last slot, which every query that exceeds the capacity sees
        values = values.masked_fill(to.exceeds[:, None, None, None], float("nan"))
        for buffer, fresh in ((self._keys[layer], keys), (self._values[layer], values)):
            buffer.scatter_(2, index, fresh.detach().to(self.dtype).transpose(1, 2))
        return self.held(layer, layout)

    def commit(self, layout: TokenLayout) -> None:
        """Count a call's tokens as stored, once every layer has written them."""
        if layout.compiled_write is not None:
            self._used.copy_(layout.compiled_write.ends)
        else:
            self._used.copy_(torch.tensor(layout.lengths, dtype=torch.int64, device=self.device))

    def truncate(self, length: int | Sequence[int]) -> None:
        """As `KVCache.truncate`; a row that exceeded the capacity loses the NaN of the tokens that are forgotten."""
        exceeded = max(self._lengths) > self._capacity
        super().truncate(length)
        if exceeded:
            for row, kept in enumerate(self._lengths):
                for buffer in self._values:
                    buffer[row, :, kept:] = 0.0

    def reserve(self, capacity: int) -> None:
        """Nothing, where there is room for `capacity` tokens per row already; else `RopeError`."""
        if capacity > self._capacity:
            raise RopeError(
                "StaticCache: this call exceeds its capacity.",
                facts={"tokens": capacity, "capacity": self._capacity},
                cure="Make it with capacity=prompt + new tokens.",
            )

    def _empty(self, capacity: int) -> Tensor:
        return super()._empty(capacity + 1)  # one slot more, for padding
