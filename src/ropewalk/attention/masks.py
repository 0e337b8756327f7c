"""The layout of one call's tokens (rows, branches), and the visible keys of each query."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.compiled import PLAIN
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import checked
from ropewalk.rotation.backends.request import Bounds

ValueT = TypeVar("ValueT")


class Memo:
    """A memo for the layers of one forward; tensors with gradients are not memoized.

    Activation checkpointing runs a layer a second time. A memoized tensor with a gradient would then be missing from
    the graph, or be a part of two graphs. The grad mode is a part of the key, so a constant made without gradients is
    not reused with them.

    >>> memo = Memo()
    >>> memo("zeros", lambda: torch.zeros(2)) is memo("zeros", lambda: torch.zeros(2))
    True
    >>> weight = torch.ones(2, requires_grad=True)
    >>> memo("double", lambda: 2 * weight) is memo("double", lambda: 2 * weight)
    False
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Hashable, bool], object] = {}

    def __call__(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Return the value of `key`; `make` computes it the first time."""
        full_key = (key, torch.is_grad_enabled())
        if full_key in self._values:
            return cast(ValueT, self._values[full_key])
        value = make()
        if not _has_gradient(value):
            self._values[full_key] = value
        return value


def _has_gradient(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, tuple | list) and any(_has_gradient(part) for part in value)


SlotTables = dict[Hashable, tuple[int | None, tuple[Tensor, Tensor, float]]]
"""The tables of a cache's slots for each rope of its keys, after the length that selects frequencies."""


class Stretch(NamedTuple):
    """One stretch of each token's line: tokens `begin .. end - 1` of the call, the first at `depth` in the line.

    `begin == end` if a token's line has fewer stretches.
    """

    begin: Tensor
    end: Tensor
    depth: Tensor


class Branches:
    """The tokens of one call as a tree: each follows another token of the call, or the end of the cache.

    **Arguments:** `parents`: for each token the index of its parent, which must be smaller, or -1 for the end of the
    cache.

    A token attends to the whole cache and, within the call, only to its own line: itself, its parent, and so on. So its
    result equals that of a call with only this line. Positions count from the end of the cache along each line.

    **Raises:** `RopeError` for a token before its parent.

    >>> branches = Branches([-1, 0, 0, -1])  # "a b", "a c" and "d"
    >>> branches.depths.tolist(), branches.seen.int().tolist()
    ([0, 1, 1, 0], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    """

    depths: Tensor
    """int64 `[seq]`: number of tokens of the call before each token in its line."""
    seen: Tensor
    """bool `[seq, seq]`: the tokens of the call visible to each token."""
    runs: tuple[Stretch, ...]
    """The same as stretches of consecutive tokens, int64 `[seq]` each; an uninterrupted line is one stretch."""

    @checked
    def __init__(self, parents: Sequence[int], device: torch.device | str | None = None) -> None:
        if not parents or not all(-1 <= parent < number for number, parent in enumerate(parents)):
            raise RopeError(
                "Branches: each token must follow an earlier one, or -1 (the end of the cache).",
                facts={"parents": parents},
                cure="Sort the tokens so that parents come first.",
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
        self.depths = torch.tensor(depths, dtype=torch.int64, device=device)
        self.seen = seen.to(device)
        most, none = max(map(len, runs)), (0,) * 3
        table = torch.tensor([[*of_token, *[none] * (most - len(of_token))] for of_token in runs], device=device)
        self.runs = tuple(Stretch(*run.unbind(-1)) for run in table.unbind(1))

    def __len__(self) -> int:
        return len(self.depths)


@dataclass(eq=False)
class Visibility:
    """The visible keys of one call's queries, as a mask or in a form without a mask.

    - `mask`: bool `[seq, keys]` or `[batch, 1, seq, keys]`, True for a visible key, or None.
    - `is_causal`: the kernel's own causal rule instead (`seq == keys`).
    - `first_key`: no query attends to an earlier key; the mask begins here.
    - `build`: builds the mask when it is needed.
    - `bounds`: returns the intervals of visible keys of each query, for a kernel, or None.
    """

    mask: Tensor | None = None
    is_causal: bool = False
    first_key: int = 0
    build: Callable[[], Tensor] | None = field(default=None, repr=False)
    bounds: Callable[[], tuple[Bounds, ...] | None] = field(default=lambda: None, repr=False)
    _memo: Memo = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._memo = Memo()  # not a default factory, which dynamo does not trace

    @property
    def is_simple(self) -> bool:
        """Return whether no mask is needed, except the kernel's own causal rule."""
        return self.mask is None and self.build is None

    def whole_mask(self) -> Tensor | None:
        """Return the mask, built at the first call."""
        if self.mask is None and self.build is not None:
            self.mask = self.build()
        return self.mask

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """Return the mask as 0 and minus infinity in `dtype`, built once and shared by the layers."""
        mask = self.whole_mask()
        if mask is None:
            return None

        def make() -> Tensor:
            zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            return zeros.masked_fill_(~mask, float("-inf"))

        return self._memo(dtype, make)


@dataclass(eq=False)
class TokenLayout:
    """The places of one call's tokens in their rows; built once per forward and shared by the layers.

    A token's *slot* is its index among the real tokens of its row, counted from the row's beginning (in a cache: the
    place of its key). The causal rule and windows compare slots. Rotation uses position ids, which are the slots unless
    the caller passes different ones.
    """

    batch: int
    seq: int
    device: torch.device
    total: int
    """Number of keys."""
    start: int = 0
    """Slot of the first token, if it is the same in all rows."""
    capacity: int = 0
    """Tokens per row that fit into the cache."""
    cached: bool = False
    slot_tables: SlotTables | None = None
    """The tables of the slots of a cache of unrotated keys."""
    slots: Tensor | None = None
    """int64 `[batch, seq]`, at least 0; None: `start .. start + seq - 1` in every row."""
    real: Tensor | None = None
    """bool `[batch, seq]`, False for padding; None: all real."""
    documents: Tensor | None = None
    """int64 `[batch, seq]`: the number of the token's document in its row."""
    document_slots: Tensor | None = None
    """int64 `[batch, seq]`: the token's index in its document."""
    branches: Branches | None = None
    """For a call with several continuations of the cache's row, stored after it only during the call."""
    held: tuple[int, ...] = ()
    """Tokens per row before this call (with a cache)."""
    lengths: tuple[int, ...] = ()
    """Tokens per row after this call (with a cache)."""
    memo: Memo = field(init=False, repr=False)
    """Values that the layers of this forward share."""
    written: set[int] = field(init=False, repr=False)
    """The layers of the cache that have stored this call's tokens."""

    def __post_init__(self) -> None:
        self.memo = Memo()
        self.written = set()

    @property
    def plain(self) -> bool:
        """Return whether all rows have the same slots, and only order hides keys."""
        return self.slots is None and self.real is None and self.documents is None and self.branches is None

    def position_ids(self) -> Tensor:
        """Return each token's index in its row or document, int64 `[seq]` or `[batch, seq]`."""
        if self.document_slots is not None:
            return self.document_slots
        return self.slots_of_queries() if self.branches is None else self.start + self.branches.depths

    def key_positions(self) -> Tensor:
        """Return each cached key's index in its row, int64 `[total]`: its slot, except for branches."""
        if self.branches is None:
            return torch.arange(self.total, device=self.device)
        return torch.cat([torch.arange(self.start, device=self.device), self.position_ids()])

    def stored(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, columns and slots of the real tokens, each int64 `[tokens]`, to write into rows that differ."""
        slots = self.slots
        assert slots is not None, "equal rows are written as one slice"

        def make() -> tuple[Tensor, Tensor, Tensor]:
            real = torch.ones_like(slots, dtype=torch.bool) if self.real is None else self.real
            rows, columns = real.nonzero(as_tuple=True)
            return rows, columns, slots[rows, columns]

        return self.memo("stored", make)

    def kernel_slots(self) -> Tensor:
        """Return the slot of each token for a kernel, int64 `[1 or batch, seq]`; -1 for padding."""

        def make() -> Tensor:
            slots = self.slots_of_queries()[None] if self.slots is None else self.slots
            return slots if self.real is None else slots.masked_fill(~self.real, -1)

        return self.memo("kernel slots", make)

    def visibility(self, causal: bool, window: int | None, *, whole: bool = False) -> Visibility:
        """Return the visible keys of queries under `causal` and `window`; `whole`: with a mask over all keys."""
        if window is not None and window >= self.total:
            window = None

        def make() -> Visibility:
            seen = self._visibility(causal, window, whole)
            seen.bounds = lambda: self.memo(("bounds", causal, window), lambda: self._bounds(causal, window))
            return seen

        return self.memo(("visibility", causal, window, whole), make)

    def _bounds(self, causal: bool, window: int | None) -> tuple[Bounds, ...] | None:
        index = self.position_ids()
        if causal:
            low = torch.zeros_like(index) if window is None else (index - (window - 1)).clamp_(min=0)
            return self.bounds(low, index + 1)
        low = torch.zeros_like(index) if window is None else (index - window).clamp_(min=0)
        high = torch.full_like(index, self.total) if window is None else index + window + 1
        return self.bounds(low, high)

    def bounds(self, low: Tensor, high: Tensor) -> tuple[Bounds, ...] | None:
        """Return the places of the keys at positions `low <= n < high` (see `position_ids`) of each query.

        **Arguments:** `low`, `high`: int64 `[seq]` or `[batch, seq]`.

        **Returns:** one interval; for branches one in the cache and one for each stretch of the lines, without empty
        ones. None if there is padding between the tokens of a row or document.
        """
        if low.ndim == 1:
            low, high = low[None], high[None]
        if self.branches is not None:
            intervals = [Bounds(low, high.clamp(max=self.start))]
            for begin, end, depth in self.branches.runs:
                length = end - begin
                first, last = ((edge - self.start - depth).clamp(min=0).minimum(length) for edge in (low, high))
                intervals.append(Bounds(self.start + begin + first, self.start + begin + last))
            return tuple(each for each in intervals if bool((each.low < each.high).any()))
        if self.cached or (self.real is None and self.documents is None):
            return (Bounds(low, high),)
        run = self.memo("run of real tokens", self._run)
        if run is None:
            return None
        begin, end = run
        low, high = low + begin, torch.minimum(high + begin, end)
        if self.real is not None:  # a padded query sees only itself, as in `_mask`
            columns = torch.arange(self.seq, device=self.device)
            low, high = torch.where(self.real, low, columns), torch.where(self.real, high, columns + 1)
        return (Bounds(low, high),)

    def _run(self) -> tuple[Tensor, Tensor] | None:
        """Return begin and end of the real tokens of each token's row or document, int64 `[batch, seq]` each.

        Padded tokens have no meaningful ones. None if there is padding between real tokens.
        """
        slots = self.position_ids().expand(self.batch, -1)
        numbers = torch.zeros_like(slots) if self.documents is None else self.documents
        real = torch.ones_like(slots) if self.real is None else self.real.long()
        if self.real is not None:
            resumes = (real.diff(dim=1) > 0) & (numbers.diff(dim=1) == 0) & (slots[:, 1:] > 0)
            if bool(resumes.any()):
                return None
        before = F.pad(real.cumsum(1), (1, 0))
        first, last = (torch.searchsorted(numbers, numbers, right=right) for right in (False, True))
        begin = torch.arange(self.seq, device=self.device) - slots
        return begin, begin + before.gather(1, last) - before.gather(1, first)

    def slots_of_queries(self) -> Tensor:
        """Return each token's slot, int64 `[seq]` or `[batch, seq]`."""
        return torch.arange(self.start, self.start + self.seq, device=self.device) if self.slots is None else self.slots

    def _visibility(self, causal: bool, window: int | None, whole: bool) -> Visibility:
        first = max(0, self.start - window + 1) if causal and window is not None and not whole else 0
        if self.branches is not None:
            return Visibility(build=lambda: self._mask_of_branches(window, first), first_key=first)
        if self.plain and not causal and window is None:
            return Visibility()
        if self.plain and causal and not whole:
            if self.seq == 1:  # an `if`: the kernel takes no symbolic `is_causal=seq > 1` from a compiler
                return Visibility(first_key=first)
            if window is None and self.start == 0:
                return Visibility(is_causal=True)
        return Visibility(build=lambda: self._mask(causal, window, first), first_key=first)

    def _mask(self, causal: bool, window: int | None, first: int) -> Tensor:
        if self.plain:
            queries = self.slots_of_queries()[:, None]
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
            # A padded query sees only itself: its output has no meaning but is finite.
            itself = torch.eye(self.seq, dtype=torch.bool, device=self.device)
            both = self.real[:, None, :, None] & self.real[:, None, None, :]
            seen = (seen & both) | (itself & ~self.real[:, None, :, None])
        return seen

    def _mask_of_branches(self, window: int | None, first: int) -> Tensor:
        assert self.branches is not None, "only calls with branches have this mask"
        seen = _in_order(self.position_ids()[:, None], self.key_positions()[None, first:], True, window)
        seen[:, self.start - first :] &= self.branches.seen
        return seen

    def slots_in_full(self) -> Tensor:
        """Return each token's slot, int64 `[batch, seq]`."""
        return self.slots_of_queries().expand(self.batch, -1)


def lay_out(
    batch: int,
    seq: int,
    device: torch.device,
    *,
    attention_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    where: str = "Attention",
) -> TokenLayout:
    """Return the layout of a call without a cache; see `KVCache.lay_out` for calls with one.

    **Arguments:** `attention_mask`: bool or integer `[batch, seq]`, 1 for a real token. `document_ids`: integers
    `[batch, seq]`; a new document begins when the id changes. `where`: the caller's name in errors.

    **Raises:** `RopeError` for other shapes or dtypes.
    """
    layout = TokenLayout(batch, seq, device, total=seq)
    layout.real = real_tokens(attention_mask, batch, seq, where)
    if layout.real is not None:
        layout.slots = (layout.real.long().cumsum(1) - 1).clamp_(min=0)
    if document_ids is not None:
        check_kind(where, Tensor, "Pass one id per token.", document_ids=document_ids)
        if document_ids.shape != (batch, seq) or document_ids.is_floating_point():
            raise RopeError(
                f"{where}: `document_ids` must be integers [batch, seq].",
                facts={"document_ids": document_ids, "batch": batch, "seq": seq},
                cure="Pass one id per token; a new document begins when the id changes.",
            )
        begins = torch.ones_like(document_ids, dtype=torch.bool)
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        layout.documents = begins.long().cumsum(1)
        ones = torch.ones_like(document_ids, dtype=torch.int64) if layout.real is None else layout.real.long()
        before = ones.cumsum(1) - ones
        # Real tokens before the token's document: its positions count from there.
        preceding = torch.where(begins, before, 0).cummax(1).values
        layout.document_slots = (layout.slots_in_full() - preceding).clamp_(min=0)
    return layout


def real_tokens(attention_mask: Tensor | None, batch: int, seq: int, where: str) -> Tensor | None:
    """Return `attention_mask` as bool `[batch, seq]`, or None if it hides nothing (not checked while compiling)."""
    if attention_mask is None:
        return None
    check_kind(where, Tensor, "Pass 1 for a real token and 0 for padding.", attention_mask=attention_mask)
    if attention_mask.shape != (batch, seq) or attention_mask.is_floating_point():
        raise RopeError(
            f"{where}: `attention_mask` must be bool or integer [batch, seq], 1 for a real token.",
            facts={"attention_mask": attention_mask, "batch": batch, "seq": seq},
            cure="Pass a mask for the tokens of this call only, without those in a cache.",
        )
    real = attention_mask != 0
    if not torch.compiler.is_compiling() and real.device.type != "meta" and bool(real.all()):
        return None
    return real


def _in_order(queries: Tensor, keys: Tensor, causal: bool, window: int | None) -> Tensor:
    """Return whether each key is in each query's reach: causal `q - window < k <= q`, else `|q - k| <= window`."""
    if causal:
        seen = keys <= queries
        return seen if window is None else seen & (keys > queries - window)
    near = (queries - keys).abs()
    return torch.ones_like(near, dtype=torch.bool) if window is None else near <= window


def is_readable(x: Tensor) -> bool:
    """Return whether the values of a tensor exist and would not become constants of a graph."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in PLAIN
        and x.device.type != "meta"
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )
