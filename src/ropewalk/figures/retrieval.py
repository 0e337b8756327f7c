"""What each method finds in a long text: a heat map of accuracy by depth, and curves by distance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ropewalk.figures.style import (
    INK,
    NARROW,
    ON_DARK,
    ON_LIGHT,
    PALE,
    QUIET,
    bar,
    caption,
    heat,
    length_ticks,
    look_of,
    mark_trained_length,
    panel,
    style,
    tokens,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = Sequence[Sequence[float | None]]
_PANELS = 3  # side by side
_DARK = 0.55  # below it the map's colours want light numbers


def heat_map(
    accuracy: Mapping[str, Table],
    *,
    lengths: Sequence[int],
    rows: Sequence[str],
    row_title: str = "depth of the needle (0: first)",
    trained_length: int | None = None,
    chance: float | None = None,
    n: int | Sequence[int] | None = None,
    title: str = "Retrieval",
    note: str = "",
) -> Figure:
    """`accuracy[method][row][length]`, fractions of 1 or None where nothing was measured; rows by depth or by task.

    `lengths` are tokens, increasing; `chance` is what guessing finds, and `n` the answers in a cell (of each
    row, where they differ).
    """
    with style():
        from matplotlib.figure import Figure

        columns = min(_PANELS, len(accuracy))
        lines = -(-len(accuracy) // columns)
        widest = max((len(row) for row in rows), default=0)
        side = 0.62 * len(lengths) + 0.9
        figure = Figure(
            figsize=(max(5.2, 1.9 + 0.075 * widest + columns * max(side, 2.2)), 1.5 + lines * (0.36 * len(rows) + 1.05))
        )
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        image = None
        for axes in grid.flat[len(accuracy) :]:
            axes.set_visible(False)
        for index, (axes, (method, table)) in enumerate(zip(grid.flat, accuracy.items(), strict=False)):
            image = _draw(axes, table, lengths, trained_length)
            panel(axes, method)
            axes.set_yticks(range(len(rows)), rows)
            lowest = index + columns >= len(accuracy)
            axes.tick_params(length=0, labelbottom=lowest)
            axes.set_xticks(range(len(lengths)), [tokens(length) for length in lengths])
            if lowest:
                axes.set_xlabel("text (tokens)")
            if index % columns == 0:
                axes.set_ylabel(row_title)
        if image is not None:
            drawn = bar(figure, image, grid, "part of the answers found", shrink=0.9, pad=0.02)
            if chance is not None:
                drawn.ax.axhline(chance, color=ON_DARK, linewidth=1.6)
                drawn.ax.axhline(chance, color=ON_LIGHT, linewidth=1.6, linestyle=(0, (2, 2)))
        caption(figure, title, _note(lengths, trained_length, chance, n, note))
        return figure


def _draw(axes: Axes, table: Table, lengths: Sequence[int], trained_length: int | None) -> object:
    """Colours and numbers; the trained length as a line between the columns."""
    import numpy as np

    values = np.array([[np.nan if one is None else one for one in row] for row in table], dtype=float)
    axes.set_facecolor(PALE)
    image = heat(axes, np.ma.masked_invalid(values), vmin=0.0, vmax=1.0)
    axes.spines[["left", "bottom"]].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        missing = bool(np.isnan(value))
        color = INK if missing else ON_LIGHT if value > _DARK else ON_DARK
        axes.text(
            column, row, "\u2013" if missing else f"{value:.2f}", ha="center", va="center", fontsize=8, color=color
        )
    within = 0 if trained_length is None else bisect_right(lengths, trained_length)
    if 0 < within < len(lengths):
        axes.axvline(within - 0.5, color=ON_DARK, linewidth=3.2)
        axes.axvline(within - 0.5, color=ON_LIGHT, linewidth=1.4, linestyle="--")
    return image


def _note(
    lengths: Sequence[int], trained_length: int | None, chance: float | None, n: int | Sequence[int] | None, note: str
) -> str:
    """What the cells and the lines are, in one line."""
    notes = [note] if note else []
    if n is not None:
        counts = [n] if isinstance(n, int) else sorted(set(n))
        notes.append(f"each cell n={counts[0]}" if len(counts) == 1 else f"each cell n={counts[0]} to {counts[-1]}")
    if chance is not None:
        notes.append(f"chance {chance:.3g}" + (" (dashed on the bar)" if chance else ""))
    if trained_length is not None:
        within = bisect_right(lengths, trained_length)
        line = "all texts are within it" if within == len(lengths) else "all texts are beyond it"
        shown = "dashed line" if 0 < within < len(lengths) else line
        notes.append(f"trained length {tokens(trained_length)} ({shown})")
    return "; ".join(notes)


class Share(NamedTuple):
    """A part of 1, and its interval (None: one text)."""

    value: float
    interval: tuple[float, float] | None


def accuracy_by_distance(
    curves: Mapping[int, Mapping[str, Mapping[float, Share]]],
    *,
    trained_length: int | None = None,
    chance: float | None = None,
    title: str = "Retrieval by distance",
    narrow: bool = False,
) -> Figure:
    """`curves[length][method][distance]`: a panel for each length of the text, a line with intervals for each method.

    Distances are tokens from the end of the question back to the needle; `chance` is what guessing finds. `narrow`: for
    a phone's width.
    """
    with style():
        from matplotlib.figure import Figure

        columns = min(_PANELS, len(curves))
        lines = -(-len(curves) // columns)
        size = NARROW if narrow else (1.2 + 3.1 * columns if columns > 1 else 7.4, 0.9 + 2.9 * lines)
        figure = Figure(figsize=size)
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for axes in grid.flat[len(curves) :]:
            axes.set_visible(False)
        for index, (axes, (length, of_length)) in enumerate(zip(grid.flat, curves.items(), strict=False)):
            for number, (method, points) in enumerate(of_length.items()):
                look, apart = look_of(method), 0.006 * length * (number - (len(of_length) - 1) / 2)
                axes.errorbar(
                    [distance + apart for distance in points],
                    [share.value for share in points.values()],
                    yerr=_ends(list(points.values())),
                    color=look.color,
                    linestyle=look.line,
                    marker=look.marker,
                    elinewidth=1,
                    capsize=2,
                    label=method,
                )
            axes.set_xlim(0, length)
            axes.set_ylim(-0.03, 1.03)
            if trained_length is not None:
                mark_trained_length(axes, trained_length, length)
            if chance is not None:
                axes.axhline(chance, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), label="chance")
            if not narrow:
                panel(axes, f"text of {tokens(length)} tokens")
            axes.locator_params("x", nbins=5)
            length_ticks(axes)
            axes.set_xlabel("distance (tokens)")
            if index % columns == 0:
                axes.set_ylabel("part found")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        named: dict[str, Any] = {}
        for axes in figure.axes:
            named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        names = sorted(named, key=lambda label: label == "chance")  # it comes last
        figure.legend([named[label] for label in names], names, loc="outside lower left", ncols=5)
        return figure


def _ends(shares: Sequence[Share]) -> list[list[float]] | None:
    """How far the intervals reach below and above; None where there is one without."""
    ends = [(share.value, *share.interval) for share in shares if share.interval is not None]
    if len(ends) < len(shares):
        return None
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]
