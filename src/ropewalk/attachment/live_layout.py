"""Where the tokens of one call lie, read from the mask that transformers hands to attention."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.masks import TokenLayout, Visibility
from ropewalk.attention.tables import SlotTables
from ropewalk.backends.request import Bounds
from ropewalk.errors import RopeError

MadeT = TypeVar("MadeT")
_ROOM = 1024  # slots whose tables are made at one time, while a text grows token by token


@dataclass(eq=False, kw_only=True)
class MaskedLayout(TokenLayout):
    """A call whose keys lie among padding, or in several documents, as a mask says.

    - `seen`: bool `[batch, 1, seq, total]`; every row sees a key. `index`: int64 `[batch, seq]`, of each query among
      the real tokens of its row. `index_of_keys`: int64 `[batch, total]`, 0 for padding, which no real query sees.
    - `blind`: bool `[batch, seq]`, queries that are padding. `intervals`: the first column that each query sees, and
      the one after its own, int64 `[batch, seq]`; None where what a query sees is no interval.
    """

    seen: Tensor
    index: Tensor
    index_of_keys: Tensor
    blind: Tensor
    intervals: tuple[Tensor, Tensor] | None

    @property
    def plain(self) -> bool:
        return False

    def position_ids(self) -> Tensor:
        return self.index

    def key_positions(self) -> Tensor:
        return self.index_of_keys

    def visibility(self, causal: bool, window: int | None, *, whole: bool = False) -> Visibility:
        return Visibility(mask=self.seen)

    def bounds(self, low: Tensor, high: Tensor) -> tuple[Bounds, ...] | None:
        if self.intervals is None:
            return None
        first, end = self.intervals
        return (Bounds(low + first, torch.minimum(high + first, end)),)


def read_layout(q: Tensor, keys: Tensor, mask: Tensor | None, slot_tables: SlotTables | None) -> TokenLayout:
    """The layout of queries `[batch, heads, seq, ...]` and keys `[batch, kv_heads, total, ...]` under a mask.

    `mask` is transformers': None (causal), bool `[batch or 1, 1, seq, total]`, or the same as numbers that are added. A
    query's index is the number of keys before it that it sees; a cached key's is its place among those that are seen.
    Raises `RopeError` where queries and keys then disagree (several documents in one row of a cache).
    """
    batch, seq, total = q.shape[0], q.shape[2], keys.shape[2]
    seen = None if mask is None else _seen(mask, batch)
    own = torch.arange(total - seq, total, device=q.device)
    if seen is not None and not torch.compiler.is_compiling():
        plainly = torch.arange(total, device=q.device) <= own[:, None]
        if bool((seen == plainly).all()):
            seen = None
    if seen is None:
        room = -(-total // _ROOM) * _ROOM
        return TokenLayout(
            batch, seq, q.device, start=total - seq, total=total, room=room, cached=True, slot_tables=slot_tables
        )
    blind, real = ~seen.any(-1, keepdim=True), seen.any(2)[:, 0]
    # a padded query sees its row's first key alone, which has index 0 as it has: finite, and means nothing
    seen = seen | (blind & F.one_hot(real.to(torch.uint8).argmax(-1), total).bool()[:, None, None])
    counts = seen.sum(-1)[:, 0]
    index = (counts - 1).clamp(min=0)
    index_of_keys = index if seq == total else (real.cumsum(-1) - 1).clamp(min=0)
    first = seen.to(torch.uint8).argmax(-1)[:, 0]
    last = total - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)[:, 0]
    intervals: tuple[Tensor, Tensor] | None = None
    if not torch.compiler.is_compiling():
        if not bool((index_of_keys.gather(1, last) == index).logical_or(blind[:, 0, :, 0]).all()):
            raise RopeError(
                "attach: a method in attention counts each row's tokens, and this call's mask does not tell them.",
                facts={"queries": seq, "keys": total},
                cure="Use a causal mask with padding on the left, and no packed documents together with a cache.",
            )
        if bool((last + 1 - first == counts).all()):
            intervals = first, last + 1
    return MaskedLayout(
        batch, seq, q.device, total=total, cached=True, seen=seen, index=index, index_of_keys=index_of_keys,
        blind=blind[:, 0, :, 0], intervals=intervals,
    )  # fmt: skip


def read_bounds(q: Tensor, keys: Tensor, mask: Tensor | None) -> Bounds | None:
    """The interval of keys that each query sees, for a kernel; None where a query sees no interval, or that differs.

    Arguments as for `read_layout`, of layers with a window as well.
    """
    seq, total = q.shape[2], keys.shape[2]
    if mask is None:
        if 1 < seq < total:
            return None
        high = torch.arange(total - seq + 1, total + 1, device=q.device)[None]
        return Bounds(torch.zeros_like(high), high)
    if mask.ndim != 4 or mask.shape[1] != 1:
        return None
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask > -1e4)).any()):
        return None  # numbers of their own, as ALiBi's
    seen = _seen(mask, q.shape[0])[:, 0]
    counts = seen.sum(-1)
    low = seen.to(torch.uint8).argmax(-1)
    inside = torch.arange(total, device=q.device)
    interval = (inside >= low[..., None]) & (inside < (low + counts)[..., None])
    return Bounds(low, low + counts) if bool((interval == seen).all()) else None


def _seen(mask: Tensor, batch: int) -> Tensor:
    """A mask as bool `[batch, 1, seq, total]`; numbers that are added are 0 where a key is seen."""
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise RopeError(
            "attach: methods in attention read masks `[batch, 1, queries, keys]`.",
            facts={"mask": mask},
            cure='Call model.set_attn_implementation("sdpa") first.',
        )
    seen = mask if mask.dtype == torch.bool else mask == 0
    return seen.expand(batch, -1, -1, -1)


def _check_counts(layout: TokenLayout, position_ids: Tensor | None) -> None:
    """Positions may start anywhere, but must go on by one from real token to real token, or a RopeError says so."""
    if position_ids is None or position_ids.ndim != 2 or not position_ids.numel():
        return
    shift = position_ids.to(layout.device) - layout.position_ids()
    least, most = shift, shift
    if isinstance(layout, MaskedLayout):  # padding has any position
        ends = torch.iinfo(shift.dtype)
        least, most = shift.masked_fill(layout.blind, ends.max), shift.masked_fill(layout.blind, ends.min)
    if bool((most.amax(-1) > least.amin(-1)).any()):
        raise RopeError(
            "attach: a method in attention counts each row's tokens, and `position_ids` says otherwise.",
            facts={"position_ids": position_ids},
            cure="Leave `position_ids` out; pass an attention_mask for padding, use_cache=False for packed documents.",
        )


class PerCall:
    """One value for the layers of a call: made by the first that asks, for a mask and a key. Threads may share it."""

    def __init__(self) -> None:
        self._held: tuple[Hashable, weakref.ref[Tensor] | None, Any] | None = None

    def forget(self) -> None:
        """A new forward begins."""
        self._held = None

    def of(self, key: Hashable, mask: Tensor | None, make: Callable[[], MadeT]) -> MadeT:
        """The value that is held, if it is this mask's and this key's; else what `make` gives."""
        version = None if mask is None or mask.is_inference() else mask._version
        key, held = (key, version), self._held
        if held is not None and held[0] == key and (None if held[1] is None else held[1]()) is mask:
            found: MadeT = held[2]
            return found
        made = make()
        self._held = key, None if mask is None else weakref.ref(mask), made  # one write
        return made


class CallLayouts:
    """What the layers of the call that is under way share, and tables of slots, shared by calls."""

    def __init__(self) -> None:
        self._layout, self._bounds = PerCall(), (PerCall(), PerCall())
        self._slots: dict[Hashable, SlotTables] = {}

    def forget(self) -> None:
        """A new forward begins."""
        for held in (self._layout, *self._bounds):
            held.forget()

    def of(
        self, q: Tensor, keys: Tensor, mask: Tensor | None, position_ids: Tensor | None, seq_len: int | None
    ) -> TokenLayout:
        """`read_layout`, made by the first layer that asks; `position_ids` of the queries must count as it does."""
        if torch.compiler.is_compiling():
            return read_layout(q, keys, mask, None)

        def make(slots: SlotTables | None) -> TokenLayout:
            layout = read_layout(q, keys, mask, slots)
            _check_counts(layout, position_ids)
            return layout

        if torch.is_grad_enabled():
            return make(None)
        mode = q.device, torch.is_inference_mode_enabled()
        slots = self._slots.setdefault(mode, SlotTables())
        return self._layout.of((*_sizes(q, keys), q.dtype, mode, seq_len), mask, lambda: make(slots))

    def bounds(self, q: Tensor, keys: Tensor, mask: Tensor | None, windowed: bool) -> Bounds | None:
        """`read_bounds`, made by the first layer with or without a window that asks."""
        key = *_sizes(q, keys), q.device, torch.is_inference_mode_enabled()
        return self._bounds[windowed].of(key, mask, lambda: read_bounds(q, keys, mask))

    def __getstate__(self) -> dict[str, object]:
        """A copy begins empty: what is kept belongs to one process and to the call that is under way."""
        return {}

    def __setstate__(self, state: dict[str, object]) -> None:
        CallLayouts.__init__(self)


def _sizes(q: Tensor, keys: Tensor) -> tuple[int, int, int]:
    return q.shape[0], q.shape[2], keys.shape[2]
