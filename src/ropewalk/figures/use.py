"""Figures of the use of far tokens: gain of copies by distance, accuracy of retrieval by depth and distance."""

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


class MeasuredValue(NamedTuple):
    """A gain in nats per token or a fraction of 1, and its interval (None: one window or text)."""

    value: float
    interval: tuple[float, float] | None


Copies = Mapping[str, Mapping[int, MeasuredValue]]
"""By method, the gain at each distance in tokens."""


def gain_by_distance(
    copies: Copies,
    *,
    trained_length: int,
    control: Mapping[int, MeasuredValue] | None = None,
    needed: float | None = None,
    recommended: str | None = None,
    title: str = "Use of far tokens",
    narrow: bool = False,
) -> Figure:
    """Draw the copy test's gain of each method by distance, in nats per token.

    **Arguments:**
    - `control`: the gain within the trained length.
    - `needed`: the gain that counts as use: half of the control; None if the model does not copy.
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
    """List each name once below the panels, shortened at a phone's width."""
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
    control: Mapping[int, MeasuredValue],
    trained_length: int,
    needed: float | None,
    recommended: str | None,
) -> None:
    """Draw lines by distance on a logarithmic axis."""
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
            "no limit: the model does not copy\nwithin its trained length either",
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
            yerr=_whiskers(list(gains.values())),
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            linewidth=2.6 if name == recommended else 1.6,
            elinewidth=1,
            capsize=2,
            label=f"{name}{_RECOMMENDED}" if name == recommended else name,
        )
    panel(axes, "a block of random words, copied")
    axes.set_xlabel("distance of the copy (tokens)")
    axes.set_ylabel("gain (nats per token)")
    axes.set_xticks(_doublings(distances[0], distances[-1]))
    axes.minorticks_off()
    length_ticks(axes)


def _whiskers(values: Sequence[MeasuredValue]) -> list[list[float]] | None:
    """Return the lengths of the intervals below and above the values; None if one has no interval."""
    ends = [(one.value, *one.interval) for one in values if one.interval is not None]
    if len(ends) < len(values):
        return None
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]


def _doublings(first: int, last: int) -> list[int]:
    """Return at most five powers of two between two distances; the distances themselves if there is none."""
    powers = [1 << n for n in range(40) if first <= 1 << n <= last]
    step = -(-len(powers) // 5)
    return powers[:: step or 1] or sorted({first, last})


Table = Sequence[Sequence[float | None]]
_PANELS = 3  # in a row
_DARK = 0.55  # cells below it have light numbers


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
    """Draw a table of accuracies for each method, rows by depth or by task.

    **Arguments:**
    - `accuracy`: by method `[row][length]`, fractions of 1, or None for a cell that was not measured.
    - `lengths`: tokens, increasing.
    - `chance`: the accuracy of guessing.
    - `n`: answers in a cell, or of each row if they differ.
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
            drawn = bar(figure, image, grid, "share of right answers", shrink=0.9, pad=0.02)
            if chance is not None:
                drawn.ax.axhline(chance, color=ON_DARK, linewidth=1.6)
                drawn.ax.axhline(chance, color=ON_LIGHT, linewidth=1.6, linestyle=(0, (2, 2)))
        caption(figure, title, _note(lengths, trained_length, chance, n, note))
        return figure


def _draw(axes: Axes, table: Table, lengths: Sequence[int], trained_length: int | None) -> object:
    """Draw colours and numbers, and the trained length as a line between the columns."""
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
    """Return one line about the cells and the lines."""
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


def accuracy_by_distance(
    curves: Mapping[int, Mapping[str, Mapping[float, MeasuredValue]]],
    *,
    trained_length: int | None = None,
    chance: float | None = None,
    title: str = "Retrieval by distance",
    narrow: bool = False,
) -> Figure:
    """Draw a panel for each length of the text, and in it a line with intervals for each method.

    **Arguments:**
    - `curves`: `[length][method][distance]`; distances are tokens from the end of the question back to the needle.
    - `chance`: the accuracy of guessing.
    - `narrow`: for a phone's width.
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
                    yerr=_whiskers(list(points.values())),
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
                axes.set_ylabel("share of right answers")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        named: dict[str, Any] = {}
        for axes in figure.axes:
            named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        names = sorted(named, key=lambda label: label == "chance")  # chance comes last
        figure.legend([named[label] for label in names], names, loc="outside lower left", ncols=5)
        return figure
