"""The two pairings, drawn, and what confusing them costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, RED, SKY, caption, panel, style
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, QUIET, INK)
_BARS = {
    "its own pairing": Look(BLUE, ""),
    "the wrong pairing": Look(RED, "////"),
    "converted": Look(SKY, "...."),
}


def pairing(
    pairs: Mapping[str, Sequence[tuple[int, int]]], *, losses: Mapping[str, Mapping[str, Any]], note: str = ""
) -> Figure:
    """Left, the features of each pair joined by arcs, for each convention; right, loss (nats per token) of each model.

    Of each model `losses` holds "bars", (mean, low, high) by case, and "uniform", the loss of an even guess.
    """
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch

        width = max(4.9, 2.4 + 1.7 * len(losses))
        figure = Figure(figsize=(4.5 + width, 4.8))
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(4.5, width))[0]
        tall = [1.3 + 0.32 * len(joined) * (joined[0][1] - joined[0][0] > 1) for joined in pairs.values()]
        grid = left.subplots(len(pairs), 1, squeeze=False, height_ratios=tall)[:, 0]
        for axes, (name, joined) in zip(grid, pairs.items(), strict=True):
            features = 2 * len(joined)
            top = 0.0
            for number, (a, b) in enumerate(joined):
                color = _COLORS[number % len(_COLORS)]
                for feature in (a, b):
                    axes.add_patch(
                        FancyBboxPatch(
                            (feature - 0.33, -0.3), 0.66, 0.6, boxstyle="round,pad=0,rounding_size=0.12",
                            facecolor="white", edgecolor=color, linewidth=2,
                        )
                    )  # fmt: skip
                    axes.text(feature, 0, str(number), ha="center", va="center", fontsize=10, color=INK)
                level = 0.6 + (0.32 * number if b - a > 1 else 0.0)  # arcs that cross each have a height of their own
                axes.plot([a, a, b, b], [0.3, level, level, 0.3], color=color, linewidth=1.6)
                top = max(top, level)
            axes.set_xlim(-0.7, features - 0.3)
            axes.set_ylim(-0.5, top + 0.2)
            axes.set_aspect("equal", anchor="NW")
            axes.grid(False)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_xticks(range(features))
            panel(axes, name + " (number in the box: pair)")
            axes.set_xlabel("feature of the head (index)")
        caption(left, "Which features form a pair")
        axes = right.add_subplot()
        thick = 0.26
        for place, of_model in enumerate(losses.values()):
            for index, (case, (mean, low, high)) in enumerate(of_model["bars"].items()):
                look = _BARS.get(case, Look(QUIET))
                axes.bar(
                    place + (index - 1) * thick, mean, thick * 0.9, color=look.color, hatch=look.line,
                    edgecolor="white", linewidth=0, label=None if place else case,
                )  # fmt: skip
                axes.errorbar(
                    place + (index - 1) * thick, mean, yerr=[[mean - low], [high - mean]], color=INK, linewidth=1.2,
                    capsize=3,
                )  # fmt: skip
                axes.annotate(
                    f"{mean:.2f}", (place + (index - 1) * thick, high), xytext=(0, 3), textcoords="offset points",
                    ha="center", fontsize=9,
                )  # fmt: skip
            axes.plot(
                [place - 0.45, place + 0.45], [of_model["uniform"]] * 2, color=QUIET, linestyle=":", linewidth=1.6
            )
        axes.set_xticks(range(len(losses)), list(losses))
        axes.set_xlim(-0.6, len(losses) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("loss (nats per token)")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, fontsize=9, columnspacing=1.2)
        caption(right, "What the wrong pairing costs")
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        return figure
