"""Positions of text with images and videos for M-RoPE: Qwen2-VL's three coordinates and what followed them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ropewalk.eager import reasons_for_mathematics
from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole, is_number
from ropewalk.shapes import Int

_TEXT, _IMAGE, _VIDEO = 0, 1, 2
_INTEGERS = frozenset((torch.int32, torch.int64))
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
) -> tuple[Int[Tensor, "*batch seq axes"], Int[Tensor, "*batch"]]:
    """(Time, height, width) of each token of text with images and videos, and where decoding goes on.

    - `token_types`: int32 or int64 `[seq]` or `[batch, seq]`: 0 text, 1 of an image, 2 of a video, as transformers'
      `mm_token_type_ids`.
    - `images`, `videos`: (frames, height, width) of each in patches, before merging, in the order of the whole batch.
    - `spatial_merge_size`: patches of a side that become one token.
    - `frame_intervals`: positions between two frames of a video, one number or one for each; Qwen2.5-VL's is its
      `tokens_per_second` times the seconds from one to the next. Others leave 1.
    - `split_frames`: each frame of a video is a picture of its own, with text between, as Qwen3-VL and GLM-4V have it.
    - `attention_mask`: 0 for padding on any side, whose positions are 0. None: no padding.

    Returns int64 `[..., seq, 3]`, and int64 `[...]`: a row's next token, the n-th (padding not counted), is at n plus
    this number on every axis. Text counts on all three axes at once; behind an image or a video it goes on after the
    larger of its height and width. Raises `RopeError` where tokens and grids do not fit each other, and under a
    compiler, which cannot read them.
    Source: Wang et al. 2024, arXiv:2409.12191, section 2.1; transformers 5.23, `get_rope_index` of Qwen2-VL,
    Qwen2.5-VL, Qwen3-VL and GLM-4V.

    >>> positions, delta = mrope_positions(torch.tensor([0, 1, 1, 1, 1, 0]), images=[(1, 4, 4)])
    >>> positions.tolist(), delta.item()
    ([[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [3, 3, 3]], -2)
    """
    types = _checked_types(token_types, attention_mask)
    merge = as_whole(spatial_merge_size)
    if merge is None or merge < 1:
        raise RopeError(
            "mrope_positions: `spatial_merge_size` must be a whole number of patches, at least 1.",
            facts={"spatial_merge_size": spatial_merge_size},
            cure="It is in the model's vision config: 2 for Qwen-VL.",
        )
    stills, moving = _checked_grids("images", images, merge), _checked_grids("videos", videos, merge)
    intervals = _checked_intervals(frame_intervals, len(moving), split_frames)
    if split_frames:
        moving = [(1, height, width) for frames, height, width in moving for _ in range(frames)]
        intervals = [1.0] * len(moving)
    waiting = {_IMAGE: [(grid, 1.0) for grid in stills], _VIDEO: list(zip(moving, intervals, strict=True))}
    rows, lasts = [], []
    kept = None if attention_mask is None else attention_mask.reshape(types.shape).bool().tolist()
    for number, row in enumerate(types.tolist()):
        mask = [True] * len(row) if kept is None else kept[number]
        found, length = _row([kind for kind, seen in zip(row, mask, strict=True) if seen], waiting), sum(mask)
        largest = max((max(place) for place in found), default=-1)
        placed = iter(found)
        rows.append([next(placed) if seen else [0, 0, 0] for seen in mask])
        lasts.append(largest + 1 - length)
    left = {"images": len(waiting[_IMAGE]), "videos (or frames)": len(waiting[_VIDEO])}
    if any(left.values()):
        raise RopeError(
            "mrope_positions: there are more grids than images and videos among the tokens.",
            facts=left,
            cure="Give the grids of this batch alone, in its order.",
        )
    positions = torch.tensor(rows, dtype=torch.int64, device=token_types.device).reshape(*token_types.shape, 3)
    deltas = torch.tensor(lasts, dtype=torch.int64, device=token_types.device)
    return positions, deltas.reshape(token_types.shape[:-1])


def _row(types: list[int], waiting: dict[int, list[tuple[Grid, float]]]) -> list[list[int]]:
    """The places of one sequence's tokens; the grids that it shows are taken from `waiting`."""
    places: list[list[int]] = []
    start = 0
    for kind, run in groupby(types):
        count = len(list(run))
        if kind == _TEXT:
            places += [[place] * 3 for place in range(start, start + count)]
            start += count
        while kind != _TEXT and count:
            if not waiting[kind]:
                raise _unfitting(kind, count, None)
            (frames, height, width), interval = waiting[kind].pop(0)
            count -= frames * height * width
            if count < 0:
                raise _unfitting(kind, count + frames * height * width, (frames, height, width))
            between = torch.tensor(interval, dtype=torch.float32, device="cpu")  # as in transformers: 3 * 0.3333 is 1
            times = (torch.arange(frames, device="cpu") * between).long().tolist()
            places += [[start + t, start + h, start + w] for t in times for h in range(height) for w in range(width)]
            start += max(height, width)
    return places


def _unfitting(kind: int, tokens: int, grid: Grid | None) -> RopeError:
    return RopeError(
        "mrope_positions: the tokens of an image or a video do not fill the grid that is next.",
        facts={"kind": {_IMAGE: "image", _VIDEO: "video"}[kind], "tokens": tokens, "merged grid": grid},
        cure="A grid of t, h, w patches has t * h * w / spatial_merge_size^2 tokens; split_frames=True has text "
        "between the frames of a video.",
    )


def _checked_types(token_types: Any, attention_mask: Any) -> Tensor:
    """`[batch, seq]`, of known kinds, with a mask like it."""
    right = isinstance(token_types, Tensor) and token_types.dtype in _INTEGERS and token_types.ndim in (1, 2)
    if not right or reasons_for_mathematics(token_types) or bool(((token_types < 0) | (token_types > _VIDEO)).any()):
        raise RopeError(
            "mrope_positions: `token_types` must be int32 or int64 [seq] or [batch, seq] of 0, 1 and 2, outside of "
            "compilers.",
            facts={"token_types": token_types},
            cure="0 is text, 1 of an image, 2 of a video: transformers' processors return mm_token_type_ids.",
        )
    if attention_mask is not None and getattr(attention_mask, "shape", None) != token_types.shape:
        raise RopeError(
            "mrope_positions: `attention_mask` must have the shape of `token_types`.",
            facts={"token_types": token_types, "attention_mask": attention_mask},
            cure="0 is padding, 1 a token.",
        )
    types: Tensor = token_types.reshape(-1, token_types.shape[-1])
    return types


def _checked_grids(name: str, grids: Any, merge: int) -> list[Grid]:
    """Frames, and height and width after merging."""
    rows = grids.tolist() if isinstance(grids, Tensor) else grids
    merged: list[Grid] = []
    for row in rows if isinstance(rows, (list, tuple)) else [None]:
        sizes = [as_whole(size) or 0 for size in row] if isinstance(row, (list, tuple)) else []
        if len(sizes) != 3 or min(sizes) < 1 or sizes[1] % merge or sizes[2] % merge:
            raise RopeError(
                f"mrope_positions: `{name}` needs (frames, height, width) of each, in patches that merge evenly.",
                facts={name: grids, "spatial_merge_size": merge},
                cure="transformers' processors return image_grid_thw and video_grid_thw.",
            )
        merged.append((sizes[0], sizes[1] // merge, sizes[2] // merge))
    return merged


def _checked_intervals(given: Any, videos: int, split_frames: bool) -> list[float]:
    """One for each video; where frames are pictures of their own there is nothing between them."""
    values = given.tolist() if isinstance(given, Tensor) else given
    several = list(values) if isinstance(values, (list, tuple)) else [values] * videos
    right = len(several) == videos and all(is_number(value) and value >= 0 for value in several)
    if not right or (split_frames and values != 1.0):
        raise RopeError(
            "mrope_positions: `frame_intervals` is a number of at least 0, or one for each video; with `split_frames` "
            "there is none.",
            facts={"frame_intervals": given, "videos": videos, "split_frames": split_frames},
            cure="For Qwen2.5-VL: tokens_per_second * second_per_grid of each video.",
        )
    return [float(value) for value in several]
