"""Draw every figure of the lesson into docs/figures, or into FOLDER, as .png and .svg: `make figures`.

    python scripts/docs_figures.py [--out FOLDER] [NAME ...]

With ROPEWALK_SMOLLM2 set, `pairing` also measures that model (two minutes). `comparison` is drawn
from benchmarks/results/compare.jsonl.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ropewalk as rw
from ropewalk.atomic_io import write_whole
from ropewalk.figures.style import (
    OTHER,
    QUIET,
    SHADE,
    length_ticks,
    look_of,
    render,
    style,
)
from ropewalk.methods import Look
from ropewalk.statistics import mean_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
LESSON = {**runpy.run_path(str(Path(__file__).with_name("lesson_figures.py"))),
          **runpy.run_path(str(Path(__file__).with_name("lesson_ropes.py")))}  # fmt: skip
RECORD = ROOT / "benchmarks" / "results" / "compare.jsonl"

Point = tuple[float, float, tuple[float, float] | None]
"""x, nats per token, and their interval; None for a single value."""

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


def comparison(
    encodings: Mapping[str, Sequence[Point]],
    scalings: Mapping[str, Sequence[Point]],
    *,
    trained_length: int,
    title: str = "Loss by length of the window",
    note: str = "",
) -> Figure:
    """Draw the mean loss (nats per token) by length (tokens), of each encoding and of rope under each scaling."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(11.0 if scalings else 7.0, 4.6))
        panels = figure.subplots(1, 2 if scalings else 1, sharey=True, squeeze=False)[0]
        _lines(panels[0], encodings, ENCODING_LOOKS)
        panels[0].set_ylabel("loss (nats per token)")
        panels[0].set_title(title)
        if scalings:
            looks = {name: look_of("plain" if name == "rope" else name) for name in scalings}
            _lines(panels[1], scalings, looks)
            panels[1].set_title("The same ropes, scaled in the test")
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


def _lines(axes: Axes, lines: Mapping[str, Sequence[Point]], looks: Mapping[str, Look]) -> None:
    """Draw lines with their intervals as bars; each line is moved a little, so that bars do not overlap."""
    for number, (name, points) in enumerate(lines.items()):
        look, step = looks.get(name, OTHER), number - (len(lines) - 1) / 2
        x, y = [point[0] * 2 ** (step / 24) for point in points], [point[1] for point in points]
        axes.plot(
            x, y, color=look.color, linestyle=look.line, marker=look.marker, markersize=5, linewidth=1.6, label=name
        )
        for at, (_, _, band) in zip(x, points, strict=True):
            if band is not None:
                axes.errorbar(
                    [at], [sum(band) / 2], yerr=[(band[1] - band[0]) / 2], color=look.color, fmt="none",
                    linewidth=1, capsize=2, alpha=0.7, zorder=1,
                )  # fmt: skip


def read(record: Path = RECORD) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return the first line of a comparison's record, the others, and a note on its settings."""
    first, *lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    settings = first["settings"]
    tokens = settings["steps"] * settings["batch_size"] * settings["seq_len"] / 1e6
    seeds = len(settings["seeds"])
    bands = f", {seeds} seeds; bars: 95 % t interval over seeds" if seeds > 1 else ", one seed"
    note = f"size {settings['size']}, trained on {tokens:.1f}M tokens at {settings['seq_len']} tokens{bands}"
    return first, lines, note


def comparison_numbers(record: Path = RECORD) -> dict[str, Any]:
    """Return the loss by length of each encoding, and of rope under each scaling, with intervals over seeds."""
    first, lines, note = read(record)
    trained = first["settings"]["seq_len"]
    losses: dict[tuple[str, str | None], dict[int, list[float]]] = {}
    for line in lines:
        if line["kind"] == "loss" and line["loss"] is not None:
            of_length = losses.setdefault((line["encoding"], line["scaling"]), {})
            of_length.setdefault(line["length"], []).append(line["loss"])
    points = {
        key: [(length, *mean_and_interval(values)) for length, values in of_length.items()]
        for key, of_length in losses.items()
    }
    plain = {encoding: of for (encoding, scaling), of in points.items() if scaling is None}
    scaled = {scaling: of for (encoding, scaling), of in points.items() if scaling is not None and encoding == "rope"}
    if scaled:
        start = [point for point in plain["rope"] if point[0] == trained]
        scaled = {"rope": plain["rope"], **{name: start + of for name, of in scaled.items()}}
    return {"encodings": plain, "scalings": scaled, "trained_length": trained, "note": note}


PAPER = rw.RopeConfig(64, interleaved=False)
GRID = rw.RopeConfig(64, interleaved=False, theta=100.0, axes=(0,) * 16 + (1,) * 16, axes_restart=True)
FIGURES: dict[str, Callable[[], Figure]] = {
    "order": lambda: LESSON["order"](**LESSON["order_numbers"]()),
    "clocks": lambda: LESSON["clocks"](PAPER),
    "waves": lambda: rw.figures.waves(rw.RopeConfig(64, interleaved=False, max_position_embeddings=256)),
    "tables": lambda: LESSON["tables"](PAPER),
    "layer": lambda: LESSON["layer"](**LESSON["layer_numbers"]()),
    "shift": lambda: LESSON["shift"](PAPER),
    "biases": lambda: LESSON["biases"](**LESSON["biases_numbers"]()),
    "decay": lambda: rw.figures.decay(PAPER, model="tiny"),
    "maps": lambda: rw.figures.maps(),
    "unseen": lambda: rw.figures.unseen("phi_3_5_mini"),
    "ratios": lambda: rw.figures.ratios(["llama_3_1_8b", "qwen2_5_7b_yarn", "phi_3_5_mini"]),
    "wavelengths": lambda: rw.figures.wavelengths(
        ["llama_2_7b", "llama_3_1_8b", "qwen2_5_7b_yarn", "gemma_3_1b", "smollm2_135m"]
    ),
    "comparison": lambda: comparison(**comparison_numbers()),
    "pairing": lambda: LESSON["pairing"](**LESSON["pairing_numbers"]()),
    "axial": lambda: LESSON["axial"](GRID),
    "cache": lambda: LESSON["cache"](**LESSON["cache_numbers"]()),
    "precision": lambda: LESSON["precision"](**LESSON["precision_numbers"]()),
}
"""Every figure by its name, in the order of the lesson."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(FIGURES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", help="a folder")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(FIGURES):
        parser.error(f"unknown figure: {', '.join(sorted(unknown))}")
    for name in options.names or FIGURES:
        figure = FIGURES[name]()
        for kind in ("png", "svg"):
            write_whole(options.out / f"{name}.{kind}", render(figure, kind))
            print(options.out / f"{name}.{kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
