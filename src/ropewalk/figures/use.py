"""Draw the gain from a copy far back by its distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ropewalk.figures.style import (
    NARROW,
    QUIET,
    WIDE,
    length_ticks,
    look_of,
    mark_trained_length,
    panel,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WITHIN = "plain, within the trained length"  # at a phone's width: "plain, within"

_RECOMMENDED = " (recommended)"


class Gain(NamedTuple):
    """A gain in nats per token, and its interval (None: one window)."""

    value: float
    interval: tuple[float, float] | None


Copies = Mapping[str, Mapping[int, Gain]]
"""By method, the gain at each distance in tokens."""


def gain_by_distance(
    copies: Copies,
    *,
    trained_length: int,
    control: Mapping[int, Gain] | None = None,
    needed: float | None = None,
    recommended: str | None = None,
    title: str = "Use of far tokens",
    narrow: bool = False,
) -> Figure:
    """Draw the copy test's gain of each method by distance, in nats per token.

    - `control`: the copy test's gain within the trained length. `needed`: half of it, which counts as use.
    - `narrow`: for a phone's width.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=NARROW if narrow else WIDE)
        _draw_copies(figure.subplots(), copies, control or {}, trained_length, needed, recommended)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        _legend(figure, narrow)
        return figure


def _legend(figure: Figure, narrow: bool) -> None:
    """Each name once, below the panels; the shorter names at a phone's width."""
    lines: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            short = label.removesuffix(_RECOMMENDED).replace(WITHIN, "plain, within")
            lines.setdefault(short if narrow else label, handle)
    tight = {"fontsize": 9, "handlelength": 1.6, "columnspacing": 1.0} if narrow else {}
    figure.legend(lines.values(), lines.keys(), loc="outside lower left", ncols=4, **tight)


def _draw_copies(
    axes: Axes,
    copies: Copies,
    control: Mapping[int, Gain],
    trained_length: int,
    needed: float | None,
    recommended: str | None,
) -> None:
    """Lines by distance, on an axis that doubles."""
    distances = sorted({*control, *(distance for gains in copies.values() for distance in gains)})
    axes.set_xscale("log", base=2)
    axes.set_xlim(distances[0] / 1.15, distances[-1] * 1.15)
    mark_trained_length(axes, trained_length, distances[-1] * 1.15)
    axes.axhline(0.0, color=QUIET, linewidth=0.8)
    if needed is not None:
        axes.axhline(needed, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            "counts as use",
            (1, needed),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=QUIET,
        )
    elif control:
        axes.annotate(
            "not measured: the model does not copy\nwithin its trained length either",
            (0, 0),
            xycoords="axes fraction",
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=9,
            color=QUIET,
        )
    if control:
        axes.plot(list(control), [gain.value for gain in control.values()], color=QUIET, linestyle=":", label=WITHIN)
    for name, gains in copies.items():
        look = look_of(name)
        axes.errorbar(
            list(gains),
            [gain.value for gain in gains.values()],
            yerr=_reach_of(list(gains.values())),
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            linewidth=2.6 if name == recommended else 1.6,
            elinewidth=1,
            capsize=2,
            label=_label(name, recommended),
        )
    panel(axes, "a block of random words, copied")
    axes.set_xlabel("how far back the copy stands (tokens)")
    axes.set_ylabel("gain (nats per token)")
    axes.set_xticks(_doublings(distances[0], distances[-1]))
    axes.minorticks_off()
    length_ticks(axes)


def _reach_of(gains: Sequence[Gain]) -> list[list[float]] | None:
    """How far the intervals reach below and above; None where there are none."""
    if any(gain.interval is None for gain in gains):
        return None
    ends = [(gain.value, *gain.interval) for gain in gains if gain.interval is not None]
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]


def _label(name: str, recommended: str | None) -> str:
    return f"{name}{_RECOMMENDED}" if name == recommended else name


def _doublings(first: int, last: int) -> list[int]:
    """Powers of two between two distances, five at most; the distances themselves where there is none."""
    powers = [1 << n for n in range(40) if first <= 1 << n <= last]
    step = -(-len(powers) // 5)
    return powers[:: step or 1] or sorted({first, last})
