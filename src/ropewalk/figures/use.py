"""Figures of copies and retrieval: gain of copies by distance, accuracy of retrieval by depth and distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.figures.style import (
    NARROW,
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


WITHIN = "plain within its trained length"
_RECOMMENDED = " (recommended)"


class MeasuredValue(NamedTuple):
    """A gain in nats per token or a fraction of 1, and its interval (None: too few values)."""

    value: float
    interval: tuple[float, float] | None


Copies = Mapping[str, Mapping[float, MeasuredValue]]
"""By method, the gain at each distance in tokens."""


def copies_by_distance(
    copies: Copies,
    *,
    length: int,
    trained_length: int,
    control: Mapping[float, MeasuredValue] | None = None,
    bound: float | None = None,
    recommended: str | None = None,
    title: str = "Copies",
    narrow: bool = False,
) -> Figure:
    """Draw the gain on repeated passages by their distance from the end of the window, for each method.

    A point without an interval is hollow. Intervals that leave the axes are cut.

    **Arguments:**
    - `length`: tokens of the window. `control`: the model's gain at its trained length.
    - `bound`: the gain that counts as copying; None if the model does not copy at its trained length.
    - `narrow`: for a phone's width.
    """
    with style():
        figure, axes = new_figure(*(NARROW if narrow else WIDE))
        axes.set_xlim(0, length)
        mark_trained_length(axes, trained_length, length)
        axes.axhline(0.0, color=QUIET, linewidth=0.8)
        within = dict(sorted((control or {}).items()))
        if within:
            label = "plain, trained length" if narrow else WITHIN
            axes.fill_between(
                list(within), [gain.value for gain in within.values()], color=PALE, alpha=0.35, linewidth=0, zorder=1
            )
            axes.plot(
                list(within), [gain.value for gain in within.values()], color=QUIET, linestyle=":", marker=".",
                label=label,
            )  # fmt: skip
        for number, (name, gains) in enumerate(copies.items()):
            look, apart = look_of(name), 0.006 * length * (number - (len(copies) - 1) / 2)
            axes.plot(
                [distance + apart for distance in gains],
                [gain.value for gain in gains.values()],
                color=look.color,
                linestyle=look.line,
                linewidth=2.6 if name == recommended else 1.6,
                marker=look.marker,
                label=f"{name}{_RECOMMENDED}" if name == recommended and not narrow else name,
            )
            for distance, gain in gains.items():
                x = distance + apart
                if gain.interval is None:
                    axes.plot(
                        [x], [gain.value], color=look.color, marker=look.marker, markerfacecolor="white", label="_"
                    )
                else:
                    axes.plot([x, x], list(gain.interval), color=look.color, linewidth=1.1, alpha=0.75, label="_")
        axes.set_ylim(
            *_gain_range([*within.values(), *(gain for of in copies.values() for gain in of.values())], bound)
        )
        if bound is not None:
            axes.axhline(bound, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        note = "counts as copying" if bound is not None else "no bound: plain does not copy within its trained length"
        axes.annotate(
            note, (0, bound or 0.0), xycoords=("axes fraction", "data"), xytext=(3, 3), textcoords="offset points",
            fontsize=8, color=QUIET,
        )  # fmt: skip
        axes.set_title(title)
        axes.set_xlabel("tokens back from the window's end")
        axes.set_ylabel("gain on repeated passages (nats per token)" if not narrow else "gain (nats per token)")
        axes.set_xticks([length * part / 4 for part in range(5)])
        length_ticks(axes)
        if narrow:
            figure.legend(loc="outside lower left", ncols=3, fontsize=9)
        else:
            figure.legend(loc="outside right center")
        return figure


def _gain_range(gains: Sequence[MeasuredValue], bound: float | None) -> tuple[float, float]:
    """Return the ends of the axis: all means, and as much of their intervals as leaves the means apart."""
    means = [gain.value for gain in gains]
    low, high = min([0.0, *means]), max([bound or 0.0, 0.1, *means])
    span = high - low
    ends = [end for gain in gains if gain.interval is not None for end in gain.interval]
    low, high = max(min([low, *ends]), low - 0.4 * span), min(max([high, *ends]), high + 0.4 * span)
    return low - 0.08 * (high - low), high + 0.14 * (high - low)  # above: space for the note on the trained length


def _whiskers(values: Sequence[MeasuredValue]) -> list[list[float]] | None:
    """Return the lengths of the intervals below and above the values; None if one has no interval."""
    ends = [(one.value, *one.interval) for one in values if one.interval is not None]
    if len(ends) < len(values):
        return None
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]
