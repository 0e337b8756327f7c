"""Position ids: packed batches, images and videos (M-RoPE, diffusers), grids of patches, context-parallel ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from ropewalk.compiled import reasons_for_mathematics
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.axes import axes_from_sections
from ropewalk.rope.diffusers import latent_positions
from ropewalk.rope.tables import text_positions
from ropewalk.rope.values import MOST_TOKENS, Int, as_whole, check_whole, is_number, whole_or_zero

__all__ = [
    "LAYOUTS",
    "axes_from_sections",
    "grid_positions",
    "latent_positions",
    "mrope_positions",
    "positions_for_rank",
    "positions_from",
    "text_positions",
]

_INTEGERS = frozenset((torch.int32, torch.int64))


def positions_from(
    cu_seqlens: Int[Tensor, " ends"] | None = None,
    *,
    offsets: int | Int[Tensor, " batch"] = 0,
    max_seqlen: int | None = None,
    tokens: int | None = None,
) -> Int[Tensor, "*batch tokens"]:
    """Return each token's position in its own sequence, for packed tokens (thd) or for a padded batch.

    **Arguments:**
    - `cu_seqlens`: int32 or int64 `[sequences + 1]`, cumulative lengths that start at 0; empty sequences are allowed.
      None: a padded batch.
    - `offsets`: position of each sequence's first token (flash-attention's `seqlen_offsets`): the number of its tokens
      in the cache. An int for all sequences, or int32 or int64 `[sequences]`.
    - `max_seqlen`: length of a padded batch, in tokens. With `cu_seqlens`, the most tokens of a sequence.
    - `tokens`: number of packed tokens in the buffer; None: the last of `cu_seqlens`, which a compiler cannot
      read. Tokens after the last sequence have position 0.

    **Returns:** int64 `[tokens]`; for a padded batch `[batch, max_seqlen]`, or `[max_seqlen]` if `offsets` is an int.
    Padding on the right continues the count.
    **Raises:** `RopeError` if the arguments do not fit each other. On a GPU or under a compiler, the numbers in
    `cu_seqlens` are checked on the device, which raises RuntimeError.
    **Source:** flash-attention's `apply_rotary_emb(seqlen_offsets=, cu_seqlens=, max_seqlen=)`.

    >>> positions_from(torch.tensor([0, 3, 5])).tolist()
    [0, 1, 2, 0, 1]
    >>> positions_from(torch.tensor([0, 3, 5]), offsets=torch.tensor([10, 0])).tolist()
    [10, 11, 12, 0, 1]
    >>> positions_from(offsets=torch.tensor([4, 0]), max_seqlen=3).tolist()
    [[4, 5, 6], [0, 1, 2]]
    """
    counts: dict[str, Any] = {"max_seqlen": max_seqlen, "tokens": tokens}  # a compiler's are symbols
    check_whole("positions_from", least=0, **{k: n for k, n in counts.items() if not isinstance(n, torch.SymInt)})
    if cu_seqlens is None:
        return _padded(offsets, max_seqlen, tokens)
    whole = isinstance(cu_seqlens, Tensor) and cu_seqlens.dtype in _INTEGERS and cu_seqlens.ndim == 1
    if not whole or cu_seqlens.shape[0] < 2:
        raise RopeError(
            "positions_from: `cu_seqlens` must be int32 or int64 [sequences + 1].",
            facts={"cu_seqlens": cu_seqlens},
            cure="Build it from the lengths: torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).",
        )
    per_row = _check_offsets(offsets, cu_seqlens.shape[0] - 1, cu_seqlens.device)
    ends = cu_seqlens.to(torch.int64)
    tokens = _check_ends(ends, max_seqlen, tokens)
    index = torch.arange(tokens, device=ends.device)
    sequence = torch.searchsorted(ends[1:], index, right=True)
    within = sequence < ends.shape[0] - 1
    sequence = sequence.clamp(max=ends.shape[0] - 2)
    first = per_row.to(torch.int64)[sequence] if isinstance(per_row, Tensor) else per_row
    return torch.where(within, index - ends[sequence] + first, 0)


def _padded(offsets: int | Tensor, max_seqlen: int | None, tokens: int | None) -> Tensor:
    if max_seqlen is None or tokens is not None:
        raise RopeError(
            "positions_from: without `cu_seqlens` pass `max_seqlen`, and leave `tokens` out.",
            facts={"max_seqlen": max_seqlen, "tokens": tokens},
            cure="Pass max_seqlen=x.shape[1] for a padded batch, or cu_seqlens for packed tokens.",
        )
    per_row = _check_offsets(offsets, None, None)
    if not isinstance(per_row, Tensor):
        return torch.arange(max_seqlen, device="cpu") + per_row
    return per_row.to(torch.int64)[:, None] + torch.arange(max_seqlen, device=per_row.device)


def _check_ends(ends: Tensor, max_seqlen: int | None, tokens: int | None) -> int:
    """Return the number of tokens; check the boundaries here, or on the device if they cannot be read here."""
    lengths = ends.diff()
    wrong = (ends[0] != 0) | (lengths < 0).any()
    if max_seqlen is not None:
        wrong = wrong | (lengths > max_seqlen).any()
    if tokens is not None:
        wrong = wrong | (ends[-1] > tokens)
    traced = reasons_for_mathematics(ends)
    if traced and tokens is None:
        raise RopeError(
            "positions_from: a compiler cannot read the number of tokens from `cu_seqlens`.",
            facts={"cu_seqlens": ends},
            cure="Pass tokens=x.shape[0].",
        )
    if ends.is_cpu and not traced:
        if bool(wrong):
            raise RopeError(
                "positions_from: `cu_seqlens` must start at 0 and never decrease, within `max_seqlen` and `tokens`.",
                facts={"cu_seqlens": ends.tolist(), "max_seqlen": max_seqlen, "tokens": tokens},
                cure="Pass a 0, followed by the cumulative sum of the lengths.",
            )
    elif not ends.is_meta:
        torch._assert_async(~wrong, "positions_from: `cu_seqlens` does not fit `max_seqlen` or `tokens`, or falls")
    return int(ends[-1]) if tokens is None else tokens


def _check_offsets(offsets: Any, batch: int | None, device: torch.device | None) -> int | Tensor:
    """Return the offsets: a whole number, or one for each sequence, on the device of the boundaries."""
    if isinstance(offsets, Tensor):
        right = offsets.dtype in _INTEGERS and offsets.ndim == 1
        if right and batch in (None, offsets.shape[0]) and device in (None, offsets.device):
            return offsets
    else:
        whole: Any = offsets if isinstance(offsets, torch.SymInt) else as_whole(offsets)
        if whole is not None:
            return whole  # type: ignore[no-any-return]
    raise RopeError(
        "positions_from: `offsets` must be an int, or int32 or int64 [sequences].",
        facts={"offsets": offsets, "sequences": batch},
        cure="Pass the number of tokens in each sequence's cache, on the device of `cu_seqlens`.",
    )


_TEXT, _IMAGE, _VIDEO = 0, 1, 2
Grids = Tensor | Sequence[Sequence[int]]
Grid = tuple[int, int, int]


def mrope_positions(
    token_types: Int[Tensor, "*batch seq"],
    *,
    images: Grids = (),
    videos: Grids = (),
    spatial_merge_size: int = 2,
    frame_intervals: float | Sequence[float] | Tensor = 1.0,
    split_frames: bool = False,
    attention_mask: Tensor | None = None,
    cu_seqlens: Int[Tensor, " ends"] | None = None,
) -> tuple[Int[Tensor, "*batch seq axes"], Int[Tensor, "*rows"]]:
    """Return (time, height, width) of each token of text with images and videos, and the offset for decoding.

    **Arguments:**
    - `token_types`: int32 or int64 `[seq]` or `[batch, seq]`: 0 text, 1 image, 2 video, as transformers'
      `mm_token_type_ids`.
    - `images`, `videos`: (frames, height, width) of each in patches, before merging, in the order of the whole batch.
    - `spatial_merge_size`: patches along each side of one token.
    - `frame_intervals`: positions between two frames of a video, one number for all videos or one for each. For
      Qwen2.5-VL: `tokens_per_second` times the seconds between frames. Others use 1.
    - `split_frames`: treat each frame of a video as a separate picture, with text in between (Qwen3-VL, GLM-4V).
    - `attention_mask`: 0 for padding on any side; its positions are 0. None: no padding.
    - `cu_seqlens`: for packed tokens `[tokens]`, as in `positions_from`: int32 or int64 `[sequences + 1]`, cumulative
      lengths that start at 0. Each sequence starts at position 0; tokens after the last one have position 0.

    **Returns:** int64 `[..., seq, 3]`, and int64 `[...]`, or `[sequences]` of packed ones: the next token of a row with
    n tokens (without padding) has position n plus this number on every axis. Text advances all three axes; after an
    image or a video it continues after the larger of height and width.
    **Raises:** `RopeError` if tokens and grids do not fit each other, and under a compiler, which cannot read them.
    **Source:** Wang et al. 2024, arXiv:2409.12191, section 2.1; transformers 5.23, `get_rope_index` of Qwen2-VL,
    Qwen2.5-VL, Qwen3-VL and GLM-4V.

    >>> positions, delta = mrope_positions(torch.tensor([0, 1, 1, 1, 1, 0]), images=[(1, 4, 4)])
    >>> positions.tolist(), delta.item()
    ([[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [3, 3, 3]], -2)
    """
    types = _checked_types(token_types, attention_mask)
    check_whole("mrope_positions", optional=False, spatial_merge_size=spatial_merge_size)
    merge = int(spatial_merge_size)
    stills, moving = _checked_grids("images", images, merge), _checked_grids("videos", videos, merge)
    intervals = _checked_intervals(frame_intervals, len(moving), split_frames)
    if split_frames:
        moving = [(1, height, width) for frames, height, width in moving for _ in range(frames)]
        intervals = [1.0] * len(moving)
    waiting = {_IMAGE: [(grid, 1.0) for grid in stills], _VIDEO: list(zip(moving, intervals, strict=True))}
    rows, deltas = [], []
    real = torch.ones_like(types) if attention_mask is None else attention_mask.reshape(types.shape)
    for number, begin, end in _sequences(token_types, cu_seqlens):
        row, mask = types[number, begin:end].tolist(), real[number, begin:end].bool().tolist()
        places = _row([kind for kind, seen in zip(row, mask, strict=True) if seen], waiting)
        largest = max((max(place) for place in places), default=-1)
        remaining = iter(places)
        rows.append([next(remaining) if seen else [0, 0, 0] for seen in mask])
        deltas.append(largest + 1 - sum(mask))
    left = {"images": len(waiting[_IMAGE]), "videos (or frames)": len(waiting[_VIDEO])}
    if any(left.values()):
        raise RopeError(
            "mrope_positions: there are more grids than images and videos among the tokens.",
            facts=left,
            cure="Pass only the grids of this batch, in order.",
        )
    numbers = torch.tensor([place for row in rows for place in row], dtype=torch.int64, device=token_types.device)
    positions = token_types.new_zeros((types.numel(), 3), dtype=torch.int64)
    positions[: sum(map(len, rows))] = numbers.reshape(-1, 3)
    offsets = torch.tensor(deltas, dtype=torch.int64, device=token_types.device)
    shape = token_types.shape[:-1] if cu_seqlens is None else offsets.shape
    return positions.reshape(*token_types.shape, 3), offsets.reshape(shape)


def _sequences(token_types: Tensor, cu_seqlens: Tensor | None) -> list[tuple[int, int, int]]:
    """Return (row, begin, end) of each sequence: the rows, or the packed sequences of one row."""
    tokens = token_types.shape[-1]
    if cu_seqlens is None:
        return [(row, 0, tokens) for row in range(1 if token_types.ndim == 1 else token_types.shape[0])]
    if token_types.ndim != 1:
        raise RopeError(
            "mrope_positions: packed tokens have no batch.",
            facts={"token_types": token_types, "cu_seqlens": cu_seqlens},
            cure="Pass token_types[0], or flatten the rows and pass the cumulative sum of their lengths.",
        )
    positions_from(cu_seqlens, tokens=tokens)  # checks it
    return [(0, begin, end) for begin, end in pairwise(cu_seqlens.tolist())]


def _row(types: list[int], waiting: dict[int, list[tuple[Grid, float]]]) -> list[list[int]]:
    """Return the positions of one sequence's tokens; remove the grids of its images and videos from `waiting`."""
    places: list[list[int]] = []
    start = 0
    for kind, run in groupby(types):
        count = len(list(run))
        if kind == _TEXT:
            places += [[place] * 3 for place in range(start, start + count)]
            start += count
        while kind != _TEXT and count:
            grid, interval = waiting[kind].pop(0) if waiting[kind] else (None, None)
            if grid is None or math.prod(grid) > count:
                raise RopeError(
                    "mrope_positions: the tokens of an image or a video do not fill the next grid.",
                    facts={"kind": {_IMAGE: "image", _VIDEO: "video"}[kind], "tokens": count, "merged grid": grid},
                    cure="A grid of t, h, w patches has t * h * w / spatial_merge_size^2 tokens; with "
                    "split_frames=True there is text between the frames of a video.",
                )
            frames, height, width = grid
            count -= math.prod(grid)
            between = torch.tensor(interval, dtype=torch.float32, device="cpu")  # as in transformers: 3 * 0.3333 is 1
            times = (torch.arange(frames, device="cpu") * between).long().tolist()
            places += [[start + t, start + h, start + w] for t in times for h in range(height) for w in range(width)]
            start += max(height, width)
    return places


def _checked_types(token_types: Any, attention_mask: Any) -> Tensor:
    """Return token types `[batch, seq]`; check their values and the shape of the mask."""
    right = isinstance(token_types, Tensor) and token_types.dtype in _INTEGERS and token_types.ndim in (1, 2)
    right = right and not reasons_for_mathematics(token_types)
    right = right and not bool(((token_types < 0) | (token_types > _VIDEO)).any())
    right = right and (attention_mask is None or getattr(attention_mask, "shape", None) == token_types.shape)
    if not right:
        raise RopeError(
            "mrope_positions: `token_types` must be int32 or int64 [seq] or [batch, seq] of 0, 1 and 2, outside of "
            "compilers, and `attention_mask` must have its shape.",
            facts={"token_types": token_types, "attention_mask": attention_mask},
            cure="0 is text, 1 image, 2 video: pass mm_token_type_ids of transformers' processors.",
        )
    types: Tensor = token_types if token_types.ndim == 2 else token_types[None]
    return types


def _checked_grids(name: str, grids: Any, merge: int) -> list[Grid]:
    """Return frames, and height and width after merging, of each grid."""
    rows = grids.tolist() if isinstance(grids, Tensor) else grids
    merged: list[Grid] = []
    for row in rows if isinstance(rows, (list, tuple)) else [None]:
        sizes = list(map(whole_or_zero, row)) if isinstance(row, (list, tuple)) else []
        if len(sizes) != 3 or min(sizes) < 1 or sizes[1] % merge or sizes[2] % merge:
            raise RopeError(
                f"mrope_positions: `{name}` needs (frames, height, width) of each, in patches that merge evenly.",
                facts={name: grids, "spatial_merge_size": merge},
                cure="Pass image_grid_thw and video_grid_thw of transformers' processors.",
            )
        merged.append((sizes[0], sizes[1] // merge, sizes[2] // merge))
    return merged


def _checked_intervals(given: Any, videos: int, split_frames: bool) -> list[float]:
    """Return one interval for each video; with `split_frames` there are none."""
    check_kind("mrope_positions", bool, "True is Qwen3-VL's, with text between frames.", split_frames=split_frames)
    values = given.tolist() if isinstance(given, Tensor) else given
    several = list(values) if isinstance(values, (list, tuple)) else [values] * videos
    right = len(several) == videos and all(is_number(value) and value >= 0 for value in several)
    if not right or (split_frames and values != 1.0):
        raise RopeError(
            "mrope_positions: `frame_intervals` must be a number of at least 0, or one for each video, and needs "
            "`split_frames=False`.",
            facts={"frame_intervals": given, "videos": videos, "split_frames": split_frames},
            cure="For Qwen2.5-VL: tokens_per_second * second_per_grid of each video.",
        )
    return [float(value) for value in several]


def grid_positions(
    height: int,
    width: int,
    *,
    start: int = 0,
    merge: int = 1,
    normalized: bool = False,
) -> Tensor:
    """Return the (row, column) of each patch of an image, row by row.

    **Arguments:**
    - `height`, `width`: patches.
    - `start`: number of the first row and column: 0 for Qwen-VL, Pixtral, SAM and most others; 1 for Llama 4's tower
      (its class token has position (0, 0)), Muse and EfficientLoFTR.
    - `merge`: the patches are in blocks of merge x merge, as in Qwen-VL's and GLM-4V's towers.
    - `normalized`: return float64 coordinates of the patches' centres, from -2 pi to 2 pi along each side (DINOv3,
      Sapiens 2). Tokens before the patches do not rotate.

    **Returns:** `[height * width, 2]`, int64 or float64. The order is (row, column) for every tower that
    `RopeConfig.from_hf` supports, even if its class takes the column first. Towers that process windows of patches need
    these rows in their own order; SAM 3 multiplies those of its global layers by window_size / patches of a side.
    **Raises:** `RopeError` if the numbers do not form a grid.
    **Source:** transformers 5.23, `get_vision_position_ids` and each tower's own code.

    >>> grid_positions(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> grid_positions(1, 2, normalized=True).div(torch.pi).tolist()
    [[0.0, -1.0], [0.0, 1.0]]
    """
    check_whole("grid_positions", optional=False, height=height, width=width)
    check_whole("grid_positions", least=-MOST_TOKENS, optional=False, start=start)
    check_kind("grid_positions", bool, "True returns coordinates from -2 pi to 2 pi.", normalized=normalized)
    if normalized and start:
        raise RopeError(
            "grid_positions: `start` and `normalized` are mutually exclusive.",
            facts={"start": start, "normalized": True},
            cure="Leave one of them out.",
        )
    block = as_whole(merge)
    if block is None or block < 1 or height % block or width % block:
        raise RopeError(
            "grid_positions: `merge` must be a number of patches that divides both sides.",
            facts={"merge": merge, "height": height, "width": width},
            cure="It is `spatial_merge_size` in the model's vision config.",
        )
    rows, columns = torch.arange(height, device="cpu"), torch.arange(width, device="cpu")
    if normalized:
        rows, columns = (2 * math.pi * (2 * (side.double() + 0.5) / len(side) - 1) for side in (rows, columns))
    else:
        rows, columns = rows + start, columns + start
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
    return grid.view(height // block, block, width // block, block, 2).transpose(1, 2).reshape(-1, 2)


LAYOUTS = {"contiguous": 1, "head-tail": 2, "llama3": 1}
"""The parts of each rank; the number of tokens must be a multiple of all parts."""


def positions_for_rank(
    layout: str,
    tokens: int,
    *,
    rank: int,
    cp: int,
    cu_seqlens: Int[Tensor, " ends"] | None = None,
) -> Int[Tensor, " local"]:
    """Return the positions of the tokens of one rank of a context-parallel group, in its order.

    **Arguments:**
    - `layout`: order of the sequence over the ranks, a key of `LAYOUTS`:
      - "contiguous": rank r has the r-th of cp equal parts (torch's context parallelism without a load balancer).
      - "head-tail": rank r has parts r and 2 cp - 1 - r of 2 cp parts, so that causal attention costs the same on each
        rank (torch's `_HeadTailLoadBalancer`, Megatron-LM's `get_pos_emb_on_this_cp_rank`, zigzag ring attention;
        Llama 3, arXiv:2407.21783, section 3.3.2).
      - "llama3": contiguous parts of a packed buffer (ring-flash-attention's `llama3_flash_attn_varlen_func`); with
        `cu_seqlens` each token has its position in its own document.
    - `tokens`: tokens of the whole sequence.
    - `rank`: 0 .. cp - 1 within the group.
    - `cp`: number of ranks of the group.
    - `cu_seqlens`: int32 or int64 `[documents + 1]`, only for "llama3". For packed tokens in a different layout, index
      `rw.positions.positions_from(cu_seqlens)` with the result of this function.

    **Returns:** int64 `[tokens / cp]`, on the device of `cu_seqlens`, else on the CPU. Without `cu_seqlens` these are
    also the tokens' indices, and the results of all ranks are a permutation of 0 .. tokens - 1.
    **Raises:** `RopeError` for an unknown layout, and if the parts are not equal (torch would silently use contiguous
    parts, pytorch#183968).

    >>> [positions_for_rank("head-tail", 8, rank=rank, cp=2).tolist() for rank in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> positions_for_rank("llama3", 6, rank=1, cp=2, cu_seqlens=torch.tensor([0, 4, 6])).tolist()
    [3, 0, 1]
    """
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise RopeError(
            "positions_for_rank: unknown layout.",
            facts={"layout": layout},
            cure=f"Choose from {', '.join(LAYOUTS)}.",
        )
    parts = LAYOUTS[layout]
    check_whole("positions_for_rank", optional=False, tokens=tokens, cp=cp)
    check_whole("positions_for_rank", least=0, most=cp - 1, optional=False, rank=rank)
    if cu_seqlens is not None and layout != "llama3":
        raise RopeError(
            f"positions_for_rank: {layout} ignores documents.",
            facts={"cu_seqlens": cu_seqlens},
            cure="Index the documents' positions: rw.positions.positions_from(cu_seqlens)[positions_for_rank(...)].",
        )
    if tokens % (parts * cp):
        raise RopeError(
            f"positions_for_rank: {layout} needs {parts * cp} equal parts.",
            facts={"tokens": tokens, "cp": cp},
            cure=f"Pad the sequence to a multiple of {parts * cp} tokens.",
        )
    every = torch.arange(tokens, device="cpu") if cu_seqlens is None else positions_from(cu_seqlens, tokens=tokens)
    cut = every.view(parts * cp, -1)
    return cut[rank] if parts == 1 else torch.cat([cut[rank], cut[2 * cp - 1 - rank]])
