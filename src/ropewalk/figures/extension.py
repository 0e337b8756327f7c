"""Draw an extension's record, and the experiment on windows that skip."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.figures.loss import loss_by_position
from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    SKY,
    caption,
    length_ticks,
    new_figure,
    panel,
    style,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
