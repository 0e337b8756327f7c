"""Positions of patches, against the towers' own functions: order, merged blocks, coordinates, and DINOv3's training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.dinov3_vit.modeling_dinov3_vit import (
    augment_patches_center_coordinates,
    get_patches_center_coordinates,
)
from transformers.vision_utils import get_vision_position_ids

import ropewalk as rw


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (7, 2)])
def test_rows_and_columns(height: int, width: int) -> None:
    """Row by row, as transformers numbers the patches of one image."""
    expected = get_vision_position_ids(torch.tensor([[1, height, width]]), 1)
    assert torch.equal(rw.positions.grid_positions(height, width), expected)
    assert torch.equal(rw.positions.grid_positions(height, width, start=1), expected + 1)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (14, 2)])
def test_normalized(height: int, width: int) -> None:
    """DINOv3's centres of patches, times 2 pi."""
    expected = get_patches_center_coordinates(height, width, torch.float64, torch.device("cpu"))
    actual = rw.positions.grid_positions(height, width, normalized=True)
    torch.testing.assert_close(actual, 2 * torch.pi * expected, rtol=1e-14, atol=1e-14)


def test_merged_blocks():
    """Row by row of blocks, and in each block row by row, by a plain loop; Qwen2-VL's tower has the same."""
    rows = [(2 * i + a, 2 * j + b) for i in range(2) for j in range(3) for a in range(2) for b in range(2)]
    assert rw.positions.grid_positions(4, 6, merge=2).tolist() == [list(row) for row in rows]
    assert rw.positions.grid_positions(4, 6, merge=2, start=1).tolist() == [[h + 1, w + 1] for h, w in rows]
    assert torch.equal(rw.positions.grid_positions(4, 6, merge=1), rw.positions.grid_positions(4, 6))
    assert torch.equal(
        rw.positions.grid_positions(4, 6, merge=2), get_vision_position_ids(torch.tensor([[1, 4, 6]]), 2)
    )


@pytest.mark.parametrize("options", [{}, {"shift": 0.3}, {"jitter": 2.0}, {"rescale": 3.0},
                                     {"shift": 0.1, "jitter": 1.5, "rescale": 2.0}])  # fmt: skip
def test_dinov3_in_training(options):
    """From one seed the model's own code draws the same shift, jitter and scale."""
    torch.manual_seed(5)
    found = rw.positions.grid_positions(3, 5, normalized=True, **options)
    torch.manual_seed(5)
    centres = get_patches_center_coordinates(3, 5, dtype=torch.float32, device="cpu")
    expected = 2 * math.pi * augment_patches_center_coordinates(centres, **options)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected, atol=2e-6, rtol=1e-6)
    if options:
        assert not torch.equal(rw.positions.grid_positions(3, 5, normalized=True, **options), found)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0, "width": 3}, "whole number from 1"),
        ({"height": 2, "width": 2.5}, "whole number from 1"),
        ({"height": 2, "width": 2, "start": 0.5}, "a whole number"),
        ({"height": 2, "width": 2, "start": 1, "normalized": True}, "`start` and `normalized` are mutually exclusive"),
        ({"height": 3, "width": 5, "merge": 2}, "`merge` must be a number"),
        ({"height": 3, "width": 5, "merge": 0}, "`merge` must be a number"),
        ({"height": 3, "width": 5, "shift": 0.1}, "they need `normalized`"),
        ({"height": 3, "width": 5, "normalized": True, "jitter": 0.5}, "`jitter` and `rescale` at least 1"),
        ({"height": 3, "width": 5, "normalized": True, "shift": -1.0}, "`shift` is at least 0"),
        ({"height": 3, "width": 5, "normalized": True, "rescale": "2"}, "`jitter` and `rescale` at least 1"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    """Sizes that are none, blocks that do not divide the grid, and options that would change nothing."""
    with pytest.raises(rw.RopeError, match=message):
        rw.positions.grid_positions(**arguments)
