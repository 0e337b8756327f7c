"""Tables of positions side by side: what is in them, and how alike two positions are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import INK, bar, caption, heat, panel, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(
    sinusoidal: Any, *, angles: Any, learned: Any, learned_reach: float, alike: Mapping[str, Any], note: str = ""
) -> Figure:
    """Above, the three tables `[positions, features or pairs]`; below, cosines between rows `[positions, positions]`.

    `angles` are in radians; a line marks the first whole turn. Colours of the learned
    table end at `learned_reach`. `alike` has "sinusoidal", "rope" and "learned".
    """
    with style():
        from math import pi

        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        figure = Figure(figsize=(10.6, 7.4))
        (top, bottom) = figure.subplots(2, 3)
        image = heat(top[0], sinusoidal, vmin=-1, vmax=1)
        panel(top[0], "sinusoidal: added to embeddings")
        top[0].set_xlabel("feature")
        bar(figure, image, top[0], "value (no unit)")

        image = heat(top[1], angles.clip(min=angles[1].min()), norm=LogNorm())
        panel(top[1], "RoPE: angles that pairs turn by")
        top[1].set_xlabel("pair (fastest first)")
        if angles.max() > 2 * pi and angles.shape[1] > 1:
            line = top[1].contour(angles, levels=[2 * pi], colors="white", linewidths=2)
            top[1].clabel(line, fmt={2 * pi: "one turn"}, fontsize=9, colors="white")
        drawn = bar(figure, image, top[1], "angle (radians)")
        drawn.ax.yaxis.set_minor_locator(NullLocator())

        image = heat(top[2], learned, vmin=-learned_reach, vmax=learned_reach)
        panel(top[2], "learned: trained, added to embeddings")
        top[2].set_xlabel("feature")
        beyond = "both" if abs(learned).max() > learned_reach else "neither"
        bar(figure, image, top[2], "value (no unit)", extend=beyond)

        for axes, name in zip(bottom, ("sinusoidal", "rope", "learned"), strict=True):
            image = heat(axes, alike[name], vmin=-1, vmax=1)
            panel(axes, {"rope": "RoPE", "learned": "learned"}.get(name, name) + ": how alike positions are")
            axes.set_xlabel("position (tokens)", color=INK)
            bar(figure, image, axes, "cosine (no unit)")
        for axes in (top[0], bottom[0]):
            axes.set_ylabel("position (tokens)")
        caption(figure, "Three tables of positions", note)
        return figure
