"""Draw every figure of the lesson, and the README's: `make figures`.

    python scripts/figures.py [--out FOLDER] [NAME ...]

Each figure of the lesson is written into docs/figures, or into FOLDER, as an SVG for each page, NAME-wide-light.svg to
NAME-narrow-dark.svg: `NAME(**numbers)` draws what `NAME_numbers` of figure_numbers.py
returns. `comparison` is drawn from benchmarks/results/compare.jsonl.

`front` is the figure of the README, from the record of the league: how many facts does a
model find, by how far back they were told? It is written into docs/assets/front-*.svg, without a background and with
text as outlines. The description of each SVG contains every number.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import figure_numbers as of
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import ropewalk as rw
from ropewalk.atomic_io import write_whole
from ropewalk.diagnosis.evidence import Half
from ropewalk.diagnosis.rules import rounded
from ropewalk.figures import style as st
from ropewalk.figures.inline import night_colors
from ropewalk.figures.report import StripRow, draw_strip, finding
from ropewalk.methods import Look

ROOT = Path(__file__).resolve().parents[1]


def _write(axes: Axes, x: float, y: float, text: object, size: float = 10, **more: Any) -> None:
    """Write text around a point."""
    axes.text(x, y, str(text), ha="center", va=more.pop("va", "center"), fontsize=size, **{"color": st.INK, **more})


def _cell(axes: Axes, column: int, row: int, **more: Any) -> None:
    """Draw a frame around one cell of a table."""
    axes.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, **more))


def _curve(axes: Axes, x: Sequence[float], y: Sequence[float], look: Look, label: str, **more: Any) -> None:
    """Draw a curve with the colour, line and marker of its look."""
    axes.plot(x, y, color=look.color, linestyle=look.line, marker=look.marker, label=label, **more)


def _pair(wide: tuple[float, float], narrow: tuple[float, float], **more: Any) -> tuple[Figure, Axes, Axes]:
    """Return a figure of a size in inches with two panels: side by side, or one below the other on a narrow page."""
    figure = Figure(figsize=st.fit(wide, narrow))
    return (figure, *figure.subplots(*st.fit((1, 2), (2, 1)), **more))


def _named(axes: Axes, x: str, y: str, title: str) -> None:
    """Write the names of both axes and the title of a panel."""
    axes.set(xlabel=x, ylabel=y)
    st.panel(axes, title)


@st.style()
def order(
    rows: Sequence[tuple[str, Sequence[tuple[Sequence[int], Any]]]], *, words: Sequence[str], note: str = ""
) -> Figure:
    """Draw a row of attention weights for each (label, sentences); rows and columns of a panel are the words.

    A sentence is the position of each word, and the weights `[words, words]`; those that differ from the first
    sentence's in per cent have a frame.
    """
    columns = len(rows[0][1])
    figure = Figure(figsize=st.fit((1.4 + 2.9 * columns, 1.0 + 2.75 * len(rows)), (4.3, 1.4 + 1.9 * len(rows))))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for drawn, (label, sentences) in zip(grid, rows, strict=True):
        for axes, (places, weights) in zip(drawn, sentences, strict=True):
            st.heat(axes, weights, cmap="Blues", vmin=0.0, vmax=1.0)
            axes.set_aspect("equal")
            for (query, key), weight in np.ndenumerate(weights):
                shown, in_first = (f"{100 * one:.0f}" for one in (weight, sentences[0][1][query][key]))
                _write(axes, key, query, f"{shown} %", st.fit(11, 7), color=st.ON_LIGHT)
                if shown != in_first:
                    _cell(axes, key, query, fill=False, edgecolor=st.RED, linewidth=2)
            names = [f"{word}{st.fit(' ', chr(10))}({place})" for word, place in zip(words, places, strict=True)]
            axes.set_xticks(range(len(words)), names)
            axes.set_yticks(range(len(words)), names)
            st.panel(axes, " ".join(word for _, word in sorted(zip(places, words, strict=True))))
            axes.set_xlabel("key (token)")
        drawn[0].set_ylabel(f"{label}\n\nquery (token)")
    st.caption(figure, "The same words in two orders", note)
    return figure


_BOXES = {  # place and text of each box in `layer`; "rotate" is the one that RoPE adds
    "x": (0.0, 1.0, "input"), "q_proj": (1.5, 2.0, "W_q"), "k_proj": (1.5, 1.0, "W_k"), "v_proj": (1.5, 0.0, "W_v"),
    "rotate q": (3.7, 2.0, "rotate"), "rotate k": (3.7, 1.0, "rotate"), "positions": (3.7, 3.0, "position_ids"),
    "scores": (5.4, 1.5, "q·k / √d,\nsoftmax"), "mix": (7.4, 0.75, "weighted\nsum"), "o_proj": (8.9, 0.75, "W_o"),
}  # fmt: skip
_ARROWS = (  # from, to, the shape that it carries
    ("x", "q_proj", None), ("x", "k_proj", None), ("x", "v_proj", None), ("q_proj", "rotate q", "q"),
    ("k_proj", "rotate k", "k"), ("v_proj", "mix", "v"), ("positions", "rotate q", None),
    ("positions", "rotate k", None), ("rotate q", "scores", None), ("rotate k", "scores", None),
    ("scores", "mix", "weights"), ("mix", "o_proj", None),
)  # fmt: skip


@st.style()
def layer(shapes: Mapping[str, tuple[int, ...]]) -> Figure:
    """Draw where an attention layer rotates: `shapes` of "x", "q", "k", "v", "weights" and "out" are on the arrows."""
    figure = Figure(figsize=st.fit((10.4, 4.0), (4.3, 6.2)))
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set(**st.fit({"xlim": (-0.7, 10.9), "ylim": (-0.7, 3.4)}, {"xlim": (-0.65, 4.6), "ylim": (-8.6, 0.5)}))

    def placed(name: str) -> tuple[float, float]:
        """Return a box's place; on a narrow page the steps go down."""
        x, y, _ = _BOXES[name]
        return st.fit((x, y), (1.3 * y, -0.8 * x))

    for name, (_, _, text) in _BOXES.items():
        x, y = placed(name)
        colors = {"facecolor": "white", "edgecolor": st.INK, "linewidth": 1}
        if name.startswith(("rotate", "positions")):
            colors = {"facecolor": "#dbeaf6", "edgecolor": st.BLUE, "linewidth": 2}
        ink = st.ON_LIGHT if colors["edgecolor"] == st.BLUE else st.INK
        shape = "round,pad=0,rounding_size=0.1"
        axes.add_patch(FancyBboxPatch((x - 0.55, y - 0.27), 1.1, 0.54, boxstyle=shape, zorder=3, **colors))
        _write(axes, x, y, text, zorder=4, color=ink)
    out = [*_ARROWS, ("o_proj", None, "out")]
    for start, end, carried in out:
        (x, y), down = placed(start), st.fit(start == "positions", start != "positions")
        to_x, to_y = st.fit((x + 1.75, y), (x, y - 1.4)) if end is None else placed(end)
        side = st.fit(1, -1) if start == "positions" else 1
        tail = (x, y - 0.27) if down else (x + 0.55 * side, y)
        head = (to_x, to_y + 0.27) if down else (to_x - 0.55 * side, to_y)
        color = st.BLUE if start == "positions" else st.INK
        axes.annotate("", head, tail, arrowprops={"arrowstyle": "->", "color": color}, zorder=2)
        if carried is not None:
            along, up = ((one + other) / 2 for one, other in zip(tail, head, strict=True))
            _write(axes, along, up, list(shapes[carried]), st.fit(8, 7), color=st.QUIET,
                   bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
    x, y = placed("x")
    _write(axes, *st.fit((x, y - 0.38), (x - 0.95, y)), list(shapes["x"]), st.fit(8, 7), color=st.QUIET)
    note = "Input and output: [batch, tokens, hidden]; q, k, v: [batch, tokens, heads, head_dim]; weights: "
    st.caption(figure, "Where an attention layer rotates", note + "[batch, heads, queries, keys].")
    return figure


_RIGHT, _WRONG = "#cfe4f3", "#f7d3bd"  # fills of cells that ink can be read on


@st.style()
def cache(distances: Mapping[str, Any], *, note: str = "") -> Figure:
    """Draw a table for each way to use a cache: the distance that each score contains, `[steps, keys]`; nan: no key.

    Cells with a distance other than step - key are red and in bold.
    """
    rows = (len(distances) + 1) // 2  # two columns: a phone shows the numbers, too
    figure = Figure(figsize=st.fit((6.4, 0.8 + 2.9 * rows), (4.3, 1.3 + 2.0 * rows)))
    grid = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True)
    for axes, (name, table) in zip(grid.flat, distances.items(), strict=False):
        for (step, key), value in np.ndenumerate(table):
            if np.isnan(value):
                continue
            wrong = round(float(value)) != step - key
            fill, weight = (_WRONG, "bold") if wrong else (_RIGHT, "normal")
            _cell(axes, key, step, facecolor=fill, edgecolor=st.INK if step == key else "none", linewidth=1.3)
            _write(axes, key, step, round(float(value)), st.fit(9, 7), color=st.ON_LIGHT, fontweight=weight)
        steps, keys = table.shape
        axes.set(
            xlim=(-0.6, keys - 0.4), ylim=(steps - 0.4, -0.6), aspect="equal", xticks=range(keys), yticks=range(steps)
        )
        axes.grid(False)
        st.panel(axes, name)
    for axes in grid[-1]:
        axes.set_xlabel("key of token n (index)")
    for axes in grid[:, 0]:
        axes.set_ylabel("query of token m (index)")
    st.caption(figure, "The distance between query and key that each score contains", note)
    return figure


