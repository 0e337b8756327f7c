"""Attention maps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import bar, caption, heat, panel, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 1e-3  # weights below share one colour


def maps(rows: Sequence[tuple[str, Sequence[Any]]], *, columns: Sequence[str], note: str = "") -> Figure:
    """One row for each (label, weights `[queries, keys]` of each column); later keys are left white."""
    with style():
        import numpy as np
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2.0 + 2.7 * len(columns), 1.3 + 2.75 * len(rows)))
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
        image = None
        for index, (label, weights) in enumerate(rows):
            for axes, values, name in zip(grid[index], weights, columns, strict=True):
                hidden = np.triu(np.ones(values.shape, dtype=bool), 1)
                shown = np.ma.masked_where(hidden, np.maximum(values, LEAST))
                image = heat(axes, shown, norm=LogNorm(LEAST, 1.0))
                axes.set_aspect("equal")
                axes.spines[["left", "bottom"]].set_visible(False)
                if index == 0:
                    first, colon, rest = name.partition(": ")
                    panel(axes, f"{first}\n{rest}" if colon else f"{first}\n")
                if index == len(rows) - 1:
                    axes.set_xlabel("key position (tokens)")
            grid[index][0].set_ylabel(f"{label}\n\nquery position (tokens)")
        if image is not None:
            bar(figure, image, grid, f"attention weight (no unit; up to {LEAST:g} alike)", shrink=0.6, pad=0.02)
        caption(figure, "Attention maps: what rotation does, and what a shift does not", note)
        return figure
