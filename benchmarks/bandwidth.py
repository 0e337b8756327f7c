"""Draw the share of copy bandwidth by size: how near each way of rotating comes to a copy of the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import INK, OTHER, QUIET, length_ticks, style
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Curve = Sequence[tuple[int, float]]

_OURS = "#d55e00"
_LOOKS = {
    "ropewalk, in place": Look(_OURS, "-", "o"),
    "ropewalk, given output": Look(_OURS, "--", "s"),
    "ropewalk, new output": Look(_OURS, ":", "D"),
    "ropewalk, backward": Look(_OURS, "-.", "h"),
    "transformers": Look("#222222", "-", "X"),
    "torch.compile": Look("#0072b2", "-", "^"),
    "onnxruntime": Look("#009e73", "-", "v"),
    "OpenVINO": Look("#56b4e9", "-", "P"),
    "jax.jit": Look("#cc79a7", "-", "<"),
    "rotary-embedding-torch": Look("#e69f00", "-", ">"),
    "Liger-Kernel": Look("#009e73", "--", "*"),
    "flash-attention": Look("#56b4e9", "--", "p"),
}


def copy_bandwidth(
    panels: Mapping[str, Mapping[str, Curve]], *, title: str = "Share of copy bandwidth", note: str = ""
) -> Figure:
    """One panel for each entry of `panels`: (tokens, share) of each contender; 1 is the speed of the copy.

    `note` stands small below: what was timed, and on what.
    """
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        figure = Figure(figsize=(2.4 + 4.0 * len(panels), 5.0))
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        lines: dict[str, Line2D] = {}
        for axes, (name, curves) in zip(grid, panels.items(), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.axhline(1.0, color=QUIET, linewidth=1)
            for contender, curve in curves.items():
                look = _LOOKS.get(contender, OTHER)
                ours = contender.startswith("ropewalk")
                (line,) = axes.plot(
                    [tokens for tokens, _ in curve],
                    [share for _, share in curve],
                    color=look.color,
                    linestyle=look.line,
                    marker=look.marker,
                    linewidth=2.4 if ours else 1.4,
                    zorder=4 if ours else 3,
                    label=contender,
                )
                lines.setdefault(contender, line)
            axes.set_xticks(sorted({tokens for curve in curves.values() for tokens, _ in curve}))
            length_ticks(axes)
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="x", which="minor", length=0)
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="y", which="minor", length=0)
            axes.set_title(name, fontsize=10, fontweight="normal", color=INK, pad=6)
            axes.set_xlabel("tokens")
        grid[0].set_ylabel("speed (the plain copy: 100 %)")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        order = {name: place for place, name in enumerate(_LOOKS)}
        names = sorted(lines, key=lambda name: order.get(name, len(order)))
        figure.legend(handles=[lines[name] for name in names], loc="outside right center")
        return figure
