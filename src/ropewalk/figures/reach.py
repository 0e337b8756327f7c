"""Angles never seen, frequency ratios on real configurations, wavelengths of real models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import (
    BLUE,
    INK,
    QUIET,
    RED,
    bar,
    caption,
    heat,
    length_ticks,
    look_of,
    panel,
    style,
    tokens,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNSEEN = "#f0a068"


def unseen(
    positions: Sequence[float],
    *,
    cells: Mapping[str, Any],
    ratios: Mapping[str, Any],
    trained_length: int,
    title: str = "Angles never seen in training",
    note: str = "",
) -> Figure:
    """For each method the cells `[positions, pairs]` (bool) whose angle training never showed, hatched and counted.

    Behind them, by column, `ratios`: each pair's frequency over its unscaled one, what the method pays.
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
        for axes, (name, found) in zip(grid.ravel(), cells.items(), strict=False):
            count, pairs = found.shape
            extent = (-0.5, pairs - 0.5, last, 0)
            image = heat(axes, ratios[name][None], cmap=blues, norm=LogNorm(least, 1), extent=extent)
            boxes = []
            for pair in range(pairs):
                for start, stop in _runs(found[:, pair]):
                    top, low = start * last / count, stop * last / count
                    boxes.append([(pair - 0.5, top), (pair + 0.5, top), (pair + 0.5, low), (pair - 0.5, low)])
            axes.add_collection(
                PolyCollection(boxes, facecolors=_UNSEEN, edgecolors=INK, linewidths=0, hatch="/////"), autolim=False
            )
            axes.axhline(trained_length, color=INK, linewidth=1.2)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            length_ticks(axes, "y")
            axes.set_yticks([0, *(last * share / 4 for share in range(1, 5))])
            panel(axes, f"{name}: {_share(float(found.mean()))} never seen")
        for axes in grid.ravel()[len(cells) :]:
            axes.set_axis_off()
        for axes in grid[-1]:
            axes.set_xlabel("pair (fastest first)")
        for axes in grid[:, 0]:
            axes.set_ylabel("position (tokens)")
        grid[0][0].annotate(
            f"trained length {tokens(trained_length)}", (0, trained_length), xytext=(2, -3),
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
    """Start and end of each run of True.

    >>> _runs([False, True, True, False, True])
    [(1, 3), (4, 5)]
    """
    edges = [place for place in range(len(marked) + 1) if _at(marked, place) != _at(marked, place - 1)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _at(marked: Sequence[bool], place: int) -> bool:
    return 0 <= place < len(marked) and bool(marked[place])


def _fraction(value: float, _: object = None) -> str:
    """A power of two below one as a fraction.

    >>> _fraction(1.0), _fraction(0.125)
    ('1', '1/8')
    """
    return "1" if value == 1 else f"1/{1 / value:g}"


def _share(share: float) -> str:
    """A share that shows when it is not quite zero.

    >>> _share(0.0), _share(0.0004), _share(0.413)
    ('0 %', 'below 0.1 %', '41.3 %')
    """
    return "0 %" if share == 0 else "below 0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def ratios(panels: Sequence[Mapping[str, Any]], *, names: Mapping[str, str], note: str = "") -> Figure:
    """One panel for each configuration: "title", "ratios" by method and pair, "own" (the method shipped), "factor"."""
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
    """One strip for each (name, wavelengths in tokens per turn, longest distance in training, theta)."""
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
                label=None if place else "turns at least once in training",
            )  # fmt: skip
            axes.plot(
                outside, [place] * len(outside), color=RED, linestyle="none", marker="o",
                markerfacecolor="white", markeredgewidth=1.3, label=None if place else "never turns once",
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
            "never turn once", (1, -0.8), xycoords=("axes fraction", "data"), xytext=(8, 0),
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
        caption(figure, "Wavelengths of real models against their trained lengths", note)
        return figure


def _binary(length: float) -> str:
    """Powers of two as readers of context lengths write them.

    >>> _binary(256), _binary(2048), _binary(2**20)
    ('256', '2k', '1M')
    """
    return f"{length / 2**20:g}M" if length >= 2**20 else tokens(length)
