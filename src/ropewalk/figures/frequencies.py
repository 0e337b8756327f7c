"""Wavelengths against lengths, and what each method does to every pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import INK, QUIET, SHADE, length_ticks, look_of, new_figure, style, tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def wavelengths(
    unscaled: Sequence[float | None],
    *,
    trained_length: int | None,
    target: int,
    scaled: Mapping[str, Sequence[float | None]] | None = None,
    title: str = "Wavelength of each pair",
) -> Figure:
    """Tokens per turn of each pair (None: it does not turn), with the trained length and the target as lines.

    Pairs above the trained length never completed a turn in training. `scaled` adds the wavelengths of methods.
    """
    with style():
        from matplotlib.ticker import MaxNLocator

        figure, axes = new_figure()
        axes.set_yscale("log", base=2)
        pairs = len(unscaled)
        axes.set_xlim(-0.5, pairs - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for name, values in {"plain": unscaled, **(scaled or {})}.items():
            look = look_of(name)
            axes.plot(
                [pair for pair, value in enumerate(values) if value is not None],
                [value for value in values if value is not None],
                color=look.color,
                linestyle="none",
                marker=look.marker,
                markersize=4,
                label=name,
                zorder=3,
            )
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, 2.0 * target))
        if trained_length is not None:
            axes.axhspan(trained_length, axes.get_ylim()[1], color=SHADE, zorder=0, linewidth=0)
        lines = [("target", target, QUIET)]
        if trained_length is not None:
            lines.append(("trained length", trained_length, INK))
        for label, length, color in lines:
            axes.axhline(length, color=color, linewidth=1, linestyle="-" if label != "target" else "--")
            axes.annotate(
                f"{label} {tokens(length)}",
                (0, length),
                xytext=(2, 3),
                textcoords="offset points",
                fontsize=9,
                color=color,
            )
        axes.set_title(title)
        axes.set_xlabel("pair (fastest first)")
        axes.set_ylabel("wavelength (tokens per turn)")
        length_ticks(axes, "y")
        if scaled:
            figure.legend(loc="outside right center")
        return figure


def frequency_ratios(
    ratios: Mapping[str, Sequence[float | None]], *, factor: float, title: str = "What each method does to each pair"
) -> Figure:
    """New frequency over old for each pair and method (None: the pair does not turn), 1/`factor` marked."""
    with style():
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

        figure, axes = new_figure()
        axes.set_yscale("log", base=2)
        count = 1
        for name, values in ratios.items():
            look = look_of(name)
            count = max(count, len(values))
            shown = [(pair, value) for pair, value in enumerate(values) if value is not None]
            axes.plot(
                [pair for pair, _ in shown],
                [value for _, value in shown],
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=3,
                linewidth=1.6,
                label=name,
            )
        axes.set_xlim(-0.5, count - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.axhline(1 / factor, color=QUIET, linewidth=1, linestyle="--")
        axes.annotate(
            f"1 / {factor:g}: full interpolation",
            (0, 1 / factor),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=9,
            color=QUIET,
        )
        axes.set_title(title)
        axes.set_xlabel("pair (fastest first)")
        axes.set_ylabel("frequency / unscaled frequency")
        axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 2**0.5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(loc="outside right center")
        return figure
