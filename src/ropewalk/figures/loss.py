"""Figures of losses: by position, and of an extension's record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    NARROW,
    ORANGE,
    OTHER,
    PALE,
    PURPLE,
    QUIET,
    RED,
    SKY,
    WIDE,
    caption,
    length_ticks,
    look_of,
    mark_trained_length,
    new_figure,
    panel,
    style,
)  # fmt: skip

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
    """Mean loss (nats per token) of each method in each block of positions (tokens), the trained length marked.

    `intervals` holds low and high for each block (None where there is none): the paired difference to plain, put around
    the curve. `narrow`: for a phone's width, where only the methods in `named` have a colour and a name.
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
        room = 0.25 * (max(means) - min(means)) or 1.0
        low, high = axes.get_ylim()  # a few windows give bands so wide that the curves would lie flat
        axes.set_ylim(max(low, min(means) - room), min(high, max(means) + room))
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
    """Draw the loss by position before and after; fresh windows of method and tuned weights are only in the table."""
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


def pose_figure(record: Mapping[str, Any]) -> Figure:
    """Draw each arm of `benchmarks/pose.py`: the interaction at each length, and what copying gains, if measured."""
    colors = dict(zip(record["arms"], cycle((BLUE, RED, GREEN, PURPLE, ORANGE, INK, SKY)), strict=False))
    markers = dict(zip(record["arms"], cycle("osD^vPX*h"), strict=False))
    copied = any(found["copy"] for found in (*record["untuned"].values(), *record["arms"].values()))
    with style():
        figure, left = new_figure(11.0 if copied else 8.5, 4.3 if copied else 1.5 + 0.5 * len(record["arms"]))
        left.remove()
        left, *rest = figure.subplots(1, 2 if copied else 1, squeeze=False)[0]
        panel(left, "interaction up to each length, nats per token")
        left.axvline(0, color=INK, linewidth=0.8)
        lengths = record["lengths"]
        for place, (arm, found) in enumerate(record["arms"].items()):
            for row in found["beyond"]:
                mean, ends = row["interaction"]["nats"], row["interaction"]["ci"]
                at = place + 0.22 * (lengths.index(row["length"]) - (len(lengths) - 1) / 2)
                around = None if ends is None else [[mean - ends[0]], [ends[1] - mean]]
                left.errorbar(mean, at, xerr=around, color=colors[arm], marker=markers[arm], linestyle="", capsize=3)
                left.annotate(f" {row['length']:,}", (mean if ends is None else ends[1], at), color=QUIET, fontsize=8,
                              va="center")  # fmt: skip
        left.set_yticks(range(len(record["arms"])), list(record["arms"]))
        left.set_ylim(len(record["arms"]) - 0.5, -0.5)
        left.margins(x=0.2)
        for right in rest:
            _copies(figure, right, record, colors, markers)
        windows = record["protocol"]["windows"] * len(record["protocol"]["texts"])
        dotted = "; the trained length is dotted" if copied else ""
        note = f"{windows} windows; 95 % intervals, paired by window{dotted}."
        caption(figure, f"{record['model']}: tuned on windows that skip, and controls", note)
    return figure


def _copies(
    figure: Figure, axes: Axes, record: Mapping[str, Any], colors: Mapping[str, str], markers: Mapping[str, str]
) -> None:
    """Draw what a copy gains by its distance, under every model of a record of PoSE."""
    panel(axes, f"copy test at {record['lengths'][-1]:,} tokens: nats gained, by distance")
    untuned = dict(zip(record["untuned"], (QUIET, SKY), strict=False))
    curves = [(f"{name}, untuned", untuned.get(name, QUIET), "", found) for name, found in record["untuned"].items()]
    curves += [(arm, colors[arm], markers[arm], found) for arm, found in record["arms"].items()]
    for name, color, marker, found in curves:
        rows = [row for row in found["copy"] if row.get("window") == record["lengths"][-1]]
        if rows:
            axes.plot([row["distance"] for row in rows], [row["gain"] for row in rows], color=color, marker=marker,
                      linestyle="-" if marker else "--", label=name)  # fmt: skip
    axes.axvline(record["trained_length"], color=QUIET, linestyle=":")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("distance, tokens")
    length_ticks(axes)
    if axes.lines[2:]:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8)