_ENCODING_LOOKS = {
    name: Look(*look)
    for name, *look in (
        ("none", "#767676", ":", "."), ("sinusoidal", "#d55e00", "--", "s"), ("learned", "#cc79a7", ":", "x"),
        ("relative", "#767676", "-.", "v"), ("t5", "#009e73", "-.", "^"), ("transformer_xl", "#56b4e9", "--", "P"),
        ("alibi", "#0072b2", "-", "D"), ("kerple", "#56b4e9", "-", "X"), ("fire", "#e69f00", "-", "*"),
        ("xpos", "#222222", ":", "d"), ("rope", "#222222", "-", "o"),
    )
}  # fmt: skip


@st.style()
def comparison(
    encodings: Mapping[str, Sequence[of.Point]], scalings: Mapping[str, Sequence[of.Point]], *, trained_length: int,
    note: str = "",
) -> Figure:  # fmt: skip
    """Draw the mean loss (nats per token) by length (tokens), of each encoding and of rope under each scaling."""
    figure, left, right = _pair((11.0, 4.6), (4.3, 7.2), sharey=True)
    _losses(left, encodings, _ENCODING_LOOKS)
    _losses(right, scalings, {name: st.look_of("plain" if name == "rope" else name) for name in scalings})
    _named(left, "length of the window (tokens)", "loss (nats per token)", "every encoding, as trained")
    _named(right, "length of the window (tokens)", "", "the same ropes, scaled in the test")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        st.length_ticks(axes)
        axes.set_xticks(sorted({x for points in encodings.values() for x, _, _ in points}))
        axes.minorticks_off()
        axes.axvline(trained_length, color=st.QUIET, linewidth=1, zorder=1)
        axes.axvspan(trained_length, right := axes.get_xlim()[1], color=st.SHADE, zorder=0, linewidth=0)
        axes.set_xlim(right=right)
        axes.annotate("trained length", (trained_length, 1), xycoords=("data", "axes fraction"), xytext=(4, -4),
                      textcoords="offset points", va="top", fontsize=8, color=st.QUIET)  # fmt: skip
        axes.legend(loc="upper left", bbox_to_anchor=(0.08, 0.94), fontsize=st.fit(8, 6))
    st.caption(figure, "Loss by length of the window", note)
    return figure


