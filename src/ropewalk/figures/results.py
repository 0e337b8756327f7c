"""Figures of results: the doctor's losses, copies and frequencies, verification of engines."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ropewalk.figures.style import (
    BLUE,
    INK,
    NARROW,
    OTHER,
    PALE,
    QUIET,
    RED,
    SHADE,
    WIDE,
    caption,
    length_ticks,
    look_of,
    mark_trained_length,
    new_figure,
    style,
    tokens,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def loss_by_position(
    blocks: Sequence[tuple[int, int]],
    losses: Mapping[str, Sequence[float]],
    *,
    trained_length: int,
    recommended: str | None = None,
    title: str = "Loss by position",
    narrow: bool = False,
    named: Collection[str] = (),
) -> Figure:
    """Draw the mean loss of each method in each block of positions, the trained length marked.

    **Arguments:**
    - `blocks`: start and end of each, in tokens.
    - `losses`: by method, nats per token of each block.
    - `narrow`: whether to draw for a phone's width; then only the methods in `named` have a colour and a name.
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


Points = Mapping[str, tuple[Sequence[float], Sequence[Sequence[float] | None]]]
"""By method, a value for each block and its interval."""

_LEAST_RANGE = 0.12  # nats: a smaller axis would make noise look large
_FAR = 3.0  # times the range of the methods below it: such a method is off the scale
_NAMED_OFF_SCALE = 3
MOST_WHISKERS = 5  # methods; whiskers of more would hide each other


def difference_range(differences: Points) -> tuple[float, float]:
    """Return the ends of an axis for small differences; methods with large differences do not influence it.

    >>> low, high = difference_range({"plain": ([0.0, 1.5], [None, None]), "yarn": ([0.01, 0.04], [None, None])})
    >>> -0.1 < low < 0 < 0.1 < high < 0.25
    True
    """
    sizes = {name: max(map(abs, values), default=0.0) for name, (values, _) in differences.items()}
    limit = _LEAST_RANGE
    for number, size in enumerate(sorted(size for name, size in sizes.items() if name != "crop")):
        if number and size > _FAR * limit:
            break
        limit = max(limit, size)
    shown = [differences[name] for name, size in sizes.items() if size <= limit]
    values = [value for of_method, _ in shown for value in of_method]
    ends = [end for _, bands in shown for band in bands if band is not None for end in band]
    low, high = min([-0.4 * _LEAST_RANGE, *values]), max([_LEAST_RANGE, *values])
    span = high - low  # wide intervals are cut, so that the points stay apart
    low, high = max(min([low, *ends]), low - 0.7 * span), min(max([high, *ends]), high + 0.7 * span)
    low, high = low - 0.1 * (high - low), high + 0.06 * (high - low)
    above = sum(max(values, default=0.0) > high for values, _ in differences.values())
    if above:  # space for their names
        high += (0.06 + 0.09 * min(above, _NAMED_OFF_SCALE + 1)) * (high - low)
    return low, high


