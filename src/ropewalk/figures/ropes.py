"""Figures of ropes: wavelengths, frequency ratios, unseen angles, clocks, waves, tables of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import (
    BLUE,
    GRID,
    INK,
    NARROW,
    QUIET,
    RED,
    SHADE,
    bar,
    caption,
    heat,
    length_ticks,
    look_of,
    new_figure,
    panel,
    style,
    tokens,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def wavelengths(
    unscaled: Sequence[float | None],
    *,
    trained_length: int | None,
    target: int,
    scaled: Mapping[str, Sequence[float | None]] | None = None,
    title: str = "Wavelength of each pair",
    narrow: bool = False,
) -> Figure:
    """Draw the wavelength of each pair, with the trained length and the target as lines.

    Pairs above the trained length never complete a turn in training.

    **Arguments:**
    - `unscaled`: tokens per turn of each pair; None for a pair that is not rotated.
    - `scaled`: the same for each method.
    - `narrow`: for a phone's width.
    """
    with style():
        from matplotlib.ticker import MaxNLocator

        figure, axes = new_figure(*(NARROW if narrow else ()))
        axes.set_yscale("log", base=2)
        pairs = len(unscaled)
        axes.set_xlim(-0.5, pairs - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for name, values in {"plain": unscaled, **(scaled or {})}.items():
            look = look_of(name)
            axes.plot(
                [pair for pair, value in enumerate(values) if value is not None],
                [value for value in values if value is not None],
                color=look.color,
                linestyle="none",
                marker=look.marker,
                markersize=4,
                label=name,
                zorder=3,
            )
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, 2.0 * target))
        if trained_length is not None:
            axes.axhspan(trained_length, axes.get_ylim()[1], color=SHADE, zorder=0, linewidth=0)
        lines = [("target", target, QUIET)]
        if trained_length is not None:
            lines.append(("trained length", trained_length, INK))
        for label, length, color in lines:
            axes.axhline(length, color=color, linewidth=1, linestyle="-" if label != "target" else "--")
            below = narrow and label != "target"  # the two lines are close
            axes.annotate(
                f"{label} {tokens(length)}",
                (0, length),
                xytext=(2, -3) if below else (2, 3),
                textcoords="offset points",
                va="top" if below else "baseline",
                fontsize=9,
                color=color,
            )
        axes.set_title(title)
        axes.set_xlabel("pair (fastest first)")
        axes.set_ylabel("wavelength (tokens per turn)")
        length_ticks(axes, "y")
        if scaled:
            _legend(figure, narrow)
        return figure


def _legend(figure: Figure, narrow: bool) -> None:
    """Put the legend beside the axes, on a phone below them."""
    if narrow:
        figure.legend(loc="outside lower left", ncols=3, fontsize=9)
    else:
        figure.legend(loc="outside right center")


def frequency_ratios(
    ratios: Mapping[str, Sequence[float | None]],
    *,
    factor: float,
    title: str = "What each method does to each pair",
    narrow: bool = False,
) -> Figure:
    """Draw each pair's new over old frequency by method (None for a pair that is not rotated), 1/`factor` marked.

    `narrow`: for a phone's width.
    """
    with style():
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

        figure, axes = new_figure(*(NARROW if narrow else ()))
        axes.set_yscale("log", base=2)
        count = 1
        for name, values in ratios.items():
            look = look_of(name)
            count = max(count, len(values))
            shown = [(pair, value) for pair, value in enumerate(values) if value is not None]
            axes.plot(
                [pair for pair, _ in shown],
                [value for _, value in shown],
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=3,
                linewidth=1.6,
                label=name,
            )
        axes.set_xlim(-0.5, count - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.axhline(1 / factor, color=QUIET, linewidth=1, linestyle="--")
        axes.annotate(
            f"1 / {factor:g}: full interpolation",
            (0, 1 / factor),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=9,
            color=QUIET,
        )
        axes.set_title(title)
        axes.set_xlabel("pair (fastest first)")
        axes.set_ylabel("frequency / unscaled frequency")
        axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 2**0.5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _legend(figure, narrow)
        return figure


_UNSEEN = "#f0a068"


def unseen(
    positions: Sequence[float],
    *,
    cells: Mapping[str, Any],
    ratios: Mapping[str, Any],
    trained_length: int,
    mark: str = "trained length",
    title: str = "Angles never seen in training",
    note: str = "",
) -> Figure:
    """Draw the angles unseen in training for each method, hatched and counted.

    **Arguments:**
    - `positions`: in tokens.
    - `cells`: by method, whether the angle is unseen, bool `[positions, pairs]`.
    - `ratios`: by method, each pair's frequency over its unscaled one; the colour of its column.
    - `mark`: the name of `trained_length` in the picture.
    """
    with style():
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import LinearSegmentedColormap, LogNorm
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
        from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

        columns = min(3, len(cells))
        rows = -(-len(cells) // columns)
        figure = Figure(figsize=(2.3 + 2.7 * columns, 1.5 + 2.9 * rows))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        last = positions[-1] + 1
        least = min(0.5, *(float(values.min()) for values in ratios.values()))
        blues = LinearSegmentedColormap.from_list("ratio", ["#5b8db8", "#f4f6f8"])
        image = None
        for axes, (name, unseen_cells) in zip(grid.ravel(), cells.items(), strict=False):
            count, pairs = unseen_cells.shape
            extent = (-0.5, pairs - 0.5, last, 0)
            image = heat(axes, ratios[name][None], cmap=blues, norm=LogNorm(least, 1), extent=extent)
            boxes = []
            for pair in range(pairs):
                for start, stop in _runs(unseen_cells[:, pair]):
                    top, low = start * last / count, stop * last / count
                    boxes.append([(pair - 0.5, top), (pair + 0.5, top), (pair + 0.5, low), (pair - 0.5, low)])
            axes.add_collection(
                PolyCollection(boxes, facecolors=_UNSEEN, edgecolors=INK, linewidths=0, hatch="/////"), autolim=False
            )
            axes.axhline(trained_length, color=INK, linewidth=1.2)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            length_ticks(axes, "y")
            axes.set_yticks([0, *(last * share / 4 for share in range(1, 5))])
            panel(axes, f"{name}: {_share(float(unseen_cells.mean()))} never seen")
        for axes in grid.ravel()[len(cells) :]:
            axes.set_axis_off()
        for axes in grid[-1]:
            axes.set_xlabel("pair (fastest first)")
        for axes in grid[:, 0]:
            axes.set_ylabel("position (tokens)")
        grid[0][0].annotate(
            f"{mark} {tokens(trained_length)}", (0, trained_length), xytext=(2, -3),
            textcoords="offset points", va="top", fontsize=9,
        )  # fmt: skip
        drawn = bar(figure, image, grid, "frequency / unscaled frequency (no unit)", shrink=0.7, pad=0.02)
        drawn.ax.yaxis.set_major_locator(FixedLocator([2.0**-n for n in range(12) if 2.0**-n >= least]))
        drawn.ax.yaxis.set_major_formatter(FuncFormatter(_fraction))
        drawn.ax.yaxis.set_minor_locator(NullLocator())
        caption(figure, title, note)
        handle = Patch(facecolor=_UNSEEN, edgecolor=INK, linewidth=0, hatch="/////", label="angle never seen")
        figure.legend(handles=[handle], loc="upper right", borderaxespad=0.2)
        return figure


def _runs(marked: Sequence[bool]) -> list[tuple[int, int]]:
    """Return start and end of each run of True.

    >>> _runs([False, True, True, False, True])
    [(1, 3), (4, 5)]
    """
    padded = [False, *marked, False]
    edges = [place for place, (before, after) in enumerate(pairwise(padded)) if bool(before) != bool(after)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _fraction(value: float, _: object = None) -> str:
    """Return a power of two below one as a fraction.

    >>> _fraction(1.0), _fraction(0.125)
    ('1', '1/8')
    """
    return "1" if value == 1 else f"1/{1 / value:g}"


def _share(share: float) -> str:
    """Return a share in per cent; a small one is not rounded to 0.

    >>> _share(0.0), _share(0.0004), _share(0.413)
    ('0 %', 'below 0.1 %', '41.3 %')
    """
    return "0 %" if share == 0 else "below 0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def ratios(panels: Sequence[Mapping[str, Any]], *, names: Mapping[str, str], note: str = "") -> Figure:
    """Draw a panel for each configuration: "title", "ratios" by method and pair, "own" (its own method), "factor"."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullFormatter, NullLocator

        figure = Figure(figsize=(2.0 + 3.3 * len(panels), 4.5))
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        drawn = list(dict.fromkeys(name for one in panels for name in one["ratios"]))
        for axes, one in zip(grid, panels, strict=True):
            axes.set_yscale("log", base=2)
            for name, values in one["ratios"].items():
                look, own = look_of(name), name == one["own"]
                axes.plot(
                    range(len(values)), values, color=look.color, linestyle=look.line, marker=look.marker,
                    markersize=4, markevery=max(1, len(values) // 10), linewidth=3.2 if own else 1.5,
                    zorder=4 if own else 3,
                    label=names.get(name, name),
                )  # fmt: skip
            axes.axhline(1 / one["factor"], color=QUIET, linewidth=1, linestyle="--", zorder=1)
            ticks = [1.0]
            while ticks[-1] > 1 / one["factor"]:
                ticks.append(ticks[-1] / 2)
            low = min(float(min(values)) for values in one["ratios"].values())
            while ticks[-1] > low:
                ticks.append(ticks[-1] / 2)
            axes.yaxis.set_major_locator(FixedLocator(ticks))
            axes.yaxis.set_major_formatter(FuncFormatter(_fraction))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_locator(MultipleLocator(16 if len(values) > 32 else 8))
            panel(axes, one["title"])
            axes.set_xlabel("pair (fastest first)")
        grid[0].set_ylabel("frequency / unscaled frequency (no unit)")
        caption(figure, "What each scaling does to each pair's frequency", note)
        handles = [
            Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker)  # type: ignore[arg-type]
            for look in map(look_of, drawn)
        ]
        figure.legend(handles, [names.get(name, name) for name in drawn], loc="outside right upper")
        return figure


