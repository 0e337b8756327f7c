"""Positions of the patches of an image, in the forms that vision towers take."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole


def grid_positions(height: int, width: int, *, start: int = 0, normalized: bool = False) -> Tensor:
    """The (row, column) of each patch of an image, row by row: `[height * width, 2]`.

    - `height`, `width`: patches. `start`: the number of the first row and column: 0 for Qwen-VL, Pixtral, SAM and most
      others, 1 for Llama 4's tower (whose class token has position (0, 0)), Muse and EfficientLoFTR.
    - `normalized`: float64 coordinates of the patches' centres, from -2 pi to 2 pi along each side, as DINOv3 and
      Sapiens 2 take them. Their training moves and stretches these at random; tokens before the patches do not turn.

    The order is (row, column) for every tower that `RopeConfig.from_hf` describes, also where its class takes the
    column first. Towers that read a window of patches at a time, or merge blocks of them, want these rows in their own
    order; SAM 3 multiplies those of its global layers by window_size / patches of a side. Raises `RopeError` for sizes
    below 1. Source: transformers 5.23, `get_vision_position_ids` and each tower's own code.

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
    if normalized:
        rows, columns = (2 * math.pi * (2 * (side.double() + 0.5) / len(side) - 1) for side in (rows, columns))
    else:
        rows, columns = rows + start, columns + start
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)
