"""Figures of one rope that only the lesson draws: clocks, tables of positions, a shift, patches of an image.

`NAME(rope)` is drawn by scripts/docs_figures.py; `NAME_numbers(rope)` returns what it shows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.figures.material import Array, described, frequencies, theta_of
from ropewalk.figures.style import (
    BLUE,
    GREEN,
    GRID,
    INK,
    QUIET,
    RED,
    SHADE,
    bar,
    caption,
    heat,
    length_ticks,
    panel,
    style,
    tokens,
)
from ropewalk.layers.encodings import sinusoidal_table
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE = Path(__file__).with_name("learned_table.npz")
"""The learned table of positions `[256, 128]` that scripts/make_learned_table.py trains."""


def clocks(rope: rw.RopeConfig, *, pairs: Sequence[int] = (), positions: int = 9, position: int = 256) -> Figure:
    """Draw the first positions on the circles of a few pairs, and a clock for every pair at one position.

    A pair that has not completed a turn at `position` shows its arc in red.
    """
    shown = clocks_numbers(rope, pairs=pairs, positions=positions, position=position)
    circles, radians, turns = shown["circles"], shown["radians_per_token"], shown["turns"]
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import Circle, Wedge

        columns = 8 if len(turns) <= 32 else 16
        rows = -(-len(turns) // columns)
        height = 8.8 / columns * 1.22 * rows + 0.4
        figure = Figure(figsize=(8.8, 3.1 + height))
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.1, height))[:, 0]
        for index, (axes, (pair, (x, y))) in enumerate(
            zip(top.subplots(1, len(circles), squeeze=False)[0], circles.items(), strict=True)
        ):
            axes.set_aspect("equal")
            axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=QUIET, linewidth=1))
            axes.plot([0, x[0]], [0, y[0]], color=QUIET, linewidth=1)
            axes.plot([0, x[-1]], [0, y[-1]], color=BLUE, linewidth=1.6)
            axes.plot(x, y, color=BLUE, linestyle="none", marker="o", markersize=4.5, zorder=3)
            apart = radians[pair] > 0.25
            for number, (a, b) in enumerate(zip(x, y, strict=True)):
                if apart or number in (0, len(x) - 1):
                    low = 0.0 if apart else 0.1 if number else -0.12
                    axes.text(1.24 * a, 1.24 * b + low, str(number), ha="center", va="center", fontsize=8)
            axes.set_xlim(-1.5, 1.5)
            axes.set_ylim(-1.5, 1.5)
            axes.set_xticks([-1, 0, 1])
            axes.set_yticks([-1, 0, 1], None if index == 0 else [""] * 3)
            panel(axes, f"pair {pair}: {radians[pair]:.3g} rad/token")
            axes.set_xlabel("first feature / length")
            if index == 0:
                axes.set_ylabel("second feature / length")
        grid = bottom.subplots(rows, columns, squeeze=False).ravel()
        for pair, axes in enumerate(grid):
            axes.set_axis_off()
            if pair >= len(turns):
                continue
            axes.set_aspect("equal")
            axes.set_xlim(-1.12, 1.12)
            axes.set_ylim(-1.12, 1.12)
            whole = turns[pair] >= 1
            axes.add_patch(Circle((0, 0), 1, facecolor=SHADE if whole else "white", edgecolor=QUIET, linewidth=0.8))
            if not whole:
                axes.add_patch(Wedge((0, 0), 1, 0, 360 * turns[pair], facecolor=RED, alpha=0.35, linewidth=0))
            axes.plot([0, 1], [0, 0], color=GRID if whole else QUIET, linewidth=0.8)
            axes.plot(
                [0, shown["hands"][0][pair]], [0, shown["hands"][1][pair]], color=INK if whole else RED, linewidth=1.8
            )
            name = f"pair {pair}" if columns == 8 else f"{pair}"
            axes.set_title(
                f"{name}: {_turns(turns[pair])}", fontsize=8 if columns == 8 else 7, fontweight="normal",
                loc="center", pad=1, color=INK,
            )  # fmt: skip
        caption(top, f"Positions 0 to {len(next(iter(circles.values()))[0]) - 1} on the circles of a few pairs")
        slow = sum(turn < 1 for turn in turns)
        caption(
            bottom,
            f"Turns of every pair at token {tokens(position)} ({slow} of {len(turns)}: less than one)",
            shown["note"],
        )
        return figure


def clocks_numbers(
    rope: rw.RopeConfig, *, pairs: Sequence[int] = (), positions: int = 9, position: int = 256
) -> dict[str, Any]:
    """Return what `clocks` draws.

    "circles", by pair (x, y) of each position; "radians_per_token", by pair; "turns" `[pairs]` and "hands", (x, y) of
    every pair, at `position`.
    """
    inv_freq = frequencies(rope, position + 1)
    shown = pairs or [len(inv_freq) * eighth // 8 for eighth in (0, 1, 2, 4)]
    angles = np.outer(inv_freq[list(shown)], np.arange(positions))
    at = inv_freq * position
    return {
        "circles": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "radians_per_token": {pair: float(inv_freq[pair]) for pair in shown},
        "turns": at / (2 * np.pi),
        "hands": (np.cos(at), np.sin(at)),
        "note": described(rope),
    }


def _turns(turns: float) -> str:
    """Return a number of turns as short text.

    >>> _turns(1303.8), _turns(40.7437), _turns(0.0407)
    ('1,304', '40.7', '0.041')
    """
    return f"{turns:,.0f}" if turns >= 100 else f"{turns:.3g}" if turns >= 0.1 else f"{turns:.2g}"


def tables(rope: rw.RopeConfig) -> Figure:
    """Draw RoPE's angles next to the sinusoidal and a learned table, and below the similarity of positions in each."""
    shown = tables_numbers(rope)
    angles, learned, most = shown["angles"], shown["learned"], shown["learned_most"]
    with style():
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        figure = Figure(figsize=(10.6, 7.4))
        (top, bottom) = figure.subplots(2, 3)
        image = heat(top[0], shown["sinusoidal"], vmin=-1, vmax=1)
        panel(top[0], "sinusoidal: added to embeddings")
        top[0].set_xlabel("feature")
        bar(figure, image, top[0], "value (no unit)")

        image = heat(top[1], angles.clip(min=angles[1].min()), norm=LogNorm())
        panel(top[1], "RoPE: the angle of each pair")
        top[1].set_xlabel("pair (fastest first)")
        line = top[1].contour(angles, levels=[2 * np.pi], colors="white", linewidths=2)
        top[1].clabel(line, fmt={2 * np.pi: "one turn"}, fontsize=9, colors="white")
        drawn = bar(figure, image, top[1], "angle (radians)")
        drawn.ax.yaxis.set_minor_locator(NullLocator())

        image = heat(top[2], learned, vmin=-most, vmax=most)
        panel(top[2], "learned: trained, added to embeddings")
        top[2].set_xlabel("feature")
        bar(figure, image, top[2], "value (no unit)", extend="both")

        for axes, name in zip(bottom, ("sinusoidal", "rope", "learned"), strict=True):
            image = heat(axes, shown["alike"][name], vmin=-1, vmax=1)
            panel(axes, {"rope": "RoPE", "learned": "learned"}.get(name, name) + ": similarity of positions")
            axes.set_xlabel("position (tokens)", color=INK)
            bar(figure, image, axes, "cosine (no unit)")
        for axes in (top[0], bottom[0]):
            axes.set_ylabel("position (tokens)")
        caption(figure, "Three tables of positions", shown["note"])
        return figure


