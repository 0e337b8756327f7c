"""Figures of loss by position."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.figures.style import (
    NARROW,
    OTHER,
    PALE,
    QUIET,
    WIDE,
    length_ticks,
    look_of,
    mark_trained_length,
    new_figure,
    style,
)

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
