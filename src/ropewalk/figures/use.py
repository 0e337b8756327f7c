"""Figures of far tokens: gain of copies by distance, and accuracy of retrieval by depth and distance."""

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
    WIDE,
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


WITHIN = "plain, within the trained length"  # at a phone's width: "plain, within"

_RECOMMENDED = " (recommended)"


class Gain(NamedTuple):
    """A gain in nats per token, and its interval (None: one window)."""

    value: float
    interval: tuple[float, float] | None


Copies = Mapping[str, Mapping[int, Gain]]
"""By method, the gain at each distance in tokens."""


def gain_by_distance(
    copies: Copies,
    *,
    trained_length: int,
    control: Mapping[int, Gain] | None = None,
    needed: float | None = None,
    recommended: str | None = None,
    title: str = "Use of far tokens",
    narrow: bool = False,
) -> Figure:
    """Draw the copy test's gain of each method by distance, in nats per token.

    - `control`: the copy test's gain within the trained length. `needed`: half of it, which counts as use.
    - `narrow`: for a phone's width.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=NARROW if narrow else WIDE)
        _draw_copies(figure.subplots(), copies, control or {}, trained_length, needed, recommended)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        _legend(figure, narrow)
        return figure


def _legend(figure: Figure, narrow: bool) -> None:
    """Each name once, below the panels; the shorter names at a phone's width."""
    lines: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            short = label.removesuffix(_RECOMMENDED).replace(WITHIN, "plain, within")
            lines.setdefault(short if narrow else label, handle)
    tight = {"fontsize": 9, "handlelength": 1.6, "columnspacing": 1.0} if narrow else {}
    figure.legend(lines.values(), lines.keys(), loc="outside lower left", ncols=4, **tight)


def _draw_copies(
    axes: Axes,
    copies: Copies,
    control: Mapping[int, Gain],
    trained_length: int,
    needed: float | None,
    recommended: str | None,
) -> None:
    """Lines by distance, on an axis that doubles."""
    distances = sorted({*control, *(distance for gains in copies.values() for distance in gains)})
    axes.set_xscale("log", base=2)
    axes.set_xlim(distances[0] / 1.15, distances[-1] * 1.15)
    mark_trained_length(axes, trained_length, distances[-1] * 1.15)
    axes.axhline(0.0, color=QUIET, linewidth=0.8)
    if needed is not None:
        axes.axhline(needed, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            "counts as use",
            (1, needed),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=QUIET,
        )
    elif control:
        axes.annotate(
            "not measured: the model does not copy\nwithin its trained length either",
            (0, 0),
            xycoords="axes fraction",
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=9,
            color=QUIET,
        )
    if control:
        axes.plot(list(control), [gain.value for gain in control.values()], color=QUIET, linestyle=":", label=WITHIN)
    for name, gains in copies.items():
        look = look_of(name)
        axes.errorbar(
            list(gains),
            [gain.value for gain in gains.values()],
            yerr=_reach_of(list(gains.values())),
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            linewidth=2.6 if name == recommended else 1.6,
            elinewidth=1,
            capsize=2,
            label=_label(name, recommended),
        )
    panel(axes, "a block of random words, copied")
    axes.set_xlabel("how far back the copy stands (tokens)")
    axes.set_ylabel("gain (nats per token)")
    axes.set_xticks(_doublings(distances[0], distances[-1]))
    axes.minorticks_off()
    length_ticks(axes)


def _reach_of(gains: Sequence[Gain]) -> list[list[float]] | None:
    """How far the intervals reach below and above; None where there are none."""
    if any(gain.interval is None for gain in gains):
        return None
    ends = [(gain.value, *gain.interval) for gain in gains if gain.interval is not None]
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]


def _label(name: str, recommended: str | None) -> str:
    return f"{name}{_RECOMMENDED}" if name == recommended else name


def _doublings(first: int, last: int) -> list[int]:
    """Powers of two between two distances, five at most; the distances themselves where there is none."""
    powers = [1 << n for n in range(40) if first <= 1 << n <= last]
    step = -(-len(powers) // 5)
    return powers[:: step or 1] or sorted({first, last})


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
