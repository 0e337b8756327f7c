"""Loss by position: where each method's context stops paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import QUIET, SHADE, length_ticks, look_of, new_figure, style, tokens

if TYPE_CHECKING:
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
) -> Figure:
    """Mean loss (nats per token) of each method in each block of positions (tokens), the trained length marked.

    `intervals` holds low and high for each block (None where there is none): the paired difference to plain, put around
    the curve.
    """
    with style():
        figure, axes = new_figure()
        middles = [(start + end) / 2 for start, end in blocks]
        last = blocks[-1][1]
        axes.set_xlim(0, last)
        if trained_length < last:
            axes.axvspan(trained_length, last, color=SHADE, zorder=0, linewidth=0)
            axes.axvline(trained_length, color=QUIET, linewidth=1)
            axes.annotate(
                f"trained length {tokens(trained_length)}",
                (trained_length, 1),
                xycoords=("data", "axes fraction"),
                xytext=(5, -4),
                textcoords="offset points",
                va="top",
                fontsize=9,
                color=QUIET,
            )
        for name, values in losses.items():
            look = look_of(name)
            chosen = name == recommended
            axes.plot(
                middles,
                values,
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                linewidth=3 if chosen else 1.6,
                zorder=5 if name == "crop" else 4 if chosen else 3,
                label=f"{name} (recommended)" if chosen else name,
            )
            bands = (intervals or {}).get(name)
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
        if any(band is not None for bands in (intervals or {}).values() for band in bands):
            figure.supxlabel(
                "bands: 95 % interval of the paired difference to plain", fontsize=8, color=QUIET, x=0.01, ha="left"
            )
        means = [value for values in losses.values() for value in values]
        room = 0.25 * (max(means) - min(means)) or 1.0
        low, high = axes.get_ylim()  # a few windows give bands so wide that the curves would lie flat
        axes.set_ylim(max(low, min(means) - room), min(high, max(means) + room))
        axes.set_title(title)
        axes.set_xlabel("position in the window (tokens)")
        axes.set_ylabel("loss (nats per token)")
        step = max(1, len(blocks) // 8)
        axes.set_xticks([*(start for start, _ in blocks[::step]), last])
        length_ticks(axes)
        figure.legend(loc="outside right center")
        return figure
