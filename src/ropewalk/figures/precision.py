"""What rounding costs, by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, caption, panel, style
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {
    "angles in bfloat16": Look(PURPLE, ":", "v"),
    "angles in float32": Look(RED, "--", "s"),
    "tables in bfloat16": Look(ORANGE, "-.", "^"),
    "tables in float16": Look(GREEN, "--", "D"),
    "ropewalk": Look(BLUE, "-", "o"),
}
_OTHER = Look(SKY, "-", "P")


def precision(
    positions: Sequence[int],
    *,
    cosines: Mapping[str, Sequence[float]],
    scores: Mapping[str, Sequence[float]],
    distance: int,
    note: str = "",
) -> Figure:
    """Error of cosines (left) and of scores at one distance (right) by position (tokens), for each way of computing."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        figure = Figure(figsize=(9.8, 4.6))
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, curves in ((left, cosines), (right, scores)):
            for name, values in curves.items():
                look = _LOOKS.get(name, _OTHER)
                axes.plot(
                    positions, values, color=look.color, linestyle=look.line, marker=look.marker,
                    markevery=max(1, len(positions) // 8), label=name, linewidth=2.4 if name == "ropewalk" else 1.6,
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=12))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_locator(LogLocator(numticks=12))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(which="minor", length=0)
            axes.set_xlim(positions[0], positions[-1])
            axes.set_xlabel("position (tokens)", color=INK)
        panel(left, "cosine of an angle")
        left.set_ylabel("error (no unit; 1 is the largest cosine)")
        panel(right, f"score of q at m, k at m - {distance}, over |q| |k|")
        right.tick_params(axis="y", labelleft=True)
        right.set_ylabel("error (no unit; 1 is the largest score)")
        caption(figure, "What 32-bit angles and 16-bit tables cost", note)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")
        return figure


def _short(value: float) -> str:
    """Powers of ten as readers of context lengths write them.

    >>> _short(100.0), _short(10_000.0), _short(1e7)
    ('100', '10,000', '10M')
    """
    return f"{value / 1e6:,.0f}M" if value >= 1e6 else f"{value:,.0f}"
