"""Positions of the patches of an image, in the forms that vision towers take."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole, is_number


def grid_positions(
    height: int,
    width: int,
    *,
    start: int = 0,
    merge: int = 1,
    normalized: bool = False,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
) -> Tensor:
    """The (row, column) of each patch of an image, row by row: `[height * width, 2]`.

    - `height`, `width`: patches. `start`: the number of the first row and column: 0 for Qwen-VL, Pixtral, SAM and most
      others, 1 for Llama 4's tower (whose class token has position (0, 0)), Muse and EfficientLoFTR.
    - `merge`: the patches come in blocks of merge x merge, as Qwen-VL's and GLM-4V's towers read them.
    - `normalized`: float64 coordinates of the patches' centres, from -2 pi to 2 pi along each side, as DINOv3 and
      Sapiens 2 take them; tokens before the patches do not turn. Their training draws anew each time, from torch's
      global generator, what each side moves by, up to `shift` of half the side, what it is stretched by, up to `jitter`
      times, and what both are, up to `rescale` times.

    The order is (row, column) for every tower that `RopeConfig.from_hf` describes, also where its class takes the
    column first. Towers that read a window of patches at a time want these rows in their own order; SAM 3 multiplies
    those of its global layers by window_size / patches of a side. Raises `RopeError` for what fits no grid.
    Source: transformers 5.23, `get_vision_position_ids` and each tower's own code.

    >>> grid_positions(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> grid_positions(1, 2, normalized=True).div(torch.pi).tolist()
    [[0.0, -1.0], [0.0, 1.0]]
    """
    sizes = (as_whole(height), as_whole(width))
    if any(size is None or size < 1 for size in sizes) or as_whole(start) is None:
        raise RopeError(
            "grid_positions: `height` and `width` are numbers of patches, at least 1, and `start` a whole number.",
            facts={"height": height, "width": width, "start": start},
            cure="Divide the image's sides by the size of a patch.",
        )
    if normalized and start:
        raise RopeError(
            "grid_positions: normalized coordinates run from side to side and have no first number.",
            facts={"start": start, "normalized": True},
            cure="Leave one of them out.",
        )
    rows, columns = torch.arange(height, device="cpu"), torch.arange(width, device="cpu")
    block = _checked_block(merge, height, width)
    if normalized:
        rows, columns = (2 * math.pi * (2 * (side.double() + 0.5) / len(side) - 1) for side in (rows, columns))
    else:
        rows, columns = rows + start, columns + start
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
    grid = grid.view(height // block, block, width // block, block, 2).transpose(1, 2).reshape(-1, 2)
    if shift is jitter is rescale is None:
        return grid
    return _augmented(grid, normalized, shift, jitter, rescale)


def _checked_block(merge: object, height: int, width: int) -> int:
    block = as_whole(merge)
    if block is None or block < 1 or height % block or width % block:
        raise RopeError(
            "grid_positions: `merge` must be a number of patches that divides both sides.",
            facts={"merge": merge, "height": height, "width": width},
            cure="It is `spatial_merge_size` in the model's vision config.",
        )
    return block


def _augmented(
    grid: Tensor, normalized: bool, shift: float | None, jitter: float | None, rescale: float | None
) -> Tensor:
    """Moved and stretched at random, each side by itself and then both: DINOv3's training."""
    stretches = [value for value in (jitter, rescale) if value is not None]
    right = all(is_number(value) and value >= 1 for value in stretches)
    if not (normalized and right and (shift is None or (is_number(shift) and shift >= 0))):
        raise RopeError(
            "grid_positions: `shift` is at least 0, `jitter` and `rescale` at least 1, and they need `normalized`.",
            facts={"normalized": normalized, "shift": shift, "jitter": jitter, "rescale": rescale},
            cure="They are DINOv3's pos_embed_shift, _jitter and _rescale; leave them out to evaluate.",
        )
    if shift is not None:
        grid = grid + 2 * math.pi * _uniform(2, shift)
    if jitter is not None:
        grid = grid * _uniform(2, math.log(jitter)).exp()
    return grid if rescale is None else grid * _uniform(1, math.log(rescale)).exp()


def _uniform(count: int, most: float) -> Tensor:
    """Numbers between -most and most, drawn in float32 as the model's own code draws them."""
    return torch.empty(1, count, dtype=torch.float32, device="cpu").uniform_(-most, most).double()
