"""Where the tokens of one call lie (rows, branches, shards of a sequence) and which keys each query may attend to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropewalk.attention.tables import SlotTables
from ropewalk.backends.request import Bounds
from ropewalk.encodings.encoding import Memo
from ropewalk.errors import RopeError


class Stretch(NamedTuple):
    """Of each token a stretch of its line: the tokens `begin .. end - 1` of the call, the first at `depth` in the line.

    `begin == end` where a token's line has fewer stretches.
    """

    begin: Tensor
    end: Tensor
    depth: Tensor


class Branches:
    """The tokens of one call as a tree: each goes on from another one of the call, or from the end of the cache.

    - `parents`: for each token the number of the token that it follows, or -1 for the end of what the cache holds. A
      token comes after its parent.

    A token sees everything in the cache, and of the call its own line alone: itself, its parent, and so on. So it gives
    what it would give if its line alone had been read. Positions count from the end of the cache along each line.
    Raises `RopeError` for a token before its parent.

    >>> branches = Branches([-1, 0, 0, -1])  # "a b", "a c" and "d"
    >>> branches.depths.tolist(), branches.seen.int().tolist()
    ([0, 1, 1, 0], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    """

    depths: Tensor
    """int64 `[seq]`: how many tokens of the call come before each in its line."""
    seen: Tensor
    """bool `[seq, seq]`: which tokens of the call each sees."""
    runs: tuple[Stretch, ...]
    """The same as stretches of neighbours, int64 `[seq]` each: a line that no other interrupts is one."""

    def __init__(self, parents: Sequence[int], device: torch.device | str | None = None) -> None:
        if not parents or not all(-1 <= parent < number for number, parent in enumerate(parents)):
            raise RopeError(
                "Branches: each token follows an earlier one, or -1: the end of the cache.",
                facts={"parents": list(parents)},
                cure="List a line's tokens in their order.",
            )
        depths: list[int] = []
        runs: list[tuple[tuple[int, int, int], ...]] = []
        seen = torch.eye(len(parents), dtype=torch.bool, device="cpu")
        for number, parent in enumerate(parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            before = () if parent < 0 else runs[parent]
            if before and parent == number - 1:
                runs.append((*before[:-1], (before[-1][0], number + 1, before[-1][2])))
            else:
                runs.append((*before, (number, number + 1, depths[number])))
            if parent >= 0:
                seen[number] |= seen[parent]
        self.deepest = 1 + max(depths)
        """Tokens of the longest line."""
        self.depths = torch.tensor(depths, dtype=torch.int64, device=device)
        self.seen = seen.to(device)
        most = max(len(of_token) for of_token in runs)
        table = torch.tensor([[*of_token, *[(0, 0, 0)] * (most - len(of_token))] for of_token in runs], device=device)
        self.runs = tuple(Stretch(*run.unbind(-1)) for run in table.unbind(1))

    def __len__(self) -> int:
        return len(self.depths)


@dataclass(eq=False)
class Visibility:
    """Which keys the queries of one call see: a mask, or the reason why none is needed.

    `mask` is bool `[seq, keys]` or `[batch, 1, seq, keys]`, True where seen, or None. `is_causal` asks for the
    kernel's own causal rule instead (`seq == keys`). Keys before `first_key` are out of every query's reach and
    left out of the mask. `prefix` counts the leading keys that every query sees, where the rest is plainly causal, or
    seen as `own` says (bool `[seq, seq]`). `band` is a window that the queries are cut into blocks for. A mask that
    `build` makes is built only if asked for. `bounds` gives the same for a kernel: intervals of keys that each query
    sees, or None.
    """

    mask: Tensor | None = None
    is_causal: bool = False
    first_key: int = 0
    prefix: int = 0
    own: Tensor | None = None
    band: int = 0
    build: Callable[[], Tensor] | None = field(default=None, repr=False)
    bounds: Callable[[], tuple[Bounds, ...] | None] = field(default=lambda: None, repr=False)
    _memo: Memo = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._memo = Memo()  # not a default factory, which dynamo does not trace

    @property
    def is_simple(self) -> bool:
        """Whether no mask is needed, but at most the kernel's own causal rule."""
        return self.mask is None and self.build is None and not self.band

    def whole_mask(self) -> Tensor | None:
        """The mask, built if it has not been yet."""
        if self.mask is None and self.build is not None:
            self.mask = self.build()
        return self.mask

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """The mask as 0 and minus infinity in `dtype`, made once and shared by the layers."""
        return self._additive("mask", self.whole_mask(), dtype)

    def own_additive(self, dtype: torch.dtype) -> Tensor | None:
        """`own` in the same form; None where the call's own tokens are plainly causal."""
        return self._additive("own", self.own, dtype)

    def _additive(self, name: str, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if mask is None:
            return None

        def make() -> Tensor:
            zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            return zeros.masked_fill_(~mask, float("-inf"))

        return self._memo((name, dtype), make)


class CompiledWrite(NamedTuple):
    """Where a compiled call writes into a `StaticCache`: slots, whether rows exceed it, and their lengths afterwards.

    `targets` int64 `[batch, seq]`, `exceeds` bool `[batch]`, `ends` int64 `[batch]`.
    """

    targets: Tensor
    exceeds: Tensor
    ends: Tensor


@dataclass(eq=False)
class TokenLayout:
    """Where the tokens of one call lie in their rows; built once per forward and shared by the layers.

    A token's *slot* is its index among the real tokens of its row, counted from the row's beginning (in a cache:
    where its key is stored). The causal rule and windows go by slots; rotation goes by position ids, which are the
    slots unless the caller says otherwise.
    """

    batch: int
    seq: int
    device: torch.device
    start: int = 0
    """Slot of the first token, where every row has the same."""
    total: int = 0
    """How many keys each query is held against."""
    room: int = 0
    """How many the cache has room for."""
    cached: bool = False
    unrotated: bool = False
    """Whether the cache keeps its keys unrotated."""
    slot_tables: SlotTables | None = None
    """The cache's own tables of its slots, where it keeps its keys unrotated."""
    slots: Tensor | None = None
    """int64 `[batch, seq]`, at least 0; None: `start .. start + seq - 1` in every row."""
    real: Tensor | None = None
    """bool `[batch, seq]`, False for padding; None: all real."""
    documents: Tensor | None = None
    """int64 `[batch, seq]`: the number of the token's document in its row."""
    document_slots: Tensor | None = None
    shard: SequenceShard | None = None
    """Of a call on one process's tokens of rows that several hold: `slots` are int64 `[seq]` then."""
    first_keys: Tensor | None = None
    """With `shard`, int64 `[batch, seq]`: where the token's document begins in its row."""
    branches: Branches | None = None
    """Of a call whose tokens are several continuations of the cache's row, stored behind it for the call alone."""
    lengths: tuple[int, ...] = ()
    """Tokens per row after this call (with a cache)."""
    compiled_write: CompiledWrite | None = None
    """Of a compiled call with a `StaticCache`."""
    memo: Memo = field(init=False, repr=False)
    """What the layers of this forward share."""

    def __post_init__(self) -> None:
        self.memo = Memo()

    @property
    def plain(self) -> bool:
        """Whether every row holds the same slots and nothing is hidden but by order."""
        return self.slots is None and self.real is None and self.documents is None and self.branches is None

    def position_ids(self) -> Tensor:
        """int64 `[seq]` or `[batch, seq]`: each token's index in its row, or in its document."""
        if self.document_slots is not None:
            return self.document_slots
        if self.slots is not None:
            return self.slots
        if self.branches is not None:
            return self.start + self.branches.depths
        return torch.arange(self.start, self.start + self.seq, device=self.device)

    def key_positions(self) -> Tensor:
        """int64 `[total]`: each cached key's index in its row, which is where it is stored but for branches."""
        if self.branches is None:
            return torch.arange(self.total, device=self.device)
        return torch.cat([torch.arange(self.start, device=self.device), self.position_ids()])

    def stored(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and slots of the real tokens, each int64 `[tokens]`: what a ragged cache writes."""
        slots = self.slots
        assert slots is not None, "a call whose rows are alike is written as one slice"

        def make() -> tuple[Tensor, Tensor, Tensor]:
            real = torch.ones_like(slots, dtype=torch.bool) if self.real is None else self.real
            rows, columns = real.nonzero(as_tuple=True)
            return rows, columns, slots[rows, columns]

        return self.memo("stored", make)

    def places(self) -> Tensor:
        """int64 `[1 or batch, seq]`: the slot that each token is stored in, -1 for padding: what kernels write by."""

        def make() -> Tensor:
            if self.slots is None:
                return torch.arange(self.start, self.start + self.seq, device=self.device)[None]
            return self.slots if self.real is None else self.slots.masked_fill(~self.real, -1)

        return self.memo("places", make)

    def visibility(self, causal: bool, window: int | None, *, whole: bool = False) -> Visibility:
        """What the queries see under `causal` and `window`; `whole` asks for a full-width mask, for weights."""
        if window is not None and window >= self.total:
            window = None

        def make() -> Visibility:
            seen = self._visibility(causal, window, whole)
            seen.bounds = lambda: self.memo(("bounds", causal, window), lambda: self._bounds(causal, window))
            return seen

        return self.memo(("visibility", causal, window, whole), make)

    def _bounds(self, causal: bool, window: int | None) -> tuple[Bounds, ...] | None:
        index = self.slots_of_queries() if self.branches is None else self.position_ids()
        if causal:
            low = torch.zeros_like(index) if window is None else (index - (window - 1)).clamp_(min=0)
            if self.first_keys is not None:
                low, index = torch.maximum(low, self.first_keys), index.expand_as(self.first_keys)
            return self.bounds(low, index + 1)
        low = torch.zeros_like(index) if window is None else (index - window).clamp_(min=0)
        high = torch.full_like(index, self.total) if window is None else index + window + 1
        return self.bounds(low, high)

    def bounds(self, low: Tensor, high: Tensor) -> tuple[Bounds, ...] | None:
        """Slots `low <= n < high` of each query, int64 `[seq]` or `[batch, seq]`, as the places where their keys lie.

        One interval, or for branches one in the cache and one for each stretch of the lines; empty ones are left out.
        None where the real tokens of a row are no interval, and for documents in one row.
        """
        if self.documents is not None:
            return None
        if low.ndim == 1:
            low, high = low[None], high[None]
        if self.branches is not None:
            found = [Bounds(low, high.clamp(max=self.start))]
            for begin, end, depth in self.branches.runs:
                length = end - begin
                first, last = ((edge - self.start - depth).clamp(min=0).minimum(length) for edge in (low, high))
                found.append(Bounds(self.start + begin + first, self.start + begin + last))
            return tuple(each for each in found if bool((each.low < each.high).any()))
        if self.real is None or self.cached:
            return (Bounds(low, high),)
        run = self.memo("run of real tokens", self._run)
        if run is None:
            return None
        first, end = run
        columns = torch.arange(self.seq, device=self.device)
        # a padded query sees itself alone, as in `_mask`
        low = torch.where(self.real, low + first, columns)
        return (Bounds(low, torch.where(self.real, torch.minimum(high + first, end), columns + 1)),)

    def _run(self) -> tuple[Tensor, Tensor] | None:
        """Where the real tokens of each row begin and end, int64 `[batch, 1]`; None if there is padding among them."""
        assert self.real is not None
        columns = torch.arange(self.seq, device=self.device)
        first = self.real.long().argmax(1, keepdim=True)
        end = first + self.real.long().sum(1, keepdim=True)
        alike = ((columns >= first) & (columns < end)) == self.real
        return (first, end) if bool(alike.all()) else None

    def slots_of_queries(self) -> Tensor:
        """int64 `[seq]` or `[batch, seq]`: each token's slot."""
        return torch.arange(self.start, self.start + self.seq, device=self.device) if self.slots is None else self.slots

    def _visibility(self, causal: bool, window: int | None, whole: bool) -> Visibility:
        if self.branches is not None:
            if window is None and not whole:
                return Visibility(
                    prefix=self.start, own=self.branches.seen, build=lambda: self._mask_of_branches(None, 0)
                )
            first = 0 if window is None or whole else max(0, self.start - window + 1)
            return Visibility(mask=self._mask_of_branches(window, first), first_key=first)
        if self.shard is not None:
            return Visibility(build=lambda: self._mask_of_shard(window))
        if self.plain and not whole:
            if not causal and window is None:
                return Visibility()
            if causal and window is None and self.start == 0:
                # An `if`, not `is_causal=seq > 1`: the kernel takes no symbolic bool from a compiler.
                return Visibility(is_causal=True) if self.seq > 1 else Visibility()
            if causal and self.seq == 1:
                return Visibility(first_key=0 if window is None else self.total - window)
            if causal and window is None:
                return Visibility(prefix=self.start, build=lambda: self._mask(causal, None, 0))
            if causal and window is not None:
                first = max(0, self.start - window + 1)
                if self.seq > 2 * window and not torch.compiler.is_compiling():
                    return Visibility(band=window)
                return Visibility(build=lambda: self._mask(causal, window, first), first_key=first)
        if self.plain and not causal and window is None:
            return Visibility()
        return Visibility(build=lambda: self._mask(causal, window, 0))

    def _mask(self, causal: bool, window: int | None, first: int) -> Tensor:
        if self.plain:
            queries = torch.arange(self.start, self.start + self.seq, device=self.device)[:, None]
            keys = torch.arange(first, self.total, device=self.device)[None, :]
            return _in_order(queries, keys, causal, window)
        slots = self.slots_in_full()
        queries = slots[:, None, :, None]
        if self.cached:
            keys = torch.arange(self.total, device=self.device)[None, None, None, :]
            return _in_order(queries, keys, causal, window)
        seen = _in_order(queries, slots[:, None, None, :], causal, window)
        if self.documents is not None:
            seen = seen & (self.documents[:, None, :, None] == self.documents[:, None, None, :])
        if self.real is not None:
            # A padded query sees itself alone: its output means nothing, but stays finite.
            alone = torch.eye(self.seq, dtype=torch.bool, device=self.device)
            both = self.real[:, None, :, None] & self.real[:, None, None, :]
            seen = (seen & both) | (alone & ~self.real[:, None, :, None])
        return seen

    def _mask_of_shard(self, window: int | None) -> Tensor:
        """Of causal attention, bool `[seq, total]`, or `[batch, 1, seq, total]` where there are documents."""
        keys = torch.arange(self.total, device=self.device)
        seen = _in_order(self.slots_of_queries()[:, None], keys, True, window)
        return seen if self.first_keys is None else seen & (keys >= self.first_keys[:, None, :, None])

    def _mask_of_branches(self, window: int | None, first: int) -> Tensor:
        assert self.branches is not None, "only a call with branches has their mask"
        seen = _in_order(self.position_ids()[:, None], self.key_positions()[None, first:], True, window)
        seen[:, self.start - first :] &= self.branches.seen
        return seen

    def slots_in_full(self) -> Tensor:
        """int64 `[batch, seq]`: the slots, written out."""
        if self.slots is not None:
            return self.slots
        return torch.arange(self.start, self.start + self.seq, device=self.device).expand(self.batch, -1)


def lay_out(
    batch: int,
    seq: int,
    device: torch.device,
    *,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    where: str = "Attention",
) -> TokenLayout:
    """The layout of a call without a cache; `KVCache.lay_out` is its sibling.

    `attention_mask` is bool or integer `[batch, seq]`, 1 for a real token; `document_ids` integer `[batch, seq]`:
    a new document begins wherever the id changes. Raises `RopeError` for other shapes or dtypes.
    """
    layout = TokenLayout(batch, seq, device, total=seq)
    layout.real = real_tokens(attention_mask, batch, seq, where)
    if layout.real is not None:
        layout.slots = (layout.real.long().cumsum(1) - 1).clamp_(min=0)
    if document_ids is not None:
        if document_ids.shape != (batch, seq) or document_ids.is_floating_point():
            raise RopeError(
                f"{where}: `document_ids` must be integers [batch, seq].",
                facts={"document_ids": document_ids, "batch": batch, "seq": seq},
                cure="Give one id per token; a new document begins wherever the id changes.",
            )
        begins = torch.ones_like(document_ids, dtype=torch.bool)
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        layout.documents = begins.long().cumsum(1)
        ones = torch.ones_like(document_ids, dtype=torch.int64) if layout.real is None else layout.real.long()
        before = ones.cumsum(1) - ones
        # How many real tokens precede a token's document: its positions count from there.
        preceding = torch.where(begins, before, 0).cummax(1).values
        layout.document_slots = (layout.slots_in_full() - preceding).clamp_(min=0)
    return layout


def real_tokens(attention_mask: Tensor | None, batch: int, seq: int, where: str) -> Tensor | None:
    """`attention_mask` as bool `[batch, seq]`, or None where it hides nothing (not asked while compiling)."""
    if attention_mask is None:
        return None
    if attention_mask.shape != (batch, seq) or attention_mask.is_floating_point():
        raise RopeError(
            f"{where}: `attention_mask` must be bool or integer [batch, seq], 1 for a real token.",
            facts={"attention_mask": attention_mask, "batch": batch, "seq": seq},
            cure="It covers the tokens of this call alone; a cache remembers its own.",
        )
    real = attention_mask != 0
    if not torch.compiler.is_compiling() and real.device.type != "meta" and bool(real.all()):
        return None
    return real


def _in_order(queries: Tensor, keys: Tensor, causal: bool, window: int | None) -> Tensor:
    """True where a key's slot is in a query's reach: causal `q - window < k <= q`, else `|q - k| <= window`."""
    if causal:
        seen = keys <= queries
        return seen if window is None else seen & (keys > queries - window)
    near = (queries - keys).abs()
    return torch.ones_like(near, dtype=torch.bool) if window is None else near <= window


class SequenceShard:
    """This process's tokens of rows that are dealt out to several (context parallelism).

    - `indices`: of each process, in the group's order, which tokens of a row it has, int64 `[local]`: as many for each,
      and together all of them once. `rank`: this process's place in the group.
    - `group`: torch's process group, or a mesh of one dimension.

    Attention is computed for each query by its token's index in the whole row, against keys and values that are
    gathered in each layer. Raises `RopeError` where the indices are no permutation.
    """

    def __init__(self, indices: Sequence[Tensor], rank: int, group: Any) -> None:
        every = torch.cat(list(indices))
        self.index, self.total, self.group = indices[rank], len(every), group
        self._order = every.argsort()
        numbers = torch.arange(self.total, device=every.device)
        if len({len(each) for each in indices}) > 1 or not torch.equal(every[self._order], numbers):
            raise RopeError(
                "SequenceShard: every token of a row belongs to one process, and each has as many.",
                facts={"lengths": [len(each) for each in indices]},
                cure="Take rw.positions.positions_for_rank of each rank.",
            )

    def own(self, x: Tensor) -> Tensor:
        """This process's part of `[batch, total, ...]`."""
        return x.index_select(1, self.index)

    def whole(self, x: Tensor) -> Tensor:
        """`[batch, local, ...]` of all processes as `[batch, total, ...]`, in the tokens' order; with gradients."""
        return self._gathered(x.transpose(0, 1)).transpose(0, 1)

    def keys_and_values(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all tokens: `[batch, kv_heads, local, head_dim]` to `[batch, kv_heads, total, head_dim]`."""
        both = self._gathered(torch.stack([keys, values]).movedim(3, 0)).movedim(0, 3)
        return both[0], both[1]

    def _gathered(self, x: Tensor) -> Tensor:
        """`[local, ...]` to `[total, ...]`; the gradient of a token is summed over all processes."""
        from torch.distributed import _functional_collectives as collectives

        gather = getattr(collectives, "all_gather_single_autograd", None)  # before torch 2.13 under another name
        gather = gather or collectives.all_gather_tensor_autograd
        found: Tensor = gather(x.contiguous(), 0, self.group)
        return found.index_select(0, self._order)

    def lay_out(
        self, batch: int, seq: int, device: torch.device, *, document_ids: Tensor | None, where: str
    ) -> TokenLayout:
        """The layout of a call on this process's tokens; `document_ids` are those of its tokens, `[batch, local]`."""
        if seq != len(self.index):
            raise RopeError(
                f"{where}: a call holds this process's tokens of a row, and no others.",
                facts={"seq": seq, "tokens of this process": len(self.index), "of a row": self.total},
                cure="Pass shard.own(input_ids).",
            )
        layout = TokenLayout(batch, seq, device, total=self.total, shard=self, slots=self.index)
        if document_ids is not None:
            if document_ids.shape != (batch, seq):
                lay_out(batch, seq, device, document_ids=document_ids, where=where)  # says what is wrong
            rows = lay_out(batch, self.total, device, document_ids=self.whole(document_ids), where=where)
            assert rows.document_slots is not None, "documents have positions of their own"
            layout.document_slots = self.own(rows.document_slots)
            layout.first_keys = self.index - layout.document_slots
        return layout

    def check_positions(self, position_ids: Tensor, layout: TokenLayout, where: str) -> None:
        """Refuse positions that do not ascend along each document: those of a process's local length, above all."""
        theirs = self.whole(position_ids if position_ids.ndim > 1 else position_ids[None])
        begins = self.whole((self.index if layout.first_keys is None else layout.first_keys).expand(layout.batch, -1))
        if layout.first_keys is None:
            begins = torch.zeros_like(begins)
        if bool(((theirs.diff(dim=1) <= 0) & (begins.diff(dim=1) == 0)).any()):
            raise RopeError(
                f"{where}: the positions of a row's tokens do not ascend: each process gives those in the whole row.",
                facts={"position_ids": position_ids, "total": self.total},
                cure="Take rw.positions.positions_for_rank, not an arange of the local length.",
            )

    def check_length(self, seq_len: int | Tensor, where: str) -> None:
        """Refuse a length below that of the whole row: a process's local length, above all."""
        least = seq_len if isinstance(seq_len, int) else int(seq_len.min())
        if least < self.total:
            raise RopeError(
                f"{where}: `seq_len` is the length of the whole row, of which a process holds a part.",
                facts={"seq_len": seq_len, "tokens here": len(self.index), "of the row": self.total},
                cure="Pass at least the tokens of the whole row: shard.total.",
            )