def tables_numbers(rope: rw.RopeConfig) -> dict[str, Any]:
    """Return what `tables` draws; the sinusoidal table and the angles have the size of the learned one.

    "sinusoidal" and "learned" `[positions, features]`; "angles" `[positions, pairs]`, radians; "learned_most", the
    value at which the colours of the learned table end; "alike", by table the cosines between rows.
    """
    table, source = learned_table()
    positions, hidden = table.shape
    sinusoidal = sinusoidal_table(torch.arange(positions), hidden, rope.theta).numpy()
    angles = np.outer(np.arange(positions), frequencies(rope, positions))
    return {
        "sinusoidal": sinusoidal,
        "angles": angles,
        "learned": table,
        "learned_most": float(np.quantile(np.abs(table), 0.99)),
        "alike": {
            "sinusoidal": alike(sinusoidal),
            "rope": alike(np.concatenate([np.cos(angles), np.sin(angles)], axis=1)),
            "learned": alike(table - table.mean(0)),
        },
        "note": f"theta {theta_of(rope)}; sinusoidal and learned: {hidden} features; RoPE: head_dim {rope.head_dim}. "
        f"Learned table {source}:\nits colours end at the 99th percentile, and its mean over positions is subtracted "
        "before the cosine.",
    }


def learned_table() -> tuple[Array, str]:
    """Return the learned table that `scripts/make_learned_table.py` trains, and its origin in words."""
    with np.load(TABLE, allow_pickle=False) as stored:
        made = json.loads(str(stored["provenance"]))
        text = f"trained on {made['tokens']:,} tokens of Moby-Dick, {made['parameters'] / 1e6:.1f}M parameters"
        return stored["table"].astype(np.float64), text


