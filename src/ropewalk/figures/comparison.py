"""Loss against length and against training, encoding by encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ropewalk.figures.style import OTHER, QUIET, SHADE, length_ticks, look_of, style
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float, tuple[float, float] | None]
"""x, nats per token, and the interval of these (None: there is only one value)."""

ENCODING_LOOKS = {
    "none": Look("#767676", ":", "."),
    "sinusoidal": Look("#d55e00", "--", "s"),
    "learned": Look("#cc79a7", ":", "x"),
    "relative": Look("#767676", "-.", "v"),
    "t5": Look("#009e73", "-.", "^"),
    "transformer_xl": Look("#56b4e9", "--", "P"),
    "alibi": Look("#0072b2", "-", "D"),
    "kerple": Look("#56b4e9", "-", "X"),
    "fire": Look("#e69f00", "-", "*"),
    "xpos": Look("#222222", ":", "d"),
    "rope": Look("#222222", "-", "o"),
}


def loss_by_length(
    encodings: Mapping[str, Sequence[Point]],
    scalings: Mapping[str, Sequence[Point]],
    *,
    trained_length: int,
    title: str = "Loss by length of the text read",
    note: str = "",
) -> Figure:
    """Mean loss (nats per token) at each length (tokens): the encodings left, rope under each scaling right."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(11.0 if scalings else 7.0, 4.6))
        panels = figure.subplots(1, 2 if scalings else 1, sharey=True, squeeze=False)[0]
        _lines(panels[0], encodings, ENCODING_LOOKS, _aside)
        panels[0].set_ylabel("loss (nats per token)")
        panels[0].set_title(title)
        if scalings:
            looks = {name: look_of("plain" if name == "rope" else name) for name in scalings}
            _lines(panels[1], scalings, looks, _aside)
            panels[1].set_title("The same ropes, scaled when tested")
        for axes in panels:
            axes.set_xscale("log", base=2)
            length_ticks(axes)
            axes.set_xticks(sorted({x for points in encodings.values() for x, _, _ in points}))
            axes.minorticks_off()
            axes.set_xlabel("length of the window (tokens)")
            axes.axvline(trained_length, color=QUIET, linewidth=1, zorder=1)
            axes.axvspan(trained_length, right := axes.get_xlim()[1], color=SHADE, zorder=0, linewidth=0)
            axes.set_xlim(right=right)
            axes.annotate(
                "trained length", (trained_length, 1), xycoords=("data", "axes fraction"), xytext=(4, -4),
                textcoords="offset points", va="top", fontsize=8, color=QUIET,
            )  # fmt: skip
            axes.legend(loc="upper left", bbox_to_anchor=(0.08, 0.94), fontsize=8)
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        return figure


def convergence(curves: Mapping[str, Sequence[Point]], *, title: str = "Loss while training", note: str = "") -> Figure:
    """Validation loss (nats per token) at the trained length against tokens trained on."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    with style():
        figure = Figure(figsize=(7.0, 4.6))
        axes = figure.subplots()
        apart = min((b[0] - a[0] for points in curves.values() for a, b in pairwise(points)), default=0.0) / 16
        _lines(axes, curves, ENCODING_LOOKS, lambda x, step: x + apart * step)
        axes.set_title(title)
        axes.set_xlabel("tokens trained on")
        axes.set_ylabel("validation loss (nats per token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.legend(fontsize=8)
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        return figure


def _aside(length: float, step: float) -> float:
    return float(length * 2 ** (step / 24))


def _lines(
    axes: Axes, lines: Mapping[str, Sequence[Point]], looks: Mapping[str, Look], moved: Callable[[float, float], float]
) -> None:
    """Lines with the intervals as bars; `moved(x, step)` sets each line a little aside, so that bars stand apart."""
    for number, (name, points) in enumerate(lines.items()):
        look, step = looks.get(name, OTHER), number - (len(lines) - 1) / 2
        x, y = [moved(point[0], step) for point in points], [point[1] for point in points]
        axes.plot(
            x, y, color=look.color, linestyle=look.line, marker=look.marker, markersize=5, linewidth=1.6, label=name
        )
        for at, (_, _, band) in zip(x, points, strict=True):
            if band is not None:
                axes.errorbar(
                    [at], [sum(band) / 2], yerr=[(band[1] - band[0]) / 2], color=look.color, fmt="none",
                    linewidth=1, capsize=2, alpha=0.7, zorder=1,
                )  # fmt: skip