def wavelength_strips(rows: Sequence[tuple[str, Any, int, float]], *, note: str = "") -> Figure:
    """Draw a strip for each (name, wavelengths in tokens per turn, longest distance in training, theta)."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

        figure = Figure(figsize=(9.6, 1.5 + 0.62 * len(rows)))
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for place, (_, wavelengths, longest, _) in enumerate(rows):
            inside = [length for length in wavelengths if length <= longest]
            outside = [length for length in wavelengths if length > longest]
            axes.plot(
                inside, [place] * len(inside), color=BLUE, linestyle="none", marker="o",
                label=None if place else "at least one turn in training",
            )  # fmt: skip
            axes.plot(
                outside, [place] * len(outside), color=RED, linestyle="none", marker="o",
                markerfacecolor="white", markeredgewidth=1.3, label=None if place else "never a whole turn",
            )  # fmt: skip
            axes.plot(
                [longest, longest], [place - 0.34, place + 0.34], color=INK, linewidth=2.4,
                label=None if place else "trained length",
            )  # fmt: skip
            axes.annotate(
                tokens(longest), (longest, place - 0.34), xytext=(3, 0), textcoords="offset points", fontsize=8,
                va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )  # fmt: skip
            axes.annotate(
                f"{len(outside)} of {len(wavelengths)} pairs", (1, place), xycoords=("axes fraction", "data"),
                xytext=(8, 0), textcoords="offset points", fontsize=9, va="center", color=RED if outside else INK,
            )  # fmt: skip
        axes.annotate(
            "never a whole turn", (1, -0.8), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", fontsize=9, va="center", color=QUIET, annotation_clip=False,
        )  # fmt: skip
        axes.set_yticks(range(len(rows)), [f"{name}\ntheta {theta:,.10g}" for name, _, _, theta in rows])
        axes.set_ylim(len(rows) - 0.5, -0.6)
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(FixedLocator([2**n for n in range(2, 40, 3) if low <= 2**n <= high]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _binary(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("wavelength (tokens per turn)")
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
        caption(figure, "Wavelengths of real models and their trained lengths", note)
        return figure


def _binary(length: float) -> str:
    """Return a power of two as short text.

    >>> _binary(256), _binary(2048), _binary(2**20)
    ('256', '2k', '1M')
    """
    return f"{length / 2**20:g}M" if length >= 2**20 else tokens(length)


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
    """Draw positions 0, 1, ... on the circles of a few pairs, and below a clock for every pair.

    **Arguments:**
    - `circles`, `radians_per_token`: by pair; points (x, y) of the positions.
    - `turns`, `hands`: every pair's number of turns and the points (x, y) of its hand at `position`. A pair that has
      not completed a turn shows its arc in red.
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
            f"Turns of every pair at token {tokens(position)} ({slow} of {len(turns)}: less than one)",
            note,
        )
        return figure