def alike(rows: Array) -> Array:
    """Return the cosine of the angle between every two rows, `[rows, rows]`."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines: Array = unit @ unit.T
    return cosines


_MOVES = {
    "both move": Look(BLUE, "-", "o"),
    "only the query moves": Look(RED, "--", "s"),
    "only the key moves": Look(GREEN, ":", "^"),
}


def shift(rope: rw.RopeConfig, *, length: int = 32, shifts: int = 64, seed: int = 0) -> Figure:
    """Draw scores of a random query and key by both positions, and with both moved, or only one."""
    shown = shift_numbers(rope, length=length, shifts=shifts, seed=seed)
    moved = shown["shifts"]
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.2, 4.4))
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
        image = heat(left, shown["grid"])
        left.set_aspect("equal")
        bar(figure, image, left, "score q·k / √head_dim", shrink=0.85)
        m, n = shown["start"]
        ahead = length - 1 - max(m, n)
        left.plot([n, n + ahead], [m, m + ahead], color="white", linewidth=3.2)
        left.plot([n, n + ahead], [m, m + ahead], color=BLUE, linewidth=1.8)
        left.plot([n], [m], color="white", marker="o", markersize=8, markeredgecolor=BLUE, markeredgewidth=1.8)
        panel(left, "every query position, every key position")
        left.set_xlabel("key position n (tokens)")
        left.set_ylabel("query position m (tokens)")
        for name, values in shown["curves"].items():
            look = _MOVES[name]
            right.plot(
                moved, values, color=look.color, linestyle=look.line, marker=look.marker,
                markevery=max(1, len(moved) // 8),
                label=f"{name} (within {shown['spread']:.0e})" if name == "both move" else name,
            )  # fmt: skip
        right.set_xlim(moved[0], moved[-1])
        length_ticks(right)
        low, high = right.get_ylim()
        right.set_ylim(low, high + 0.4 * (high - low))
        panel(right, f"the circle (m = {m}, n = {n}) moved")
        right.set_xlabel("shift (tokens)")
        right.set_ylabel("score q·k / √head_dim")
        right.legend(loc="upper left")
        caption(figure, "A score depends only on the distance", shown["note"])
        return figure


def shift_numbers(rope: rw.RopeConfig, *, length: int = 32, shifts: int = 64, seed: int = 0) -> dict[str, Any]:
    """Return what `shift` draws, in float32.

    "grid" `[length, length]`, the score of q at m with k at n; "start", (m, n) before the shift; "curves", scores by
    shift with both, only the query or only the key moved; "spread", the range of the score while both move.
    """
    q, k = torch.randn(2, rope.head_dim, generator=torch.Generator().manual_seed(seed))
    positions, moved, longest = torch.arange(length), torch.arange(shifts + 1), length + shifts
    grid = rotated(q, rope, positions, longest) @ rotated(k, rope, positions, longest).T / rope.head_dim**0.5
    m, n = length // 2, length // 4

    def curve(by_query: int, by_key: int) -> Array:
        at_m = rotated(q, rope, m + by_query * moved, longest)
        at_n = rotated(k, rope, n + by_key * moved, longest)
        scores: Array = ((at_m * at_n).sum(-1) / rope.head_dim**0.5).double().numpy()
        return scores

    both = curve(1, 1)
    return {
        "grid": grid.double().numpy(),
        "start": (m, n),
        "shifts": moved.numpy(),
        "curves": {"both move": both, "only the query moves": curve(1, 0), "only the key moves": curve(0, 1)},
        "spread": float(both.max() - both.min()),
        "note": f"One query and one key, random (seed {seed}); {described(rope)}, float32",
    }


def axial(rope: rw.RopeConfig, *, side: int = 24, row: int = 8, column: int = 11) -> Figure:
    """Draw the score of one patch's query with every patch's equal key, in axial 2D and in reading order."""
    shown = axial_numbers(rope, side=side, row=row, column=column)
    panels = shown["panels"]
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(1.4 + 3.1 * len(panels), 4.15))
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        low = min(float(values.min()) for _, _, values in panels)
        for index, (axes, (name, (row, column), values)) in enumerate(zip(grid, panels, strict=True)):
            image = heat(axes, values, vmin=low, vmax=1.0)
            axes.set_aspect("equal")
            axes.plot([column], [row], color="white", marker="x", markersize=7, markeredgewidth=3.2)
            axes.plot([column], [row], color=RED, marker="x", markersize=6, markeredgewidth=1.8)
            panel(axes, name)
            axes.set_xlabel("column (patches)")
            if index == 0:
                axes.set_ylabel("row (patches)")
        bar(figure, image, grid, "score / its largest (no unit)", shrink=0.8, pad=0.02)
        caption(figure, "One patch against all others", shown["note"])
        return figure


def axial_numbers(rope: rw.RopeConfig, *, side: int = 24, row: int = 8, column: int = 11) -> dict[str, Any]:
    """Return "panels", three of (name, patch, score over its largest `[side, side]`).

    They are the patch, one in the corner, and the patch with one axis in reading order.
    """
    one_axis = dataclasses.replace(rope, axes=None, axes_restart=False)
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
    ones = torch.ones(rope.head_dim, dtype=torch.float64)
    by_axes = rotated(ones, rope, at, side)
    by_order = rotated(ones, one_axis, torch.arange(side * side), side * side)

    def similarity(rows: Tensor, patch: tuple[int, int]) -> Array:
        scores: Array = (rows @ rows[patch[0] * side + patch[1]] / rope.head_dim).view(side, side).numpy()
        return scores

    corner = (side - 1, 0)
    return {
        "panels": [
            ("axial 2D", (row, column), similarity(by_axes, (row, column))),
            ("axial 2D, patch in the corner", corner, similarity(by_axes, corner)),
            ("one axis, patches in reading order", (row, column), similarity(by_order, (row, column))),
        ],
        "note": f"Query and key are the same vector of ones; {described(rope)}",
    }


def rotated(x: Tensor, rope: rw.RopeConfig, position_ids: Tensor, seq_len: int) -> Tensor:
    """Return one vector `[head_dim]` rotated to every position, `[positions, head_dim]`, in its own dtype."""
    rows = x.expand(1, len(position_ids), 1, -1).contiguous()
    return rw.RotaryEmbedding(rope).rotate(rows, position_ids=position_ids, seq_len=seq_len)[0, :, 0]