def off_scale(differences: Points) -> dict[str, float]:
    """Return each method's value farthest beyond the axis, only for methods with such a value."""
    low, high = difference_range(differences)
    found = {
        name: max(beyond, key=abs)
        for name, (values, _) in differences.items()
        if (beyond := [value for value in values if not low <= value <= high])
    }
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def difference_by_position(
    blocks: Sequence[tuple[int, int]],
    differences: Points,
    *,
    trained_length: int,
    recommended: str | None = None,
    title: str = "Loss compared with crop",
    narrow: bool = False,
    named: Collection[str] = (),
) -> Figure:
    """Draw each method's loss minus that of crop in each block of positions, with paired intervals.

    Crop is the zero line. A method that leaves the axes has triangles at the edge and a note with its farthest value.

    **Arguments:**
    - `blocks`: start and end of each, in tokens.
    - `differences`: by method, nats per token of each block and their intervals.
    - `narrow`: for a phone's width.
    - `named`: the methods with a colour and a name in a narrow figure, and those with intervals if there are many.
    """
    with style():
        figure, axes = new_figure(*(NARROW if narrow else WIDE))
        middles, last = [(start + end) / 2 for start, end in blocks], blocks[-1][1]
        low, high = difference_range(differences)
        axes.set_xlim(0, last)
        axes.set_ylim(low, high)
        mark_trained_length(axes, trained_length, last, below=True)
        others = [name for name in differences if name != "crop"]
        axes.axhline(0.0, color=look_of("crop").color, linewidth=1.8, zorder=2, label="crop (zero)")
        for number, name in enumerate(others):
            values, bands = differences[name]
            quiet, chosen = narrow and name not in named, name == recommended
            look = OTHER if quiet else look_of(name)
            color = PALE if quiet else look.color
            apart = 0.006 * last * (number - (len(others) - 1) / 2)
            places = [middle + apart for middle in middles]
            if not quiet and (len(others) <= MOST_WHISKERS or name in named):
                for x, value, band in zip(places, values, bands, strict=True):
                    if band is not None and low <= value <= high:
                        axes.plot([x, x], list(band), color=color, linewidth=1.1, alpha=0.75, zorder=2.4)
            axes.plot(
                places,
                values,
                color=color,
                linestyle=look.line,
                marker="" if quiet else look.marker,
                linewidth=2.6 if chosen else 1.0 if quiet else 1.6,
                zorder=4 if chosen else 2.3 if quiet else 3,
                label="_" if quiet else f"{name} (recommended)" if chosen and not narrow else name,
            )
            _mark_beyond(axes, places, values, color, (low, high))
        _name_beyond(axes, off_scale(differences), above=high)
        axes.set_title(title)
        axes.set_xlabel("position in the window (tokens)")
        axes.set_ylabel("loss minus crop's (nats per token)")
        step = max(1, len(blocks) // (4 if narrow else 8))
        axes.set_xticks([*(start for start, _ in blocks[::step]), last])
        length_ticks(axes)
        if narrow:
            figure.legend(loc="outside lower left", ncols=3)
        else:
            figure.legend(loc="outside right center")
        return figure


def _mark_beyond(
    axes: Axes, places: Sequence[float], values: Sequence[float], color: str, ends: tuple[float, float]
) -> None:
    """Draw a triangle inside the edge for each value beyond the axis."""
    low, high = ends
    inset = 0.025 * (high - low)
    for marker, edge, beyond in (
        ("^", high - inset, [x for x, value in zip(places, values, strict=True) if value > high]),
        ("v", low + inset, [x for x, value in zip(places, values, strict=True) if value < low]),
    ):
        if beyond:
            axes.plot(
                beyond, [edge] * len(beyond), color=color, marker=marker, linestyle="", markersize=6, label="_",
                zorder=5,
            )  # fmt: skip


def _name_beyond(axes: Axes, farthest: Mapping[str, float], *, above: float) -> None:
    """Write the farthest value of each method that leaves the axis, below the upper right corner."""
    lines = [
        (f"{name}: {'worse' if value > above else 'better'} by up to {abs(value):.2f}", look_of(name).color)
        for name, value in list(farthest.items())[:_NAMED_OFF_SCALE]
    ]
    more = len(farthest) - len(lines)
    lines += [(f"and {more} more: see the table", QUIET)] if more > 0 else []
    for number, (line, color) in enumerate(lines):
        axes.annotate(
            line,
            (1, 1),
            xycoords="axes fraction",
            xytext=(-4, -14 - 12 * number),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color=color,
        )


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


class LookPoint(NamedTuple):
    """The result of one look: number of windows, whether it decided, and two means with intervals, or None."""

    windows: int
    decided: bool
    difference: tuple[float, Sequence[float] | None] | None
    copies: tuple[float, Sequence[float] | None] | None


def growing_answer(
    looks: Sequence[LookPoint],
    *,
    method: str,
    most_loss: float | None = None,
    bound: float | None = None,
    title: str = "The answer by number of windows",
    narrow: bool = False,
) -> Figure:
    """Draw one method's loss minus crop's, and its copies, after each planned number of windows, with intervals.

    **Arguments:**
    - `looks`: points of looks that decided are filled, others are hollow.
    - `most_loss`: the upper limit for the interval. `bound`: the gain that counts as copying.
    - `narrow`: for a phone's width.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(NARROW[0], 4.6) if narrow else (WIDE[0], 3.0))
        left, right = figure.subplots(*((2, 1) if narrow else (1, 2)))
        color = look_of(method).color
        for axes, name, limit, said in (
            (left, "difference", most_loss, "must stay below"),
            (right, "copies", bound, "counts as copying"),
        ):
            found = [(one.windows, one.decided, value) for one in looks if (value := getattr(one, name)) is not None]
            numbers = [one.windows for one in looks]
            axes.set_xscale("log", base=2)
            axes.set_xlim(min(numbers) / 1.4, max(numbers) * 1.4)
            axes.axhline(0.0, color=QUIET, linewidth=0.8)
            axes.plot([n for n, _, _ in found], [mean for _, _, (mean, _) in found], color=color, linewidth=1.2)
            for windows, decided, (mean, band) in found:
                if band is not None:
                    axes.plot([windows, windows], list(band), color=color, linewidth=1.6, label="_")
                axes.plot(
                    [windows], [mean], color=color, marker="o", markersize=7, label="_",
                    markerfacecolor=color if decided else "white",
                )  # fmt: skip
            if limit is not None:
                axes.axhline(limit, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
                axes.annotate(
                    said, (1, limit), xycoords=("axes fraction", "data"), xytext=(-3, 3), textcoords="offset points",
                    ha="right", fontsize=9, color=QUIET,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
                )  # fmt: skip
            if not found:
                axes.annotate("not measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color=QUIET)
                axes.set_yticks([])
            axes.margins(y=0.18)
            axes.set_xticks(numbers, [str(n) for n in numbers])
            axes.minorticks_off()
            axes.set_xlabel("windows")
        left.set_ylabel("loss minus crop's")
        right.set_ylabel("gain on repeated passages")
        caption(figure, title, "" if narrow else "filled: decided; hollow: undecided")
        return figure


def pair_wavelengths(
    unscaled: Sequence[float | None],
    *,
    trained_length: int | None,
    target: int,
    scaled: Mapping[str, Sequence[float | None]] | None = None,
    title: str = "Wavelength of each pair",
    narrow: bool = False,
) -> Figure:
    """Draw the wavelength of each pair, with the trained length and the target as lines.

    Pairs above the trained length never complete a turn in training.

    **Arguments:**
    - `unscaled`: tokens per turn of each pair; None for a pair that is not rotated.
    - `scaled`: the same for each method.
    - `narrow`: for a phone's width.
    """
    with style():
        from matplotlib.ticker import MaxNLocator

        figure, axes = new_figure(*(NARROW if narrow else ()))
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
            below = narrow and label != "target"  # the two lines are close
            axes.annotate(
                f"{label} {tokens(length)}",
                (0, length),
                xytext=(2, -3) if below else (2, 3),
                textcoords="offset points",
                va="top" if below else "baseline",
                fontsize=9,
                color=color,
            )
        axes.set_title(title)
        axes.set_xlabel("pair (fastest first)")
        axes.set_ylabel("wavelength (tokens per turn)")
        length_ticks(axes, "y")
        if scaled:
            _legend(figure, narrow)
        return figure


def _legend(figure: Figure, narrow: bool) -> None:
    """Put the legend beside the axes, on a phone below them."""
    if narrow:
        figure.legend(loc="outside lower left", ncols=3, fontsize=9)
    else:
        figure.legend(loc="outside right center")


def frequency_ratios(
    ratios: Mapping[str, Sequence[float | None]],
    *,
    factor: float,
    title: str = "What each method does to each pair",
    narrow: bool = False,
) -> Figure:
    """Draw each pair's new over old frequency by method (None for a pair that is not rotated), 1/`factor` marked.

    `narrow`: for a phone's width.
    """
    with style():
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

        figure, axes = new_figure(*(NARROW if narrow else ()))
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
        _legend(figure, narrow)
        return figure


SHOWN = 16  # hypotheses


def misfits(record: Mapping[str, Any]) -> Figure:
    """Draw the misfit of each hypothesis (mean absolute difference of log-probabilities in nats), total and by prompt.

    A line marks the engine's own error.

    **Arguments:**
    - `record`: the document of `ropewalk verify --json`.
    """
    from matplotlib.figure import Figure

    rows = [entry for entry in record["hypotheses"] if entry["misfit"] is not None][:SHOWN]
    with style():
        figure = Figure(figsize=(7.4, 1.4 + 0.26 * len(rows)))
        axes = figure.add_subplot()
        for place, entry in enumerate(rows):
            color = BLUE if entry["name"] == "as expected" else RED if place == 0 else QUIET
            each = [
                prompt["misfit"][entry["name"]] for prompt in record["prompts"] if entry["name"] in prompt["misfit"]
            ]
            axes.plot(each, [place] * len(each), linestyle="none", marker="|", color=color, alpha=0.6)
            axes.plot([entry["misfit"]], [place], linestyle="none", marker="o", color=color)
        if record["noise"]:
            axes.axvline(record["noise"], color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [entry["name"] for entry in rows])
        axes.invert_yaxis()
        axes.set_xlabel("misfit (nats): all prompts (dot), each prompt (stroke)")
        caption(figure, f"{record['model']} in {record['engine']}", textwrap.fill(record["verdict"]["sentence"], 100))
    return figure