def _losses(axes: Axes, lines: Mapping[str, Sequence[of.Point]], looks: Mapping[str, Look]) -> None:
    """Draw lines with their intervals as bars; each line is moved a little, so that bars do not overlap."""
    for number, (name, points) in enumerate(lines.items()):
        look, step = looks.get(name, st.OTHER), number - (len(lines) - 1) / 2
        x, y = [point[0] * 2 ** (step / 24) for point in points], [point[1] for point in points]
        _curve(axes, x, y, look, name, markersize=5, linewidth=1.6)
        for at, (_, _, band) in zip(x, points, strict=True):
            if band is not None:
                axes.errorbar([at], [sum(band) / 2], yerr=[(band[1] - band[0]) / 2], color=look.color, fmt="none",
                              linewidth=1, capsize=2, alpha=0.7, zorder=1)  # fmt: skip


# -- one rope ---------------------------------------------------------------------------------------------------------


@st.style()
def tables(alike: Mapping[str, Any], *, note: str = "") -> Figure:
    """Draw the cosine between every two positions of each table, `[positions, positions]`."""
    figure = Figure(figsize=st.fit((3.1 * len(alike), 4.0), (4.3, 5.4)))
    grid = figure.subplots(*st.fit((1, 3), (2, 2))).ravel()
    for axes in grid[len(alike) :]:
        axes.set_axis_off()
    for axes, (name, cosines) in zip(grid, alike.items(), strict=False):
        image = st.heat(axes, cosines, vmin=-1, vmax=1)
        axes.set_aspect("equal")
        st.panel(axes, name)
        axes.set_xlabel("position (tokens)")
    for axes in grid[:: st.fit(3, 2)]:
        axes.set_ylabel("position (tokens)")
    place = st.fit({"shrink": 0.7, "pad": 0.02}, {"location": "bottom", "aspect": 40})
    st.bar(figure, image, grid, "cosine (no unit)", **place)
    st.caption(figure, "Similarity of positions depends on the distance, except in a learned table", note)
    return figure


