"""Pairs as they turn: points on the circle, a clock for every pair, sines and cosines along a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import BLUE, GRID, INK, QUIET, RED, SHADE, caption, length_ticks, panel, style, tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = tuple[Sequence[float], Sequence[float]]


def clocks(
    circles: Mapping[int, Points],
    *,
    radians_per_token: Mapping[int, float],
    turns: Sequence[float],
    hands: Points,
    position: int,
    note: str = "",
) -> Figure:
    """Above, points (x, y) of positions 0, 1, ... on the circle of a few pairs; below, a clock for every pair.

    `turns` and `hands` (the points x, y of the hands) are every pair's at `position`; a pair that has not yet turned
    once shows its arc in red.
    """
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
            apart = radians_per_token[pair] > 0.25
            for number, (a, b) in enumerate(zip(x, y, strict=True)):
                if apart or number in (0, len(x) - 1):
                    low = 0.0 if apart else 0.1 if number else -0.12
                    axes.text(1.24 * a, 1.24 * b + low, str(number), ha="center", va="center", fontsize=8)
            axes.set_xlim(-1.5, 1.5)
            axes.set_ylim(-1.5, 1.5)
            axes.set_xticks([-1, 0, 1])
            axes.set_yticks([-1, 0, 1], None if index == 0 else [""] * 3)
            panel(axes, f"pair {pair}: {radians_per_token[pair]:.3g} rad/token")
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
            axes.plot([0, hands[0][pair]], [0, hands[1][pair]], color=INK if whole else RED, linewidth=1.8)
            name = f"pair {pair}" if columns == 8 else f"{pair}"
            axes.set_title(
                f"{name}: {_turns(turns[pair])}", fontsize=8 if columns == 8 else 7, fontweight="normal",
                loc="center", pad=1, color=INK,
            )  # fmt: skip
        caption(top, f"Positions 0 to {len(next(iter(circles.values()))[0]) - 1} on the circles of a few pairs")
        slow = sum(turn < 1 for turn in turns)
        caption(
            bottom,
            f"Turns that every pair has made at token {tokens(position)} ({slow} of {len(turns)}: not yet one)",
            note,
        )
        return figure


def _turns(turns: float) -> str:
    """A number of turns in few characters.

    >>> _turns(1303.8), _turns(40.7437), _turns(0.0407)
    ('1,304', '40.7', '0.041')
    """
    return f"{turns:,.0f}" if turns >= 100 else f"{turns:.3g}" if turns >= 0.1 else f"{turns:.2g}"


def waves(
    positions: Sequence[float],
    curves: Mapping[int, Points],
    *,
    wavelengths: Mapping[int, float],
    trained_length: int,
    note: str = "",
) -> Figure:
    """Cosine and sine of each pair's angle by position (tokens), one strip for each; the trained length marked."""
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.8, 1.5 + 1.0 * len(curves)))
        grid = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
        last = positions[-1]
        for axes, (pair, (cos, sin)) in zip(grid, curves.items(), strict=True):
            if trained_length < last:
                axes.axvspan(trained_length, last, color=SHADE, zorder=0, linewidth=0)
                axes.axvline(trained_length, color=INK, linewidth=1)
            axes.plot(positions, cos, color=BLUE, linewidth=1.4, label="cosine")
            axes.plot(positions, sin, color=RED, linewidth=1.2, linestyle=(0, (4, 1.5)), label="sine")
            axes.set_ylim(-1.15, 1.15)
            axes.set_yticks([-1, 0, 1])
            axes.set_xlim(0, last)
            share = trained_length / wavelengths[pair]
            many = f"{share:,.1f}" if share >= 1 else f"{share:.2g}"
            panel(axes, f"pair {pair}: {wavelengths[pair]:,.1f} tokens per turn, {many} turns in training")
        if trained_length < last:
            grid[0].annotate(
                f"trained length {tokens(trained_length)}", (trained_length, 1), xycoords=("data", "axes fraction"),
                xytext=(3, 6), textcoords="offset points", fontsize=9,
            )  # fmt: skip
        figure.supylabel("cosine and sine of the angle (no unit)", fontsize=10)
        grid[-1].set_xlabel("position (tokens)")
        if last % 8 == 0:
            grid[-1].set_xticks([last * eighth / 8 for eighth in range(9)])
        length_ticks(grid[-1])
        caption(figure, "Sine and cosine of each pair's angle", note)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="upper right", ncols=2)
        return figure
