"""The figure of `ropewalk classify`: confusion of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import INK, LOOKS, QUIET, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
