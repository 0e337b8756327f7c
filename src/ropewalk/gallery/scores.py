"""Numbers of the figures about scores of one query and one key: as both or one of them move; on a grid of patches."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.figures import scores as draw_scores
from ropewalk.gallery.entry import Entry, HeadDim, Says, Seed, Theta
from ropewalk.gallery.material import Array, frequencies, plain
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding


def turned(x: Tensor, config: RopeConfig, position_ids: Tensor) -> Tensor:
    """One vector `[head_dim]` at every position, `[positions, head_dim]`, in its own dtype."""
    rows = x.expand(1, len(position_ids), 1, -1).contiguous()
    return RotaryEmbedding(config).rotate(rows, position_ids=position_ids)[0, :, 0]


def shift(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    length: Annotated[int, Says("positions of the table, each way", 4, 256)] = 32,
    shifts: Annotated[int, Says("tokens moved, at most", 1, 100_000)] = 64,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Scores q at m with k at n, and along a shift of both, of q alone and of k alone; q and k drawn at random."""
    config = plain(head_dim, theta)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, head_dim, generator=generator)
    places = torch.arange(length)
    grid = turned(q, config, places) @ turned(k, config, places).T / head_dim**0.5
    m, n = length // 2, length // 4
    moved = torch.arange(shifts + 1)

    def scores(by_query: int, by_key: int) -> Array:
        at_m, at_n = turned(q, config, m + by_query * moved), turned(k, config, n + by_key * moved)
        found: Array = ((at_m * at_n).sum(-1) / head_dim**0.5).double().numpy()
        return found

    both = scores(1, 1)
    return {
        "grid": grid.double().numpy(),
        "start": (m, n),
        "shifts": moved.numpy(),
        "curves": {"both move": both, "only the query moves": scores(1, 0), "only the key moves": scores(0, 1)},
        "spread": float(both.max() - both.min()),
        "note": f"One query and one key, random (seed {seed}); head_dim {head_dim}, theta {theta:,.10g}, float32",
    }


def axial(
    head_dim: HeadDim = 64,
    theta: Annotated[float, Says("the base; grids are small, so it is small", 1.001, 1e15)] = 100.0,
    side: Annotated[int, Says("patches of the grid, each way", 3, 128)] = 24,
    row: Annotated[int, Says("row of the one patch", 0, 127)] = 8,
    column: Annotated[int, Says("column of the one patch", 0, 127)] = 11,
) -> dict[str, Any]:
    """Score of one patch's query to every patch's equal key, over its largest: axial 2D, another patch, one axis."""
    if head_dim % 4 or max(row, column) >= side:
        raise RopeError(
            "figure axial: head_dim is a multiple of 4, and the patch lies on the grid.",
            facts={"head_dim": head_dim, "row": row, "column": column, "side": side},
            cure=f"Rows and columns count from 0 to {side - 1}.",
        )
    halves = (0,) * (head_dim // 4) + (1,) * (head_dim // 4)
    grid = RopeConfig(head_dim, interleaved=False, theta=theta, axes=halves, axes_restart=True)
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
    ones = torch.ones(head_dim, dtype=torch.float64)
    by_axes, by_order = turned(ones, grid, at), turned(ones, plain(head_dim, theta), torch.arange(side * side))

    def similarity(rows: Tensor, patch: tuple[int, int]) -> Array:
        found: Array = (rows @ rows[patch[0] * side + patch[1]] / head_dim).view(side, side).numpy()
        return found

    corner = (side - 1, 0)
    return {
        "panels": [
            ("axial 2D", (row, column), similarity(by_axes, (row, column))),
            ("axial 2D, patch in the corner", corner, similarity(by_axes, corner)),
            ("one axis, patches in reading order", (row, column), similarity(by_order, (row, column))),
        ],
        "note": f"Query and key are the same vector of ones; head_dim {head_dim}, theta {theta:,.10g}",
    }


def decay_of(config: RopeConfig, distances: Array) -> tuple[Array, Array]:
    """Score of equal q and k with equal pairs over its largest, and the paper's bound over its value at distance 0.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.3, eq. 36 and 37: the mean of |S_j|, sums of the first j
    unit vectors.
    """
    angles = np.outer(distances, frequencies(config))
    sums = np.abs(np.cumsum(np.exp(1j * angles), axis=1)).mean(1)
    at_zero = (angles.shape[1] + 1) / 2
    return np.cos(angles).mean(1), sums / at_zero


ENTRIES = (
    Entry(
        40, "shift", "a score stays when query and key both move, and changes when one does", shift, draw_scores.shift
    ),
    Entry(130, "axial", "axial 2D: one patch against all others", axial, draw_scores.axial),
)
