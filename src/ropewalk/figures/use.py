"""Figures of copies and retrieval: gain of copies by distance, accuracy of retrieval by depth and distance."""

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
    new_figure,
    panel,
    style,
    tokens,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WITHIN = "plain within its trained length"
_RECOMMENDED = " (recommended)"


class MeasuredValue(NamedTuple):
    """A gain in nats per token or a fraction of 1, and its interval (None: too few values)."""

    value: float
    interval: tuple[float, float] | None


Copies = Mapping[str, Mapping[float, MeasuredValue]]
"""By method, the gain at each distance in tokens."""


def copies_by_distance(
    copies: Copies,
    *,
    length: int,
    trained_length: int,
    control: Mapping[float, MeasuredValue] | None = None,
    bound: float | None = None,
    recommended: str | None = None,
    title: str = "Copies",
    narrow: bool = False,
) -> Figure:
    """Draw the gain on repeated passages by their distance from the end of the window, for each method.

    A point without an interval is hollow. Intervals that leave the axes are cut.

    **Arguments:**
    - `length`: tokens of the window. `control`: the model's gain at its trained length.
    - `bound`: the gain that counts as copying; None if the model does not copy at its trained length.
    - `narrow`: for a phone's width.
    """
    with style():
        figure, axes = new_figure(*(NARROW if narrow else WIDE))
        axes.set_xlim(0, length)
        mark_trained_length(axes, trained_length, length)
        axes.axhline(0.0, color=QUIET, linewidth=0.8)
        within = dict(sorted((control or {}).items()))
        if within:
            label = "plain, trained length" if narrow else WITHIN
            axes.fill_between(
                list(within), [gain.value for gain in within.values()], color=PALE, alpha=0.35, linewidth=0, zorder=1
            )
            axes.plot(
                list(within), [gain.value for gain in within.values()], color=QUIET, linestyle=":", marker=".",
                label=label,
            )  # fmt: skip
        for number, (name, gains) in enumerate(copies.items()):
            look, apart = look_of(name), 0.006 * length * (number - (len(copies) - 1) / 2)
            axes.plot(
                [distance + apart for distance in gains],
                [gain.value for gain in gains.values()],
                color=look.color,
                linestyle=look.line,
                linewidth=2.6 if name == recommended else 1.6,
                marker=look.marker,
                label=f"{name}{_RECOMMENDED}" if name == recommended and not narrow else name,
            )
            for distance, gain in gains.items():
                x = distance + apart
                if gain.interval is None:
                    axes.plot(
                        [x], [gain.value], color=look.color, marker=look.marker, markerfacecolor="white", label="_"
                    )
                else:
                    axes.plot([x, x], list(gain.interval), color=look.color, linewidth=1.1, alpha=0.75, label="_")
        axes.set_ylim(
            *_gain_range([*within.values(), *(gain for of in copies.values() for gain in of.values())], bound)
        )
        if bound is not None:
            axes.axhline(bound, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        note = "counts as copying" if bound is not None else "no bound: plain does not copy within its trained length"
        axes.annotate(
            note, (0, bound or 0.0), xycoords=("axes fraction", "data"), xytext=(3, 3), textcoords="offset points",
            fontsize=8, color=QUIET,
        )  # fmt: skip
        axes.set_title(title)
        axes.set_xlabel("tokens back from the window's end")
        axes.set_ylabel("gain on repeated passages (nats per token)" if not narrow else "gain (nats per token)")
        axes.set_xticks([length * part / 4 for part in range(5)])
        length_ticks(axes)
        if narrow:
            figure.legend(loc="outside lower left", ncols=3, fontsize=9)
        else:
            figure.legend(loc="outside right center")
        return figure


def _gain_range(gains: Sequence[MeasuredValue], bound: float | None) -> tuple[float, float]:
    """Return the ends of the axis: all means, and as much of their intervals as leaves the means apart."""
    means = [gain.value for gain in gains]
    low, high = min([0.0, *means]), max([bound or 0.0, 0.1, *means])
    span = high - low
    ends = [end for gain in gains if gain.interval is not None for end in gain.interval]
    low, high = max(min([low, *ends]), low - 0.4 * span), min(max([high, *ends]), high + 0.4 * span)
    return low - 0.08 * (high - low), high + 0.14 * (high - low)  # above: space for the note on the trained length


def _whiskers(values: Sequence[MeasuredValue]) -> list[list[float]] | None:
    """Return the lengths of the intervals below and above the values; None if one has no interval."""
    ends = [(one.value, *one.interval) for one in values if one.interval is not None]
    if len(ends) < len(values):
        return None
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]


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
