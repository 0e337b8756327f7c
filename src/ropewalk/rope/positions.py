"""Position ids of packed and of padded batches, from what flash-attention's calls are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.eager import reasons_for_mathematics
from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole
from ropewalk.shapes import Int

_INTEGERS = frozenset((torch.int32, torch.int64))


def positions_from(
    cu_seqlens: Int[Tensor, " ends"] | None = None,
    *,
    offsets: int | Int[Tensor, " batch"] = 0,
    max_seqlen: int | None = None,
    tokens: int | None = None,
) -> Int[Tensor, "*batch tokens"]:
    """Each token's position in its own sequence, for packed tokens (thd) or for the rows of a padded batch.

    - `cu_seqlens`: int32 or int64 `[sequences + 1]`, the packed tokens before each sequence and, last, all of them:
      0, then never falling; empty sequences are allowed. None: a padded batch.
    - `offsets`: the position of each sequence's first token, as flash-attention's `seqlen_offsets`: the tokens that its
      cache holds already. An int for all, or int32 or int64, one for each.
    - `max_seqlen`: of a padded batch its length, in tokens. Beside `cu_seqlens` no sequence may be longer.
    - `tokens`: how many packed tokens the buffer holds; None reads the last of `cu_seqlens`, which a compiler cannot.
      Tokens after the last sequence are at position 0.

    Returns int64 `[tokens]`; of a padded batch `[batch, max_seqlen]`, or `[max_seqlen]` for an int. Padding on the
    right goes on counting. Raises `RopeError` for what does not fit; on a GPU, or under a compiler, the numbers in
    `cu_seqlens` are checked where they are, which raises RuntimeError.
    Source: flash-attention's `apply_rotary_emb(seqlen_offsets=, cu_seqlens=, max_seqlen=)`.

    >>> positions_from(torch.tensor([0, 3, 5])).tolist()
    [0, 1, 2, 0, 1]
    >>> positions_from(torch.tensor([0, 3, 5]), offsets=torch.tensor([10, 0])).tolist()
    [10, 11, 12, 0, 1]
    >>> positions_from(offsets=torch.tensor([4, 0]), max_seqlen=3).tolist()
    [[4, 5, 6], [0, 1, 2]]
    """
    _check_count("max_seqlen", max_seqlen)
    _check_count("tokens", tokens)
    if cu_seqlens is None:
        return _padded(offsets, max_seqlen, tokens)
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in _INTEGERS or cu_seqlens.ndim != 1:
        raise _wrong_ends(cu_seqlens)
    if cu_seqlens.shape[0] < 2:
        raise _wrong_ends(cu_seqlens)
    per_row = _check_offsets(offsets, cu_seqlens.shape[0] - 1, cu_seqlens.device)
    ends = cu_seqlens.to(torch.int64)
    tokens = _check_ends(ends, max_seqlen, tokens)
    index = torch.arange(tokens, device=ends.device)
    sequence = torch.searchsorted(ends[1:], index, right=True)
    within = sequence < ends.shape[0] - 1
    sequence = sequence.clamp(max=ends.shape[0] - 2)
    first = per_row.to(torch.int64)[sequence] if isinstance(per_row, Tensor) else per_row
    return torch.where(within, index - ends[sequence] + first, 0)


def page_slots(
    page_table: Int[Tensor, "batch pages"], position_ids: Int[Tensor, "*batch seq"], page_size: int
) -> Int[Tensor, "batch seq"]:
    """Where tokens go in a paged cache, by each sequence's list of pages: the slots of `Store(pages=...)`.

    - `page_table`: int32 or int64 `[batch, pages]`, the number of each page of a sequence in order; below 0: none.
    - `position_ids`: `[seq]` or `[batch, seq]`, places in the sequence; below 0 for tokens that are not to be kept.
    - `page_size`: tokens of a page.

    Returns int64 `[batch, seq]`: page * page_size + place, -1 where there is none. Raises `RopeError` for other shapes
    and dtypes, and outside of compilers for a place beyond the table.

    >>> page_slots(torch.tensor([[5, 2]]), torch.tensor([0, 3, 4, -1]), page_size=4).tolist()
    [[20, 23, 8, -1]]
    """
    size = as_whole(page_size)
    right = all(isinstance(x, Tensor) and x.dtype in _INTEGERS for x in (page_table, position_ids))
    right = right and page_table.ndim == 2 and page_table.shape[1] > 0 and position_ids.ndim in (1, 2)
    right = right and (position_ids.ndim == 1 or position_ids.shape[0] in (1, page_table.shape[0]))
    if not right or size is None or size < 1:
        raise RopeError(
            "page_slots: `page_table` is int32 or int64 [batch, pages], `position_ids` [seq] or [batch, seq].",
            facts={"page_table": page_table, "position_ids": position_ids, "page_size": page_size},
            cure="Give each sequence's pages in order, and the tokens of one page.",
        )
    places = position_ids.to(torch.int64).expand(page_table.shape[0], position_ids.shape[-1])
    if not reasons_for_mathematics(places) and places.is_cpu and bool((places >= size * page_table.shape[1]).any()):
        raise RopeError(
            "page_slots: a token lies beyond the pages of its sequence.",
            facts={"position_ids": position_ids, "pages": page_table.shape[1], "page_size": size},
            cure="Give the sequence another page first.",
        )
    number = torch.div(places, size, rounding_mode="floor")
    page = page_table.to(torch.int64).gather(1, number.clamp(0, page_table.shape[1] - 1))
    inside = (places >= 0) & (page >= 0) & (number < page_table.shape[1])
    return torch.where(inside, page * size + places % size, -1)


def _padded(offsets: int | Tensor, max_seqlen: int | None, tokens: int | None) -> Tensor:
    if max_seqlen is None or tokens is not None:
        raise RopeError(
            "positions_from: without `cu_seqlens` the rows are padded to `max_seqlen`, and `tokens` counts nothing.",
            facts={"max_seqlen": max_seqlen, "tokens": tokens},
            cure="Pass max_seqlen=x.shape[1] for a padded batch, or cu_seqlens for packed tokens.",
        )
    per_row = _check_offsets(offsets, None, None)
    if not isinstance(per_row, Tensor):
        return torch.arange(max_seqlen, device="cpu") + per_row
    return per_row.to(torch.int64)[:, None] + torch.arange(max_seqlen, device=per_row.device)


def _check_ends(ends: Tensor, max_seqlen: int | None, tokens: int | None) -> int:
    """How many tokens there are, once the boundaries make sense: read here, or asserted where they cannot be read."""
    lengths = ends.diff()
    wrong = (ends[0] != 0) | (lengths < 0).any()
    if max_seqlen is not None:
        wrong = wrong | (lengths > max_seqlen).any()
    if tokens is not None:
        wrong = wrong | (ends[-1] > tokens)
    if not ends.is_cpu or reasons_for_mathematics(ends):
        if tokens is None and reasons_for_mathematics(ends):
            raise RopeError(
                "positions_from: a compiler cannot read how many tokens `cu_seqlens` counts.",
                facts={"cu_seqlens": ends},
                cure="Pass tokens=x.shape[0].",
            )
        if not ends.is_meta:
            torch._assert_async(~wrong, "positions_from: `cu_seqlens` does not fit `max_seqlen` or `tokens`, or falls")
        return int(ends[-1]) if tokens is None else tokens
    if bool(wrong):
        raise RopeError(
            "positions_from: `cu_seqlens` must begin at 0 and never fall, within `max_seqlen` and `tokens`.",
            facts={"cu_seqlens": ends.tolist(), "max_seqlen": max_seqlen, "tokens": tokens},
            cure="It is the cumulative sum of the lengths, after a 0.",
        )
    return int(ends[-1]) if tokens is None else tokens


def _check_offsets(offsets: Any, batch: int | None, device: torch.device | None) -> int | Tensor:
    """A whole number, or one for each sequence on the device of the boundaries."""
    if isinstance(offsets, Tensor):
        right = offsets.dtype in _INTEGERS and offsets.ndim == 1
        if right and batch in (None, offsets.shape[0]) and device in (None, offsets.device):
            return offsets
    else:
        whole: Any = offsets if isinstance(offsets, torch.SymInt) else as_whole(offsets)
        if whole is not None:
            return whole  # type: ignore[no-any-return]
    raise RopeError(
        "positions_from: `offsets` must be a whole number, or int32 or int64, one for each sequence.",
        facts={"offsets": offsets, "sequences": batch},
        cure="Pass the tokens that each sequence's cache holds already, on the device of `cu_seqlens`.",
    )


def _check_count(name: str, count: object) -> None:
    if count is None or isinstance(count, torch.SymInt):
        return
    whole = as_whole(count)
    if whole is None or whole < 0 or not isinstance(count, int):
        raise RopeError(
            f"positions_from: `{name}` must be a whole number of tokens.",
            facts={name: count},
            cure="Pass an int, such as a size of x.",
        )


def _wrong_ends(cu_seqlens: object) -> RopeError:
    return RopeError(
        "positions_from: `cu_seqlens` must be int32 or int64 [sequences + 1].",
        facts={"cu_seqlens": cu_seqlens},
        cure="torch.nn.functional.pad(lengths.cumsum(0), (1, 0)) makes it from the lengths.",
    )