def _turns(turns: float) -> str:
    """Return a number of turns as short text.

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
    """Draw cosine and sine of each pair's angle by position in tokens, the trained length marked."""
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


def tables(
    sinusoidal: Any, *, angles: Any, learned: Any, learned_reach: float, alike: Mapping[str, Any], note: str = ""
) -> Figure:
    """Draw three tables `[positions, features or pairs]`, and below the cosines between rows `[positions, positions]`.

    **Arguments:**
    - `angles`: radians; a line marks the first whole turn.
    - `learned_reach`: the value at which the colours of the learned table end.
    - `alike`: the cosines of "sinusoidal", "rope" and "learned".
    """
    with style():
        from math import pi

        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        figure = Figure(figsize=(10.6, 7.4))
        (top, bottom) = figure.subplots(2, 3)
        image = heat(top[0], sinusoidal, vmin=-1, vmax=1)
        panel(top[0], "sinusoidal: added to embeddings")
        top[0].set_xlabel("feature")
        bar(figure, image, top[0], "value (no unit)")

        image = heat(top[1], angles.clip(min=angles[1].min()), norm=LogNorm())
        panel(top[1], "RoPE: the angle of each pair")
        top[1].set_xlabel("pair (fastest first)")
        if angles.max() > 2 * pi and angles.shape[1] > 1:
            line = top[1].contour(angles, levels=[2 * pi], colors="white", linewidths=2)
            top[1].clabel(line, fmt={2 * pi: "one turn"}, fontsize=9, colors="white")
        drawn = bar(figure, image, top[1], "angle (radians)")
        drawn.ax.yaxis.set_minor_locator(NullLocator())

        image = heat(top[2], learned, vmin=-learned_reach, vmax=learned_reach)
        panel(top[2], "learned: trained, added to embeddings")
        top[2].set_xlabel("feature")
        beyond = "both" if abs(learned).max() > learned_reach else "neither"
        bar(figure, image, top[2], "value (no unit)", extend=beyond)

        for axes, name in zip(bottom, ("sinusoidal", "rope", "learned"), strict=True):
            image = heat(axes, alike[name], vmin=-1, vmax=1)
            panel(axes, {"rope": "RoPE", "learned": "learned"}.get(name, name) + ": similarity of positions")
            axes.set_xlabel("position (tokens)", color=INK)
            bar(figure, image, axes, "cosine (no unit)")
        for axes in (top[0], bottom[0]):
            axes.set_ylabel("position (tokens)")
        caption(figure, "Three tables of positions", note)
        return figure
