"""Figures of results: loss by position, comparison of encodings, confusion of classes, verification of engines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

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


Intervals = Sequence[tuple[float, float] | None]


def loss_by_position(
    blocks: Sequence[tuple[int, int]],
    losses: Mapping[str, Sequence[float]],
    *,
    trained_length: int,
    intervals: Mapping[str, Intervals] | None = None,
    recommended: str | None = None,
    title: str = "Loss by position",
    narrow: bool = False,
    named: Collection[str] = (),
) -> Figure:
    """Draw the mean loss of each method in each block of positions, the trained length marked.

    **Arguments:**
    - `blocks`: start and end of each, in tokens.
    - `losses`: by method, nats per token of each block.
    - `intervals`: by method, the interval of the paired difference to plain in each block, added to the loss; None if
      there is none.
    - `narrow`: for a phone's width; only the methods in `named` have a colour and a name.
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
            bands = None if quiet else (intervals or {}).get(name)
            shown = [(x, band) for x, band in zip(middles, bands or (), strict=False) if band is not None]
            if shown:
                axes.fill_between(
                    [x for x, _ in shown],
                    [low for _, (low, _) in shown],
                    [high for _, (_, high) in shown],
                    color=look.color,
                    alpha=0.15,
                    linewidth=0,
                    zorder=2,
                )
        if not narrow and any(band is not None for bands in (intervals or {}).values() for band in bands):
            figure.supxlabel(
                "bands: 95 % interval of the paired difference to plain", fontsize=8, color=QUIET, x=0.01, ha="left"
            )
        means = [value for values in losses.values() for value in values]
        margin = 0.25 * (max(means) - min(means)) or 1.0
        low, high = axes.get_ylim()  # bands of a few windows are so wide that the curves would look flat
        axes.set_ylim(max(low, min(means) - margin), min(high, max(means) + margin))
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


def extension_figure(record: Mapping[str, Any]) -> Figure:
    """Draw the loss by position before and after an extension; variants under crop are only in the table."""
    return loss_by_position(
        record["blocks"],
        {
            variant["name"]: np.mean(variant["loss_by_window_and_block"], axis=0).tolist()
            for variant in record["variants"]
            if not variant["name"].endswith(" crop")
        },
        trained_length=record["protocol"]["trained_length"],
        title=f"{record['model']}: loss by position, before and after",
    )


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
    """Draw the mean loss (nats per token) by length (tokens): of each encoding, and of rope under each scaling."""
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
    - `most`: with more classes the matrix shows only those of the most confused pairs; its last column, "other", counts
      the rest.
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
    """Draw the misfit of each hypothesis: mean absolute difference of log-probabilities in nats, in all and by prompt.

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
