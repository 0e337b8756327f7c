"""The pictures of the doctor's report: facts by how far back they were told, losses against their limits, the map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ropewalk.figures.style import (
    BLUE,
    GRID,
    INK,
    MAP,
    PALE,
    QUIET,
    RED,
    SHADE,
    WIDE,
    length_ticks,
    style,
    tokens,
    wrapped,
)
from ropewalk.methods import Look
from ropewalk.statistics import binomial_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHANCE, CONFIDENCE = 0.25, 0.95
SMOOTH = 1 / 20  # of the longest distance: the standard deviation of the kernel
POINTS, CURVES = 100, 5  # of a curve; curves
CURVE, HEADER = 0.5, 0.24  # inches of a share of 1, and above the first row
BEYOND = 3  # times a limit: the end of an axis of losses
DARK, LIGHT = "#101010", "#fdfdfd"  # of a map's counts: pages do not change these colours, as they do not the cells'
FOUND, SOME, MISSED = "\N{BLACK CIRCLE}", "\N{CIRCLE WITH LEFT HALF BLACK}", "\N{WHITE CIRCLE}"
COLUMNS = 60  # of a strip in characters
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StripRow:
    """One row of the strip: a method, or a record.

    - `lanes`: for each window (distance in tokens, whether found) of its facts. `trained`: the trained length.
    - `count`: what it finds, in words. `note`: the same for a row without dots, or a remark.
    """

    name: str
    look: Look
    lanes: Sequence[Sequence[tuple[int, bool]]]
    trained: int
    count: str = ""
    note: str = ""


def share_by_distance(row: StripRow, last: int) -> tuple[Array, Array, Array, Array]:
    """Return distances, the share found around each, and the ends of its 95 % interval.

    A fact at distance D has the weight exp(-(D - d)^2 / (2 h^2)) at d, with h a twentieth of `last`. The interval is
    Clopper and Pearson's for the effective number of facts, (sum w)^2 / sum w^2.

    >>> row = StripRow(name="a", look=Look("#000000"), lanes=[[(n, n < 50) for n in range(100)]], trained=10)
    >>> share_by_distance(row, 100)[1][[0, -1]].round(2).tolist()
    [1.0, 0.0]
    """
    facts = np.array([fact for lane in row.lanes for fact in lane], dtype=np.float64)
    at = np.linspace(facts[:, 0].min(), facts[:, 0].max(), POINTS)
    weights = np.exp(-(((at[:, None] - facts[:, 0]) / (SMOOTH * last)) ** 2) / 2)
    share = np.minimum(weights @ facts[:, 1] / weights.sum(1), 1.0)
    many = weights.sum(1) ** 2 / (weights**2).sum(1)
    ends = [binomial_interval(s * n, n, confidence=CONFIDENCE) for s, n in zip(share, many, strict=True)]
    return at, share, *np.array(ends).T


def finding(reaches: Mapping[str, int | None]) -> str:
    """Return how far back each method finds facts, as a title: by name the tokens; 0: not at all, None: to the end.

    >>> finding({"dca": None, "lampe": None, "yarn": 12_400, "plain": 0})
    'dca and lampe find facts to the end, yarn up to 12,400 tokens back, plain no more than chance may'
    >>> finding({"dca": 15_200, "yarn": 12_400})
    'dca finds facts up to 15,200 tokens back, yarn up to 12,400'
    """
    groups: dict[str, list[str]] = {}
    for name, reach in reaches.items():
        back = "" if any(" back" in one for one in groups) else " tokens back"
        far = "no more than chance may" if reach == 0 else "to the end" if reach is None else f"up to {reach:,}{back}"
        groups.setdefault(far, []).append(name)
    said = []
    for number, (far, names) in enumerate(groups.items()):
        verb = "" if number else " finds" if len(names) == 1 else " find"
        verb += " facts" if not number and not far.startswith("no") else ""
        said.append(f"{', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}{verb} {far}")
    return ", ".join(said)


def strip_text(rows: Sequence[StripRow], last: int, width: int = COLUMNS) -> list[str]:
    """Return the strip in characters: a column for each part of the distances up to `last`, and a line for the marks.

    >>> row = StripRow(name="dca", look=Look("#000000"), lanes=[[(9, True), (35, True), (60, False)]], trained=40)
    >>> print(strip_text([row], 80, 8)[0])
    dca  \N{BLACK CIRCLE}  \N{BLACK CIRCLE}│  \N{WHITE CIRCLE}
    """
    names, lines = max(len(row.name) for row in rows), []
    for row in rows:
        columns: list[list[bool]] = [[] for _ in range(width)]
        for distance, hit in (fact for lane in row.lanes for fact in lane):
            columns[min(width - 1, distance * width // last)].append(hit)
        cells = [" " if not c else FOUND if all(c) else SOME if any(c) else MISSED for c in columns]
        if not any(columns):
            cells = list(row.note[:width].ljust(width))
        if row.trained < last:
            cells.insert(round(row.trained / last * width), "│")
        lines.append(f"{row.name.ljust(names)}  {''.join(cells)}".rstrip())
    axis = ""
    for mark in dict.fromkeys([0, *(row.trained for row in rows if row.trained < last), last]):
        axis = axis.ljust(max(0, round(mark / last * width) + bool(mark) - len(tokens(mark)) // 2)) + tokens(mark)
    legend = f"tokens back; {FOUND} found, {SOME} some found, {MISSED} not found, │ trained length"
    return [*lines, f"{'':{names}}  {axis}", f"{'':{names}}  {legend}"]


def _titled(figure: Figure, title: str, narrow: bool) -> None:
    """Write a title above all panels."""
    size, columns = (9.5, 44) if narrow else (12, 84)
    figure.suptitle(wrapped(title, columns), x=0.01, ha="left", fontsize=size, fontweight="bold", parse_math=False)


def _names(axes: Axes, places: Sequence[float], rows: Sequence[tuple[str, Look]], narrow: bool) -> None:
    """Write the names of rows in their colours, without an axis."""
    names = [name for name, _ in rows]
    axes.set_yticks(places, names, parse_math=False, fontweight="bold", fontsize=8 if narrow else 10)
    for tick, (_, look) in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_color(look.color)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_strip(rows: Sequence[StripRow], last: int, title: str, size: tuple[float, float] = WIDE) -> Figure:
    """Return a row for each method: the share of facts found by distance as a curve, and below it a dot for each fact.

    `last`: the longest distance in tokens. Only the width of `size`, in inches, counts. The first methods and the last
    have curves.
    """
    from matplotlib.figure import Figure

    narrow = size[0] < WIDE[0]
    most = max((len(lane) for row in rows for lane in row.lanes), default=1)
    dot = float(np.clip(0.6 * 72 * size[0] / max(most, 1) * 0.75, 2.2, 4.8))  # points
    lane = (dot + 1.6) / 72
    asked = [row for row in rows if any(row.lanes)]
    curved = asked[: CURVES - 1] + asked[CURVES - 1 :][-1:]
    small: Any = {"fontsize": 8, "color": QUIET}
    with style():
        figure, y, places = Figure(), HEADER, []
        _titled(figure, title, narrow)
        axes = figure.subplots()
        for row in rows:
            top = y
            if row in curved:
                y += CURVE + 0.1
                _curve(axes, row, last, y)
                if row is curved[0]:
                    axes.annotate("100 %", (-0.01 * last, y - CURVE), ha="right", va="center", **small)
                    axes.annotate("chance", (-0.01 * last, y - CHANCE * CURVE), ha="right", va="center", **small)
            height = max(0.42 if narrow and top == y else 0.28, len(row.lanes) * lane + 0.14)
            first = y + height / 2 - (len(row.lanes) - 1) / 2 * lane
            for number, facts in enumerate(row.lanes):
                for hit in (True, False):
                    at = [distance for distance, one in facts if one == hit]
                    colors: Any = {"color": row.look.color} if hit else {"facecolors": "none", "edgecolors": PALE}
                    axes.scatter(at, [first + number * lane] * len(at), s=dot**2, linewidths=0.8, zorder=3, **colors)
            y += height
            places.append((top + y) / 2)
            if row.trained < last:
                axes.vlines(row.trained, top, y, color=QUIET, linewidth=1)
            if not any(row.lanes):
                axes.annotate(row.note, (0.02 * last, places[-1]), va="center", fontsize=9, color=QUIET)
            elif not narrow:
                axes.annotate(f"{row.count}\n{row.note}".strip(), (1, places[-1]), xycoords=("axes fraction", "data"),
                              xytext=(8, 0), textcoords="offset points", va="center", fontsize=9, color=INK,
                              parse_math=False)  # fmt: skip
            axes.axhline(y, color=GRID, linewidth=0.8)
        if len({row.trained for row in rows}) == 1 and (trained := rows[0].trained) < last:
            axes.axvspan(trained, last, color=SHADE, zorder=0, linewidth=0)
            far = f"beyond {tokens(trained)}" if narrow else f"farther back than the trained length, {trained:,} tokens"
            axes.annotate(f"{far} \N{RIGHTWARDS ARROW}", (trained, HEADER / 2), xytext=(4, 0), va="center",
                          textcoords="offset points", **small)  # fmt: skip
        names = [f"{row.name}\n{row.count}" if narrow and row.count else row.name for row in rows]
        _names(axes, places, [(name, row.look) for name, row in zip(names, rows, strict=True)], narrow)
        axes.grid(False)
        axes.set(ylim=(y, 0), xlim=(-(0.2 if narrow else 0.08) * last, last))
        marks = f"one dot for each fact: {FOUND} found  {MISSED} not found"
        axes.set_xlabel(f"tokens between the fact and the question{chr(10) if narrow else '; '}{marks}", fontsize=9)
        axes.set_xticks(np.linspace(0, last, 5))
        length_ticks(axes)
        figure.set_size_inches(size[0], y + 1.2)
        return figure


def _curve(axes: Axes, row: StripRow, last: int, y: float) -> None:
    """Draw the share found by distance above `y`, with its interval as a band, and chance as a dashed line."""
    at, *shares = share_by_distance(row, last)
    share, low, high = (y - CURVE * of for of in shares)
    axes.fill_between(at, low, high, color=row.look.color, alpha=0.15, linewidth=0)
    axes.plot(at, share, color=row.look.color, linewidth=2)
    axes.hlines(y, 0, last, color=GRID, linewidth=0.8, zorder=1)
    axes.hlines(y - CHANCE * CURVE, 0, last, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """One row of the bars: a method and its losses in nats per token, in the order of the panels; None: `missing`."""

    name: str
    look: Look
    losses: Sequence[float | None]
    missing: str = "not measured"


def draw_bars(
    rows: Sequence[LossRow], panels: Sequence[tuple[str, float]], title: str, size: tuple[float, float] = WIDE
) -> Figure:
    """Return a panel of bars for each kind of loss, red beyond its limit, with its value and the limit as a line.

    - `panels`: the name and the limit of each. Bars end at three times the limit. Only the width of `size` counts.
    """
    from matplotlib.figure import Figure

    narrow, many = size[0] < WIDE[0], len(panels)
    with style():
        tall = 0.9 + 0.3 * len(rows)
        figure = Figure(figsize=(size[0], 0.5 + tall * (many if narrow else 1)))
        _titled(figure, title, narrow)
        grid = figure.subplots(*((many, 1) if narrow else (1, many)), squeeze=False, sharey=not narrow).flat
        for number, (axes, (name, limit)) in enumerate(zip(grid, panels, strict=True)):
            for place, row in enumerate(rows):
                value = row.losses[number]
                end = 0.0 if value is None else float(np.clip(value, -limit, BEYOND * limit))
                axes.barh(place, end, 0.62, color=RED if value is not None and value > limit else BLUE)
                said, color = (row.missing, QUIET) if value is None else (f"{value:+.2f}", INK)
                axes.annotate(said, (max(end, limit), place), xytext=(5, 0), textcoords="offset points", va="center",
                              fontsize=9, color=color)  # fmt: skip
                if value is not None and value > end:  # the bar is longer
                    axes.annotate("//", (0.95 * end, place), ha="center", va="center", color="white", fontweight="bold")
            axes.axvline(0, color=QUIET, linewidth=1)
            axes.axvline(limit, color=RED, linewidth=1.4, linestyle=(0, (4, 2)))
            axes.annotate(f"limit {limit:.2f}", (limit, -0.45), xytext=(4, 0), textcoords="offset points", fontsize=8,
                          va="bottom", color=RED)  # fmt: skip
            axes.set(xlim=(-limit, (BEYOND + 0.6) * limit), ylim=(len(rows) - 0.5, -0.9), xticks=[])
            axes.set_xlabel(f"{name} (nats per token)", fontsize=9, loc="left")
            axes.grid(False)
            axes.tick_params(length=0)
            axes.spines[["left", "bottom"]].set_visible(False)
            if narrow or not number:
                _names(axes, range(len(rows)), [(row.name, row.look) for row in rows], narrow)
        return figure


def draw_map(
    panels: Sequence[tuple[str, Sequence[Sequence[Any]]]],
    lengths: Sequence[int],
    depths: Sequence[str],
    trained_length: int,
    text: Callable[[Any], str],
    size: tuple[float, float] = WIDE,
    title: str = "",
) -> Figure:
    """Return a panel for each method: columns are lengths in tokens, rows are depths.

    - `panels`: the title and the cells by row and column, each with `share` (nan: not asked). `text`: of a cell.
    - `trained_length`: a line between the columns. `size`: in inches; panels are one above the other if it is narrow.
    """
    from matplotlib.figure import Figure

    with style():
        narrow, many = size[0] < WIDE[0], len(panels)
        figure = Figure(figsize=(size[0], size[1] * many if narrow else size[1]))
        _titled(figure, title, narrow)
        grid = figure.subplots(*((many, 1) if narrow else (1, many)), squeeze=False, sharex=True, sharey=True)
        within = sum(length <= trained_length for length in lengths)
        for number, (axes, (said, cells)) in enumerate(zip(grid.flat, panels, strict=True)):
            shares = np.array([[one.share for one in row] for row in cells])
            axes.grid(False)
            axes.pcolormesh(shares, cmap=MAP, vmin=CHANCE, vmax=1, edgecolors="white", linewidth=1.5)
            for (row, column), share in np.ndenumerate(shares):
                axes.annotate(text(cells[row][column]), (column + 0.5, row + 0.5), ha="center", va="center",
                              fontsize=9, color=DARK if share > 0.6 else LIGHT)  # fmt: skip
            if 0 < within < len(lengths):
                axes.axvline(within, color=RED, linewidth=2.5)
            axes.set_xticks(np.arange(len(lengths)) + 0.5, [tokens(length) for length in lengths])
            axes.set_yticks(np.arange(len(depths)) + 0.5, depths)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(said, fontsize=9, fontweight="normal", pad=6)
            if narrow or not number:
                axes.set_ylabel("place of the fact in the text")
            if not narrow or number == many - 1:
                line = f" (line: trained length {tokens(trained_length)})" if 0 < within < len(lengths) else ""
                axes.set_xlabel(f"tokens of the text{line}")
        grid[0, 0].invert_yaxis()
        return figure
