"""Positions of patches, against the towers' own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ropewalk as rw


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (7, 2)])
def test_rows_and_columns(height: int, width: int) -> None:
    """Row by row, as transformers numbers the patches of one image."""
    vision_utils = pytest.importorskip("transformers.vision_utils")
    expected = vision_utils.get_vision_position_ids(torch.tensor([[1, height, width]]), 1)
    assert torch.equal(rw.positions.grid_positions(height, width), expected)
    assert torch.equal(rw.positions.grid_positions(height, width, start=1), expected + 1)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (14, 2)])
def test_normalized(height: int, width: int) -> None:
    """DINOv3's centres of patches, times 2 pi."""
    dino = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    expected = dino.get_patches_center_coordinates(height, width, torch.float64, torch.device("cpu"))
    actual = rw.positions.grid_positions(height, width, normalized=True)
    torch.testing.assert_close(actual, 2 * torch.pi * expected, rtol=1e-14, atol=1e-14)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0, "width": 3}, "at least 1"),
        ({"height": 2, "width": 2.5}, "at least 1"),
        ({"height": 2, "width": 2, "start": 0.5}, "a whole number"),
        ({"height": 2, "width": 2, "start": 1, "normalized": True}, "`start` and `normalized` exclude"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    """Sizes that are none, and a start where there is `start` and `normalized` exclude."""
    with pytest.raises(rw.RopeError, match=message):
        rw.positions.grid_positions(**arguments)
