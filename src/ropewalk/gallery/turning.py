"""Numbers of the first two figures: where each pair stands at a position, and its sine and cosine along a window."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.figures import turning as draw_turning
from ropewalk.gallery.entry import Entry, HeadDim, Says, Theta
from ropewalk.gallery.material import frequencies, plain

Pairs = Annotated[tuple[int, ...], Says("pairs to show, fastest 0; none: a choice over the head", 0, 511)]


def clocks(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    pairs: Pairs = (),
    positions: Annotated[int, Says("tokens on the large circles", 2, 24)] = 9,
    position: Annotated[int, Says("the token that the wall shows", 1, 10_000_000)] = 256,
) -> dict[str, Any]:
    """Points on the circle of a few pairs for the first positions, and the angle of every pair at one position."""
    turn = frequencies(plain(head_dim, theta))
    shown = chosen_pairs(pairs, len(turn), (0, 1 / 8, 1 / 4, 1 / 2), "clocks")
    angles = np.outer(turn[list(shown)], np.arange(positions))
    at = turn * position
    return {
        "circles": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "radians_per_token": {pair: float(turn[pair]) for pair in shown},
        "turns": at / (2 * np.pi),
        "hands": (np.cos(at), np.sin(at)),
        "position": position,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}",
    }


def waves(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    trained_length: Annotated[int, Says("tokens seen in training", 2, 1_000_000)] = 128,
    length: Annotated[int, Says("tokens shown", 2, 1_000_000)] = 256,
    pairs: Pairs = (),
) -> dict[str, Any]:
    """Cosine and sine of a few pairs' angles at up to 4,096 points along a window."""
    turn = frequencies(plain(head_dim, theta))
    shown = chosen_pairs(pairs, len(turn), (0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4), "waves")
    positions = np.linspace(0, length, min(8 * length, 4096) + 1)
    angles = np.outer(turn[list(shown)], positions)
    return {
        "positions": positions,
        "curves": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "wavelengths": {pair: float(2 * np.pi / turn[pair]) for pair in shown},
        "trained_length": trained_length,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}",
    }


def chosen_pairs(pairs: tuple[int, ...], count: int, shares: tuple[float, ...], figure: str) -> tuple[int, ...]:
    """The pairs that were asked for, in order, or those at the given shares of the head."""
    if not pairs:
        return tuple(sorted({min(count - 1, int(share * count)) for share in shares}))
    if max(pairs) >= count or len(pairs) > 12:
        raise RopeError(
            f"figure {figure}: `pairs` are counted from 0 within the head, at most twelve.",
            facts={"pairs": pairs, "pairs of the head": count},
            cure=f"Choose from 0 to {count - 1}, or leave it out.",
        )
    return tuple(sorted(set(pairs)))


ENTRIES = (
    Entry(10, "clocks", "one pair turning, and a clock for every pair", clocks, draw_turning.clocks),
    Entry(
        20,
        "waves",
        "sine and cosine of each pair's angle by position, the trained length marked",
        waves,
        draw_turning.waves,
    ),
)
