"""Draw how a forward grows: seconds by length, from lines of `results/forward.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import BLUE, GREEN, ORANGE, OTHER, QUIET, RED, caption, length_ticks, style
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
    """Return the look of a contender, or of a method in a dtype."""
    method, _, dtype = name.rpartition(" ")
    if name in _GROWTH_LOOKS or method not in METHODS:
        return _GROWTH_LOOKS.get(name, OTHER)
    look = METHODS[method].look
    return Look(look.color, _BOUNDS.get(dtype, "-"), look.marker)


def growth(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw seconds against tokens, from lines of `results/forward.jsonl`.

    The last record of a contender at a length counts. A thin line for each dtype is the time of the forward's
    operations at the speed of the fastest recorded matrix product.
    """
    points: dict[str, dict[int, float]] = {}
    for record in records:
        for name, seconds in record["median_seconds"].items():
            points.setdefault(name, {})[record["tokens"]] = seconds
    operations = {record["tokens"]: record["operations"] for record in records}
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullFormatter

        figure = Figure(figsize=(8.0, 5.0))
        time = figure.subplots()
        time.set_xscale("log", base=2)
        time.set_yscale("log")
        time.set_xlabel("tokens")
        for name in sorted(
            points,
            key=lambda name: (list(_GROWTH_LOOKS).index(name) if name in _GROWTH_LOOKS else len(_GROWTH_LOOKS), name),
        ):
            look, lengths = _look(name), sorted(points[name])
            time.plot(
                lengths,
                [points[name][length] for length in lengths],
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
        time.set_xticks(sorted(operations))
        length_ticks(time)
        time.xaxis.set_minor_formatter(NullFormatter())
        time.set_ylabel("seconds of one forward with its losses")
        last = records[-1]
        caption(
            figure, f"How a forward grows: {last['model']}", f"{last['text']}; {last['device']}, {last['date'][:10]}"
        )
        handles, labels = time.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        return figure
