"""Figures of speed, memory and rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    OTHER,
    PURPLE,
    QUIET,
    RED,
    SKY,
    caption,
    length_ticks,
    panel,
    style,
)
from ropewalk.methods import METHODS, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_GROWTH_LOOKS = {
    "ropewalk bfloat16": Look(RED, "-", "o"),
    "ropewalk float32": Look(RED, "--", "s"),
    "ropewalk-sdpa float32": Look(ORANGE, ":", "D"),
    "baseline float32": Look(ORANGE, "--", "h"),
    "transformers bfloat16": Look(BLUE, "-", "^"),
    "transformers float32": Look(BLUE, "--", "v"),
    "llama.cpp Q4_1": Look(GREEN, "-", "P"),
    "llama.cpp f16": Look(GREEN, "--", "X"),
}
_BOUNDS = {"bfloat16": "-", "float32": "--"}


def _look(name: str) -> Look:
    """Of a contender, or of a method in a dtype: its record's colour and marker."""
    method, _, dtype = name.rpartition(" ")
    if name in _GROWTH_LOOKS or method not in METHODS:
        return _GROWTH_LOOKS.get(name, OTHER)
    look = METHODS[method].look
    return Look(look.color, _BOUNDS.get(dtype, "-"), look.marker)


def growth(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Two panels, seconds and peak memory in bytes against tokens, from lines of `results/forward.jsonl`.

    Of several records of one contender at one length the last counts. A thin line for each dtype is the time that the
    forward's operations take at the speed of a square matrix product there, the fastest of all records.
    """
    points: dict[str, dict[int, tuple[float, float]]] = {}
    for record in records:
        for name, seconds in record["median_seconds"].items():
            points.setdefault(name, {})[record["tokens"]] = seconds, record["peak_bytes"][name]
    operations = {record["tokens"]: record["operations"] for record in records}
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullFormatter

        figure = Figure(figsize=(11.0, 5.0))
        time, memory = figure.subplots(1, 2)
        for axes in (time, memory):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("tokens")
        for name in sorted(
            points,
            key=lambda name: (list(_GROWTH_LOOKS).index(name) if name in _GROWTH_LOOKS else len(_GROWTH_LOOKS), name),
        ):
            look, lengths = _look(name), sorted(points[name])
            for axes, which in ((time, 0), (memory, 1)):
                axes.plot(
                    lengths,
                    [points[name][length][which] for length in lengths],
                    color=look.color, linestyle=look.line, marker=look.marker, label=name,
                    linewidth=2.4 if name.startswith("ropewalk ") else 1.4,
                )  # fmt: skip
        for kind, line in _BOUNDS.items():
            speeds = [
                record["matrix_product_gflops"][kind] for record in records if kind in record["matrix_product_gflops"]
            ]
            if speeds:
                lengths = sorted(operations)
                bound = [operations[length] / max(speeds) / 1e9 for length in lengths]
                label = f"matrix product, {kind}: {max(speeds):.0f} GFLOP/s"
                time.plot(lengths, bound, color=QUIET, linestyle=line, linewidth=1, label=label)
        for axes in (time, memory):
            axes.set_xticks(sorted(operations))
            length_ticks(axes)
            axes.xaxis.set_minor_formatter(NullFormatter())
        time.set_ylabel("seconds of one forward with its losses")
        memory.set_ylabel("largest resident memory")
        memory.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size / 1e9:g} GB"))
        memory.yaxis.set_minor_formatter(FuncFormatter(lambda size, _: f"{size / 1e9:g} GB"))
        last = records[-1]
        caption(
            figure, f"How a forward grows: {last['model']}", f"{last['text']}; {last['device']}, {last['date'][:10]}"
        )
        handles, labels = time.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        return figure


_PRECISION_LOOKS = {
    "angles in bfloat16": Look(PURPLE, ":", "v"),
    "angles in float32": Look(RED, "--", "s"),
    "tables in bfloat16": Look(ORANGE, "-.", "^"),
    "tables in float16": Look(GREEN, "--", "D"),
    "ropewalk": Look(BLUE, "-", "o"),
}
_OTHER = Look(SKY, "-", "P")


def precision(
    positions: Sequence[int],
    *,
    cosines: Mapping[str, Sequence[float]],
    scores: Mapping[str, Sequence[float]],
    distance: int,
    note: str = "",
) -> Figure:
    """Error of cosines (left) and of scores at one distance (right) by position (tokens), for each way of computing."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        figure = Figure(figsize=(9.8, 4.6))
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, curves in ((left, cosines), (right, scores)):
            for name, values in curves.items():
                look = _PRECISION_LOOKS.get(name, _OTHER)
                axes.plot(
                    positions, values, color=look.color, linestyle=look.line, marker=look.marker,
                    markevery=max(1, len(positions) // 8), label=name, linewidth=2.4 if name == "ropewalk" else 1.6,
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=12))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_locator(LogLocator(numticks=12))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(which="minor", length=0)
            axes.set_xlim(positions[0], positions[-1])
            axes.set_xlabel("position (tokens)", color=INK)
        panel(left, "cosine of an angle")
        left.set_ylabel("error (no unit; 1 is the largest cosine)")
        panel(right, f"score of q at m, k at m - {distance}, over |q| |k|")
        right.tick_params(axis="y", labelleft=True)
        right.set_ylabel("error (no unit; 1 is the largest score)")
        caption(figure, "What 32-bit angles and 16-bit tables cost", note)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")
        return figure


def _short(value: float) -> str:
    """Powers of ten as readers of context lengths write them.

    >>> _short(100.0), _short(10_000.0), _short(1e7)
    ('100', '10,000', '10M')
    """
    return f"{value / 1e6:,.0f}M" if value >= 1e6 else f"{value:,.0f}"