_MOVES = {
    "both move": Look(st.BLUE, "-", "o"),
    "only the query moves": Look(st.RED, "--", "s"),
    "only the key moves": Look(st.GREEN, ":", "^"),
}


@st.style()
def shift(
    grid: Any, *, start: tuple[int, int], shifts: Any, curves: Mapping[str, Any], spread: float, note: str = ""
) -> Figure:
    """Draw scores of a random query and key by both positions, and with both moved, or only one."""
    figure, left, right = _pair((9.2, 4.4), (4.3, 6.6))
    image = st.heat(left, grid)
    left.set_aspect("equal")
    st.bar(figure, image, left, "score q·k / √head_dim", shrink=0.85)
    m, n = start
    ahead = len(grid) - 1 - max(m, n)
    for color, width in (("white", 3.2), (st.BLUE, 1.8)):
        left.plot([n, n + ahead], [m, m + ahead], color=color, linewidth=width)
    left.plot([n], [m], color="white", marker="o", markersize=8, markeredgecolor=st.BLUE, markeredgewidth=1.8)
    title = "every query position, every key position"
    _named(left, "key position n (tokens)", "query position m (tokens)", title)
    for name, values in curves.items():
        label = f"{name} (within {spread:.0e})" if name == "both move" else name
        _curve(right, shifts, values, _MOVES[name], label, markevery=max(1, len(shifts) // 8))
    right.set_xlim(shifts[0], shifts[-1])
    st.length_ticks(right)
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.4 * (high - low))
    _named(right, "shift (tokens)", "score q·k / √head_dim", f"the circle (m = {m}, n = {n}) moved")
    right.legend(loc="upper left")
    st.caption(figure, "A score depends only on the distance", note)
    return figure


LEAGUE = ROOT / "benchmarks" / "results" / "league.json"
ASSETS = ROOT / "docs" / "assets"
TARGET = 16_384  # tokens of the league's windows
NAMES = {
    "lampe": ("LaMPE", "Python only"),
    "dca": ("DCA", "Python only"),
    "yarn": ("YaRN", "in engines"),
    "plain": ("unchanged", "gave up: its loss broke down"),
}


def league_rows() -> tuple[list[StripRow], str]:
    """Return the rows of the first figure, and how far back each method finds facts."""
    runs = json.loads(LEAGUE.read_text(encoding="utf-8"))["smollm2"].values()
    rows, reaches = [], {}
    for method, (name, note) in NAMES.items():
        of = [(run, run["rows"][method]["right"]) for run in runs]
        lanes = [list(zip(run["distances"], right, strict=True)) for run, right in of if right]
        far = [hit for run, right in of for hit, is_far in zip(right, run["far"], strict=False) if is_far]
        trained = next(iter(runs))["trained_length"]
        if lanes:
            facts = [fact for lane in lanes for fact in lane]
            half = Half.fit([at for at, _ in facts], [hit for _, hit in facts], TARGET)
            reaches[name] = None if half is None or half.tokens is None else rounded(half.tokens)
        rows.append(StripRow(name=name, look=st.look_of(method), lanes=lanes, trained=trained,
                        count=f"{sum(far)} of {len(far)}" if far else "", note=note))  # fmt: skip
    return rows, finding(reaches)


def description(rows: Sequence[StripRow], title: str) -> str:
    """Return every count of the first figure in words."""
    found = f"{title}. Found of the facts told more than {rows[0].trained:,} tokens back: "
    return found + ". ".join(f"{row.name}: {row.count or row.note}" for row in rows) + ". Chance is one in four."


def write_front() -> None:
    """Write the first figure for wide and narrow, light and dark pages."""
    rows, title = league_rows()
    head = f" <title>Facts that SmolLM2-135M finds, by distance</title>\n <desc>{description(rows, title)}</desc>\n"
    for size, inches in (("wide", st.WIDE), ("narrow", st.NARROW)):
        named = f"SmolLM2-135M, trained with {TARGET // 2:,} tokens: {title}"
        for scheme, svg in schemes(draw_strip(rows, TARGET, named, inches), head).items():
            write_whole(ASSETS / f"front-{size}-{scheme}.svg", svg.replace("fill: #ffffff", "fill: none"))


def schemes(figure: Figure, head: str = "") -> dict[str, str]:
    """Return an SVG of the figure for light and one for dark pages, without a ground of its own."""
    night = {f"#{day}": color for day, color in re.findall(r"--c-(\w{6}): (#\w{6});", night_colors())}
    figure.set_facecolor("none")
    for axes in figure.get_axes():
        axes.set_facecolor("none")
    svg = st.render(figure, "svg", **{"svg.fonttype": "path", "savefig.facecolor": "auto"}).decode()
    light = re.sub(r" <metadata>.*?</metadata>\n?", lambda _: head, svg, count=1, flags=re.DOTALL)
    return {"light": light, "dark": re.sub(r"#[0-9a-f]{6}\b", lambda of: night.get(of[0], of[0]), light)}


def versions(draw: Callable[[], Figure]) -> dict[str, str]:
    """Return an SVG for each page, by its ending: wide and narrow, light and dark."""
    with st.narrow_page():
        narrow = schemes(draw())
    sizes = {"wide": schemes(draw()), "narrow": narrow}
    return {f"{size}-{scheme}": svg for size, of in sizes.items() for scheme, svg in of.items()}


PAPER = rw.RopeConfig(64, interleaved=False)
FIGURES: dict[str, Callable[[], Figure]] = {
    "order": lambda: order(**of.order_numbers()),
    "tables": lambda: tables(**of.tables_numbers(PAPER)),
    "layer": lambda: layer(**of.layer_numbers()),
    "shift": lambda: shift(**of.shift_numbers(PAPER)),
    "decay": partial(rw.figures.decay, PAPER),
    "maps": rw.figures.maps,
    "unseen": partial(rw.figures.unseen, "phi_3_5_mini"),
    "comparison": lambda: comparison(**of.comparison_numbers()),
    "cache": lambda: cache(**of.cache_numbers()),
}
"""Every figure of the lesson by its name, in its order."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: front, {', '.join(FIGURES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", help="a folder")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {"front", *FIGURES}:
        parser.error(f"unknown figure: {', '.join(sorted(unknown))}")
    for name in options.names or ("front", *FIGURES):
        if name == "front":
            write_front()
            continue
        for ending, content in versions(FIGURES[name]).items():
            write_whole(options.out / f"{name}-{ending}.svg", content)
        print(options.out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
