"""The map of a needle in a haystack: which facts are found, by the length of the text and their depth in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.figures.style import MAP, RED, WIDE, style, tokens
from ropewalk.imports import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHANCE = 0.25
DARK, LIGHT = "#101010", "#fdfdfd"  # of counts: colours that pages do not change in the dark, because cells keep theirs


def draw_map(
    panels: Sequence[tuple[str, Sequence[Sequence[Any]]]],
    lengths: Sequence[int],
    depths: Sequence[str],
    trained_length: int,
    text: Callable[[Any], str],
    size: tuple[float, float] = WIDE,
    title: str = "",
) -> Figure:
    """Return a figure with a panel for each method: columns are lengths in tokens, rows are depths.

    - `panels`: the title and the cells by row and column, each with `share` (nan: not asked). `text`: of a cell.
    - `trained_length`: a line between the columns. `size`: in inches; panels are one above the other if it is narrow.

    Raises `RopeError` if the extra `figures` is not installed.
    """
    need("matplotlib", extra="figures")
    from matplotlib.figure import Figure

    with style():
        narrow, many = size[0] < WIDE[0], len(panels)
        figure = Figure(figsize=(size[0], size[1] * many if narrow else size[1]))
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold", parse_math=False)
        shape = (many, 1) if narrow else (1, many)
        grid = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True)
        within = sum(length <= trained_length for length in lengths)
        for number, (axes, (said, cells)) in enumerate(zip(grid.flat, panels, strict=True)):
            shares = np.array([[one.share for one in row] for row in cells])
            axes.grid(False)
            axes.pcolormesh(shares, cmap=MAP, vmin=CHANCE, vmax=1, edgecolors="white", linewidth=1.5)
            for (row, column), share in np.ndenumerate(shares):
                axes.annotate(text(cells[row][column]), (column + 0.5, row + 0.5), ha="center", va="center",
                              fontsize=9, color=DARK if share > 0.6 else LIGHT)  # fmt: skip
            if 0 < within < len(lengths):
                axes.axvline(within, color=RED, linewidth=2.5)
            axes.set_xticks(np.arange(len(lengths)) + 0.5, [tokens(length) for length in lengths])
            axes.set_yticks(np.arange(len(depths)) + 0.5, depths)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(said, fontsize=8, fontweight="normal", pad=6)
            if narrow or not number:
                axes.set_ylabel("place of the fact in the text")
            if not narrow or number == many - 1:
                line = f" (line: trained length {tokens(trained_length)})" if 0 < within < len(lengths) else ""
                axes.set_xlabel(f"tokens of the text{line}")
        grid[0, 0].invert_yaxis()
        return figure
