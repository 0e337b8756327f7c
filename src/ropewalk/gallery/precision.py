"""Numbers of the figure about rounding: what 32-bit angles and 16-bit tables cost, by position."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.figures import precision as draw_precision
from ropewalk.gallery.entry import Entry, HeadDim, Says, Seed, Theta
from ropewalk.gallery.material import Array, frequencies, plain
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.rotation.rotate import rotate

NEAR = 64  # positions looked at around each point of a curve
WAYS = ("angles in bfloat16", "angles in float32", "tables in bfloat16", "tables in float16", "ropewalk")


def tables(way: str, head_dim: int, theta: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin `[positions, pairs]` as each way has them, held in float32."""
    config = plain(head_dim, theta)
    cos, sin = RotaryEmbedding(config).cos_sin(positions)
    if way.startswith("tables"):
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float16
        return cos.to(dtype).float(), sin.to(dtype).float()
    if way.startswith("angles"):  # the usual code: inv_freq and the product in this dtype, then cos and sin
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float32
        turn = torch.from_numpy(frequencies(config)).to(dtype)
        angles = (positions.to(dtype)[:, None] * turn).float()
        return angles.cos(), angles.sin()
    return cos, sin


def precision(
    head_dim: HeadDim = 128,
    theta: Theta = 10_000.0,
    longest: Annotated[int, Says("the last position", 1_024, 10_000_000)] = 10_000_000,
    distance: Annotated[int, Says("tokens between query and key", 0, 1_023)] = 16,
    points: Annotated[int, Says("points of a curve", 4, 256)] = 48,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Largest |cos - truth| over pairs, and largest error of a score, near each of some positions, for each way.

    The truth is float64; a score is q at m with k at m - distance, over |q| |k|, for 32 random q and k.
    """
    turn = frequencies(plain(head_dim, theta))
    middles = np.unique(np.geomspace(NEAR, longest, points).astype(np.int64))
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, 1, 32, head_dim, generator=generator), dim=-1)
    cosines: dict[str, list[float]] = {way: [] for way in WAYS}
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    true_score = score_of(q.double(), k.double(), *_exact(turn, np.array([distance])), *_exact(turn, np.array([0])))
    for middle in middles:
        near = np.arange(max(0, middle - NEAR), middle)
        truth = np.cos(np.outer(near.astype(np.float64), turn))
        ends = torch.tensor([max(middle, distance + 1)])
        for way in WAYS:
            cos, _ = tables(way, head_dim, theta, torch.from_numpy(near))
            cosines[way].append(float(np.abs(cos.double().numpy() - truth).max()))
            at_m, at_n = (tables(way, head_dim, theta, place) for place in (ends, ends - distance))
            scores[way].append(float((score_of(q, k, *at_m, *at_n) - true_score).abs().max()))
    return {
        "positions": middles,
        "cosines": {way: np.array(values) for way, values in cosines.items()},
        "scores": {way: np.array(values) for way, values in scores.items()},
        "distance": distance,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}; the largest of {NEAR} positions and all pairs (left), "
        "of 32 random queries and keys (right); truth in float64",
    }


def score_of(q: Tensor, k: Tensor, cos_m: Tensor, sin_m: Tensor, cos_n: Tensor, sin_n: Tensor) -> Tensor:
    """Scores `[heads]` of q and k `[1, 1, heads, head_dim]` rotated by the tables of one position each."""
    at_m, at_n = rotate(q, cos_m, sin_m, interleaved=False), rotate(k, cos_n, sin_n, interleaved=False)
    return (at_m.double() * at_n.double()).sum(-1).flatten()


def _exact(turn: Array, positions: Array) -> tuple[Tensor, Tensor]:
    angles = torch.from_numpy(np.outer(positions, turn))
    return angles.cos(), angles.sin()


ENTRIES = (
    Entry(
        140, "precision", "what 32-bit angles and 16-bit tables cost by position", precision, draw_precision.precision
    ),
)
