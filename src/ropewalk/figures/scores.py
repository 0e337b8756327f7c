"""Scores of queries and keys: by their two positions, along a shift, by distance, over a grid of patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    QUIET,
    RED,
    bar,
    caption,
    heat,
    length_ticks,
    panel,
    style,
)
from ropewalk.methods import Look  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOVES = {
    "both move": Look(BLUE, "-", "o"),
    "only the query moves": Look(RED, "--", "s"),
    "only the key moves": Look(GREEN, ":", "^"),
}


def shift(
    grid: Any,
    *,
    start: tuple[int, int],
    shifts: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    spread: float,
    note: str = "",
) -> Figure:
    """Left, scores `grid[m, n]` of a query at m and a key at n; right, scores along a shift (tokens) from `start`.

    `spread` is how much the score differs in all while both move.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.2, 4.4))
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
        image = heat(left, grid)
        left.set_aspect("equal")
        bar(figure, image, left, "score q·k / √head_dim", shrink=0.85)
        m, n = start
        ahead = len(grid) - 1 - max(m, n)
        left.plot([n, n + ahead], [m, m + ahead], color="white", linewidth=3.2)
        left.plot([n, n + ahead], [m, m + ahead], color=BLUE, linewidth=1.8)
        left.plot([n], [m], color="white", marker="o", markersize=8, markeredgecolor=BLUE, markeredgewidth=1.8)
        panel(left, "every query position, every key position")
        left.set_xlabel("key position n (tokens)")
        left.set_ylabel("query position m (tokens)")
        for name, values in curves.items():
            look = _MOVES.get(name, Look(QUIET))
            right.plot(
                shifts, values, color=look.color, linestyle=look.line, marker=look.marker,
                markevery=max(1, len(shifts) // 8),
                label=f"{name} (within {spread:.0e})" if name == "both move" else name,
            )  # fmt: skip
        right.set_xlim(shifts[0], shifts[-1])
        length_ticks(right)
        low, high = right.get_ylim()
        right.set_ylim(low, high + 0.4 * (high - low))
        panel(right, f"the circle (m = {m}, n = {n}) moved")
        right.set_xlabel("shift (tokens)")
        right.set_ylabel("score q·k / √head_dim")
        right.legend(loc="upper left")
        caption(figure, "A score depends on the distance alone", note)
        return figure


def axial(panels: Sequence[tuple[str, tuple[int, int], Any]], *, note: str = "") -> Figure:
    """For each (name, patch, similarity): the similarity of one patch to every patch of a grid, the patch marked."""
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
        caption(figure, "One patch against all others", note)
        return figure


def decay(
    distances: Sequence[int],
    *,
    equal: Sequence[float],
    bound: Sequence[float],
    random_bands: Sequence[tuple[float, Sequence[float], Sequence[float]]],
    random_mean: Sequence[float],
    random_examples: Sequence[Sequence[float]],
    heads: Mapping[str, Sequence[float]],
    falling: str,
    rising: str,
    rising_count: int,
    model: str,
    note: str = "",
) -> Figure:
    """Score against distance (tokens): q = k with its bound; random q and k (bands: share, low, high); trained heads.

    `heads` are mean scores by distance, each less its mean over distances; two of them are drawn in colour.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11.5, 4.3))
        first, second, third = figure.subplots(1, 3)
        first.plot(distances, bound, color=QUIET, linestyle="--", linewidth=1.4, label="the paper's bound, scaled")
        first.plot(distances, equal, color=BLUE, label="equal pairs, q = k")
        first.legend(loc="upper right")
        panel(first, "q = k: decays, and not evenly")
        first.set_ylabel("score / |q| |k| (no unit)")
        for number, (share, low, high) in enumerate(random_bands):
            second.fill_between(
                distances, low, high, color=ORANGE, alpha=0.25 + 0.25 * number, linewidth=0,
                label=f"{share:.0%} of draws",
            )  # fmt: skip
        for number, line in enumerate(random_examples):
            second.plot(distances, line, color=INK, linewidth=0.9, label=None if number else "single draws")
        second.plot(distances, random_mean, color=BLUE, linewidth=2, linestyle="--", label="mean of draws")
        second.set_ylim(top=1.35 * second.get_ylim()[1])
        second.legend(loc="upper right", ncols=2, fontsize=8)
        panel(second, "random q and k: no decay")
        second.set_ylabel("score / |q| |k| (no unit)")
        for name, values in heads.items():
            if name not in (falling, rising):
                third.plot(distances, values, color=PALE, linewidth=0.9, zorder=2)
        third.plot([], [], color=PALE, linewidth=0.9, label="the other heads")
        third.plot(distances, heads[falling], color=BLUE, zorder=4, label=f"falls most: {falling}")
        third.plot(distances, heads[rising], color=RED, linestyle="--", zorder=4, label=f"rises again most: {rising}")
        low, high = third.get_ylim()
        third.set_ylim(low, high + 0.25 * (high - low))
        third.legend(loc="upper right", fontsize=8)
        panel(third, f"{model}: {rising_count} of {len(heads)} heads rise again")
        third.set_ylabel("mean score q·k / √head_dim, less its mean")
        for axes in (first, second, third):
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.set_xlim(distances[0], distances[-1])
            axes.set_xlabel("distance (tokens)")
            length_ticks(axes)
        caption(figure, "Rotation allows decay with distance, and does not enforce it", note)
        return figure
