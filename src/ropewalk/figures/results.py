"""Figures of results: loss by position, comparison of encodings, confusion of classes, verification of engines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ropewalk.figures.style import (
    BLUE,
    INK,
    LOOKS,
    NARROW,
    OTHER,
    PALE,
    QUIET,
    RED,
    SHADE,
    WIDE,
    caption,
    length_ticks,
    look_of,
    mark_trained_length,
    new_figure,
    style,
)
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def loss_by_position(
    blocks: Sequence[tuple[int, int]],
    losses: Mapping[str, Sequence[float]],
    *,
    trained_length: int,
    recommended: str | None = None,
    title: str = "Loss by position",
    narrow: bool = False,
    named: Collection[str] = (),
) -> Figure:
    """Draw the mean loss of each method in each block of positions, the trained length marked.

    **Arguments:**
    - `blocks`: start and end of each, in tokens.
    - `losses`: by method, nats per token of each block.
    - `narrow`: whether to draw for a phone's width; then only the methods in `named` have a colour and a name.
    """
    with style():
        figure, axes = new_figure(*(NARROW if narrow else WIDE))
        middles = [(start + end) / 2 for start, end in blocks]
        last = blocks[-1][1]
        axes.set_xlim(0, last)
        mark_trained_length(axes, trained_length, last)
        for name, values in losses.items():
            quiet = narrow and name not in named
            look = OTHER if quiet else look_of(name)
            chosen = name == recommended
            axes.plot(
                middles,
                values,
                color=PALE if quiet else look.color,
                linestyle=look.line,
                marker="" if quiet else look.marker,
                linewidth=3 if chosen else 1.0 if quiet else 1.6,
                zorder=5 if name == "crop" else 4 if chosen else 2.5 if quiet else 3,
                label="_" if quiet else f"{name} (recommended)" if chosen and not narrow else name,
            )
        axes.set_title(title)
        axes.set_xlabel("position in the window (tokens)")
        axes.set_ylabel("loss (nats per token)")
        step = max(1, len(blocks) // (4 if narrow else 8))
        axes.set_xticks([*(start for start, _ in blocks[::step]), last])
        length_ticks(axes)
        if narrow:
            figure.legend(loc="outside lower left", ncols=3)
        else:
            figure.legend(loc="outside right center")
        return figure


Points = Mapping[str, tuple[Sequence[float], Sequence[Sequence[float] | None]]]
"""By method, a value for each block and its interval."""

_LEAST_RANGE = 0.12  # nats: a smaller axis would make noise look large
_FAR = 3.0  # times the range of the methods below it: such a method is off the scale
_NAMED_OFF_SCALE = 3
MOST_WHISKERS = 5  # methods; whiskers of more would hide each other


def difference_range(differences: Points) -> tuple[float, float]:
    """Return the ends of an axis for small differences; methods with large differences do not influence it.

    >>> low, high = difference_range({"plain": ([0.0, 1.5], [None, None]), "yarn": ([0.01, 0.04], [None, None])})
    >>> -0.1 < low < 0 < 0.1 < high < 0.25
    True
    """
    sizes = {name: max(map(abs, values), default=0.0) for name, (values, _) in differences.items()}
    limit = _LEAST_RANGE
    for number, size in enumerate(sorted(size for name, size in sizes.items() if name != "crop")):
        if number and size > _FAR * limit:
            break
        limit = max(limit, size)
    shown = [differences[name] for name, size in sizes.items() if size <= limit]
    values = [value for of_method, _ in shown for value in of_method]
    ends = [end for _, bands in shown for band in bands if band is not None for end in band]
    low, high = min([-0.4 * _LEAST_RANGE, *values]), max([_LEAST_RANGE, *values])
    span = high - low  # wide intervals are cut, so that the points stay apart
    low, high = max(min([low, *ends]), low - 0.7 * span), min(max([high, *ends]), high + 0.7 * span)
    low, high = low - 0.1 * (high - low), high + 0.06 * (high - low)
    above = sum(max(values, default=0.0) > high for values, _ in differences.values())
    if above:  # space for their names
        high += (0.06 + 0.09 * min(above, _NAMED_OFF_SCALE + 1)) * (high - low)
    return low, high


def off_scale(differences: Points) -> dict[str, float]:
    """Return each method's value farthest beyond the axis, only for methods with such a value."""
    low, high = difference_range(differences)
    found = {
        name: max(beyond, key=abs)
        for name, (values, _) in differences.items()
        if (beyond := [value for value in values if not low <= value <= high])
    }
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def difference_by_position(
    blocks: Sequence[tuple[int, int]],
    differences: Points,
    *,
    trained_length: int,
    recommended: str | None = None,
    title: str = "Loss compared with crop",
    narrow: bool = False,
    named: Collection[str] = (),
) -> Figure:
    """Draw each method's loss minus that of crop in each block of positions, with paired intervals.

    Crop is the zero line. A method that leaves the axes has triangles at the edge and a note with its farthest value.

    **Arguments:**
    - `blocks`: start and end of each, in tokens.
    - `differences`: by method, nats per token of each block and their intervals.
    - `narrow`: for a phone's width.
    - `named`: the methods with a colour and a name in a narrow figure, and those with intervals if there are many.
    """
    with style():
        figure, axes = new_figure(*(NARROW if narrow else WIDE))
        middles, last = [(start + end) / 2 for start, end in blocks], blocks[-1][1]
        low, high = difference_range(differences)
        axes.set_xlim(0, last)
        axes.set_ylim(low, high)
        mark_trained_length(axes, trained_length, last, below=True)
        others = [name for name in differences if name != "crop"]
        axes.axhline(0.0, color=look_of("crop").color, linewidth=1.8, zorder=2, label="crop (zero)")
        for number, name in enumerate(others):
            values, bands = differences[name]
            quiet, chosen = narrow and name not in named, name == recommended
            look = OTHER if quiet else look_of(name)
            color = PALE if quiet else look.color
            apart = 0.006 * last * (number - (len(others) - 1) / 2)
            places = [middle + apart for middle in middles]
            if not quiet and (len(others) <= MOST_WHISKERS or name in named):
                for x, value, band in zip(places, values, bands, strict=True):
                    if band is not None and low <= value <= high:
                        axes.plot([x, x], list(band), color=color, linewidth=1.1, alpha=0.75, zorder=2.4)
            axes.plot(
                places,
                values,
                color=color,
                linestyle=look.line,
                marker="" if quiet else look.marker,
                linewidth=2.6 if chosen else 1.0 if quiet else 1.6,
                zorder=4 if chosen else 2.3 if quiet else 3,
                label="_" if quiet else f"{name} (recommended)" if chosen and not narrow else name,
            )
            _mark_beyond(axes, places, values, color, (low, high))
        _name_beyond(axes, off_scale(differences), above=high)
        axes.set_title(title)
        axes.set_xlabel("position in the window (tokens)")
        axes.set_ylabel("loss minus crop's (nats per token)")
        step = max(1, len(blocks) // (4 if narrow else 8))
        axes.set_xticks([*(start for start, _ in blocks[::step]), last])
        length_ticks(axes)
        if narrow:
            figure.legend(loc="outside lower left", ncols=3)
        else:
            figure.legend(loc="outside right center")
        return figure


def _mark_beyond(
    axes: Axes, places: Sequence[float], values: Sequence[float], color: str, ends: tuple[float, float]
) -> None:
    """Draw a triangle inside the edge for each value beyond the axis."""
    low, high = ends
    inset = 0.025 * (high - low)
    for marker, edge, beyond in (
        ("^", high - inset, [x for x, value in zip(places, values, strict=True) if value > high]),
        ("v", low + inset, [x for x, value in zip(places, values, strict=True) if value < low]),
    ):
        if beyond:
            axes.plot(
                beyond, [edge] * len(beyond), color=color, marker=marker, linestyle="", markersize=6, label="_",
                zorder=5,
            )  # fmt: skip


def _name_beyond(axes: Axes, farthest: Mapping[str, float], *, above: float) -> None:
    """Write the farthest value of each method that leaves the axis, below the upper right corner."""
    lines = [
        (f"{name}: {'worse' if value > above else 'better'} by up to {abs(value):.2f}", look_of(name).color)
        for name, value in list(farthest.items())[:_NAMED_OFF_SCALE]
    ]
    more = len(farthest) - len(lines)
    lines += [(f"and {more} more: see the table", QUIET)] if more > 0 else []
    for number, (line, color) in enumerate(lines):
        axes.annotate(
            line,
            (1, 1),
            xycoords="axes fraction",
            xytext=(-4, -14 - 12 * number),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color=color,
        )


class LookPoint(NamedTuple):
    """The result of one look: number of windows, whether it decided, and two means with intervals, or None."""

    windows: int
    decided: bool
    difference: tuple[float, Sequence[float] | None] | None
    copies: tuple[float, Sequence[float] | None] | None


def growing_answer(
    looks: Sequence[LookPoint],
    *,
    method: str,
    most_loss: float | None = None,
    bound: float | None = None,
    title: str = "The answer by number of windows",
    narrow: bool = False,
) -> Figure:
    """Draw one method's loss minus crop's, and its copies, after each planned number of windows, with intervals.

    **Arguments:**
    - `looks`: points of looks that decided are filled, others are hollow.
    - `most_loss`: the upper limit for the interval. `bound`: the gain that counts as copying.
    - `narrow`: for a phone's width.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(NARROW[0], 4.6) if narrow else (WIDE[0], 3.0))
        left, right = figure.subplots(*((2, 1) if narrow else (1, 2)))
        color = look_of(method).color
        for axes, name, limit, said in (
            (left, "difference", most_loss, "must stay below"),
            (right, "copies", bound, "counts as copying"),
        ):
            found = [(one.windows, one.decided, value) for one in looks if (value := getattr(one, name)) is not None]
            numbers = [one.windows for one in looks]
            axes.set_xscale("log", base=2)
            axes.set_xlim(min(numbers) / 1.4, max(numbers) * 1.4)
            axes.axhline(0.0, color=QUIET, linewidth=0.8)
            axes.plot([n for n, _, _ in found], [mean for _, _, (mean, _) in found], color=color, linewidth=1.2)
            for windows, decided, (mean, band) in found:
                if band is not None:
                    axes.plot([windows, windows], list(band), color=color, linewidth=1.6, label="_")
                axes.plot(
                    [windows], [mean], color=color, marker="o", markersize=7, label="_",
                    markerfacecolor=color if decided else "white",
                )  # fmt: skip
            if limit is not None:
                axes.axhline(limit, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
                axes.annotate(
                    said, (1, limit), xycoords=("axes fraction", "data"), xytext=(-3, 3), textcoords="offset points",
                    ha="right", fontsize=9, color=QUIET,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
                )  # fmt: skip
            if not found:
                axes.annotate("not measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color=QUIET)
                axes.set_yticks([])
            axes.margins(y=0.18)
            axes.set_xticks(numbers, [str(n) for n in numbers])
            axes.minorticks_off()
            axes.set_xlabel("windows")
        left.set_ylabel("loss minus crop's")
        right.set_ylabel("gain on repeated passages")
        caption(figure, title, "" if narrow else "filled: decided; hollow: undecided")
        return figure


Point = tuple[float, float, tuple[float, float] | None]
"""x, nats per token, and their interval; None for a single value."""

ENCODING_LOOKS = {
    "none": Look("#767676", ":", "."),
    "sinusoidal": Look("#d55e00", "--", "s"),
    "learned": Look("#cc79a7", ":", "x"),
    "relative": Look("#767676", "-.", "v"),
    "t5": Look("#009e73", "-.", "^"),
    "transformer_xl": Look("#56b4e9", "--", "P"),
    "alibi": Look("#0072b2", "-", "D"),
    "kerple": Look("#56b4e9", "-", "X"),
    "fire": Look("#e69f00", "-", "*"),
    "xpos": Look("#222222", ":", "d"),
    "fox": Look("#d55e00", "-", "v"),
    "path": Look("#cc79a7", "-", "s"),
    "selective_rope": Look("#009e73", "--", "o"),
    "grape": Look("#767676", "--", "^"),
    "grape_additive": Look("#e69f00", "-.", "D"),
    "rope": Look("#222222", "-", "o"),
}


def loss_by_length(
    encodings: Mapping[str, Sequence[Point]],
    scalings: Mapping[str, Sequence[Point]],
    *,
    trained_length: int,
    title: str = "Loss by length of the window",
    note: str = "",
) -> Figure:
    """Draw the mean loss (nats per token) by length (tokens), of each encoding and of rope under each scaling."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(11.0 if scalings else 7.0, 4.6))
        panels = figure.subplots(1, 2 if scalings else 1, sharey=True, squeeze=False)[0]
        _lines(panels[0], encodings, ENCODING_LOOKS, _aside)
        panels[0].set_ylabel("loss (nats per token)")
        panels[0].set_title(title)
        if scalings:
            looks = {name: look_of("plain" if name == "rope" else name) for name in scalings}
            _lines(panels[1], scalings, looks, _aside)
            panels[1].set_title("The same ropes, scaled in the test")
        for axes in panels:
            axes.set_xscale("log", base=2)
            length_ticks(axes)
            axes.set_xticks(sorted({x for points in encodings.values() for x, _, _ in points}))
            axes.minorticks_off()
            axes.set_xlabel("length of the window (tokens)")
            axes.axvline(trained_length, color=QUIET, linewidth=1, zorder=1)
            axes.axvspan(trained_length, right := axes.get_xlim()[1], color=SHADE, zorder=0, linewidth=0)
            axes.set_xlim(right=right)
            axes.annotate(
                "trained length", (trained_length, 1), xycoords=("data", "axes fraction"), xytext=(4, -4),
                textcoords="offset points", va="top", fontsize=8, color=QUIET,
            )  # fmt: skip
            axes.legend(loc="upper left", bbox_to_anchor=(0.08, 0.94), fontsize=8)
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        return figure


def convergence(curves: Mapping[str, Sequence[Point]], *, title: str = "Loss while training", note: str = "") -> Figure:
    """Draw the validation loss (nats per token) at the trained length by training tokens."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    with style():
        figure = Figure(figsize=(7.0, 4.6))
        axes = figure.subplots()
        apart = min((b[0] - a[0] for points in curves.values() for a, b in pairwise(points)), default=0.0) / 16
        _lines(axes, curves, ENCODING_LOOKS, lambda x, step: x + apart * step)
        axes.set_title(title)
        axes.set_xlabel("training tokens")
        axes.set_ylabel("validation loss (nats per token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.legend(fontsize=8)
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        return figure


def _aside(length: float, step: float) -> float:
    return float(length * 2 ** (step / 24))


def _lines(
    axes: Axes, lines: Mapping[str, Sequence[Point]], looks: Mapping[str, Look], moved: Callable[[float, float], float]
) -> None:
    """Draw lines with their intervals as bars; `moved(x, step)` shifts each line, so that bars do not overlap."""
    for number, (name, points) in enumerate(lines.items()):
        look, step = looks.get(name, OTHER), number - (len(lines) - 1) / 2
        x, y = [moved(point[0], step) for point in points], [point[1] for point in points]
        axes.plot(
            x, y, color=look.color, linestyle=look.line, marker=look.marker, markersize=5, linewidth=1.6, label=name
        )
        for at, (_, _, band) in zip(x, points, strict=True):
            if band is not None:
                axes.errorbar(
                    [at], [sum(band) / 2], yerr=[(band[1] - band[0]) / 2], color=look.color, fmt="none",
                    linewidth=1, capsize=2, alpha=0.7, zorder=1,
                )  # fmt: skip


Counts = Sequence[Sequence[int]]
READABLE = 16  # classes of a matrix with legible names and numbers
SHORT = 12  # characters of a name that fits below a column


def confusion(
    counts: Counts,
    labels: Sequence[str],
    *,
    most: int = READABLE,
    pairs: int = 15,
    title: str = "Confusion of classes",
) -> Figure:
    """Draw the number of rows of each class that were assigned to each class, and the `pairs` most frequent confusions.

    **Arguments:**
    - `counts`: rows, `[true][predicted]`.
    - `most`: largest number of classes in the matrix. If there are more, it shows only those of the most confused
      pairs, and its last column, "other", counts the rest.
    """
    with style():
        from matplotlib.figure import Figure

        worst = worst_pairs(counts)
        shown = _block(worst, len(labels), most)
        bars = worst[:pairs]
        height = 2.2 + 0.36 * max(len(shown), len(bars), 3)
        figure = Figure(figsize=(13.5, height) if bars else (8.0, height))
        ratios = (2.2, 1.0) if bars else (1.0,)
        grid = figure.add_gridspec(1, len(ratios), width_ratios=ratios)
        matrix = figure.add_subplot(grid[0, 0])
        _draw_matrix(matrix, counts, labels, shown)
        if bars:
            _draw_pairs(figure.add_subplot(grid[0, 1]), bars, labels)
        total, right = sum(map(sum, counts)), sum(counts[i][i] for i in range(len(labels)))
        wrong, named = total - right, sum(rows for _, _, rows in bars)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=13)
        which = f"{len(shown)} of {len(labels)} classes" if len(shown) < len(labels) else f"{len(labels)} classes"
        errors = f"; the pairs hold {named} of {wrong} errors" if wrong else ""
        figure.supxlabel(
            f"{which}; {right:,} of {total:,} rows right{errors}",
            fontsize=9, color=QUIET, x=0.01, ha="left",
        )  # fmt: skip
        return figure


def worst_pairs(counts: Counts) -> list[tuple[int, int, int]]:
    """Return (true class, predicted class, rows) of every confusion, most rows first.

    >>> worst_pairs([[5, 1], [3, 4]])
    [(1, 0, 3), (0, 1, 1)]
    """
    confusions = [(a, b, int(n)) for a, row in enumerate(counts) for b, n in enumerate(row) if a != b and n]
    return sorted(confusions, key=lambda pair: (-pair[2], pair[:2]))


def _block(worst: Sequence[tuple[int, int, int]], classes: int, most: int) -> list[int]:
    """Return all classes, or up to `most` of the worst pairs, partners next to each other."""
    if classes <= most:
        return list(range(classes))
    chosen: list[int] = []
    for true, predicted, _ in worst:
        new = [index for index in (true, predicted) if index not in chosen]
        if len(chosen) + len(new) > most:
            break
        partner = next((chosen.index(index) for index in (true, predicted) if index in chosen), len(chosen))
        chosen[partner + 1 : partner + 1] = new
    return chosen or list(range(most))


def _draw_matrix(axes: Axes, counts: Counts, labels: Sequence[str], shown: Sequence[int]) -> None:
    """Draw shares of the true class as colours, and rows as numbers."""
    rest = len(shown) < len(labels)
    cells = [[counts[a][b] for b in shown] for a in shown]
    if rest:
        for row, a in zip(cells, shown, strict=True):
            row.append(sum(counts[a]) - sum(row))
    sums = [max(1, sum(counts[a])) for a in shown]
    shares = [[n / total for n in row] for row, total in zip(cells, sums, strict=True)]
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.grid(False)
    for place, values in enumerate(cells):
        for column, n in enumerate(values):
            if n:
                dark = shares[place][column] > 0.55
                axes.text(column, place, str(n), ha="center", va="center", fontsize=8, color="white" if dark else INK)
    rows, columns = [labels[a] for a in shown], [labels[b] for b in shown]
    if max(map(len, rows)) > SHORT:  # number the columns, and repeat the numbers at the rows
        columns = [str(number) for number in range(1, len(shown) + 1)]
        rows = [f"{label}  {number}" for label, number in zip(rows, columns, strict=True)]
    axes.set_xticks(range(len(cells[0])), [*columns, *(["other"] if rest else [])], fontsize=8)
    axes.set_yticks(range(len(shown)), rows, fontsize=8)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title("Test rows (colour: share of the true class)", fontsize=10, fontweight="normal")


def _draw_pairs(axes: Axes, bars: Sequence[tuple[int, int, int]], labels: Sequence[str]) -> None:
    """Draw the worst pairs by name."""
    from matplotlib.ticker import MaxNLocator

    places = list(range(len(bars)))
    axes.barh(places, [rows for _, _, rows in bars], height=0.6, color=LOOKS["yarn"].color)
    for place, (_, _, rows) in zip(places, bars, strict=True):
        axes.annotate(str(rows), (rows, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    names = [f"{labels[true]}\n\u2192 {labels[predicted]}" for true, predicted, _ in bars]
    axes.set_yticks(places, names, fontsize=7.5)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("test rows")
    axes.set_title("The most confused pairs", fontsize=10, fontweight="normal")


SHOWN = 16  # hypotheses


def misfits(record: Mapping[str, Any]) -> Figure:
    """Draw the misfit of each hypothesis (mean absolute difference of log-probabilities in nats), total and by prompt.

    A line marks the engine's own error.

    **Arguments:**
    - `record`: the document of `ropewalk verify --json`.
    """
    from matplotlib.figure import Figure

    rows = [entry for entry in record["hypotheses"] if entry["misfit"] is not None][:SHOWN]
    with style():
        figure = Figure(figsize=(7.4, 1.4 + 0.26 * len(rows)))
        axes = figure.add_subplot()
        for place, entry in enumerate(rows):
            color = BLUE if entry["name"] == "as expected" else RED if place == 0 else QUIET
            each = [
                prompt["misfit"][entry["name"]] for prompt in record["prompts"] if entry["name"] in prompt["misfit"]
            ]
            axes.plot(each, [place] * len(each), linestyle="none", marker="|", color=color, alpha=0.6)
            axes.plot([entry["misfit"]], [place], linestyle="none", marker="o", color=color)
        if record["noise"]:
            axes.axvline(record["noise"], color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [entry["name"] for entry in rows])
        axes.invert_yaxis()
        axes.set_xlabel("misfit (nats): all prompts (dot), each prompt (stroke)")
        caption(figure, f"{record['model']} in {record['engine']}", textwrap.fill(record["verdict"]["sentence"], 100))
    return figure
