"""The strip of facts: a row for each method, and a dot for each fact by how far back it was told."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ropewalk.figures.style import GRID, INK, PALE, QUIET, SHADE, WIDE, length_ticks, style, tokens
from ropewalk.methods import Look
from ropewalk.statistics import binomial_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHANCE, CONFIDENCE = 0.25, 0.95
SMOOTH = 1 / 20  # of the longest distance: the standard deviation of the kernel
POINTS, CURVES, BANDED = 100, 5, 2  # of a curve; curves; those of them that have bands, if they are more than three
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

    >>> finding({"dca": None, "string": None, "yarn": 12_400, "plain": 0})
    'dca and string find facts to the end, yarn up to 12,400 tokens back, plain no more than chance'
    >>> finding({"dca": 15_200, "yarn": 12_400})
    'dca finds facts up to 15,200 tokens back, yarn up to 12,400'
    """
    groups: dict[str, list[str]] = {}
    for name, reach in reaches.items():
        back = "" if any(" back" in one for one in groups) else " tokens back"
        far = "no more than chance" if reach == 0 else "to the end" if reach is None else f"up to {reach:,}{back}"
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


def draw_strip(rows: Sequence[StripRow], last: int, title: str, size: tuple[float, float] = WIDE) -> Figure:
    """Return the share of facts found by distance as curves, and below it a row of dots for each method.

    `last`: the longest distance in tokens. Only the width of `size`, in inches, counts.
    """
    from matplotlib.figure import Figure

    narrow = size[0] < WIDE[0]
    most = max((len(lane) for row in rows for lane in row.lanes), default=1)
    dot = float(np.clip(0.6 * 72 * size[0] / max(most, 1) * 0.75, 2.2, 4.8))  # points
    lane = (dot + 1.6) / 72
    heights = [max(0.42 if narrow else 0.36, len(row.lanes) * lane + 0.14) for row in rows]
    with style():
        figure = Figure(figsize=(size[0], 2.0 + sum(heights) + 1.0))
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.0, sum(heights)))
        _curves(above, rows, last)
        above.set_title(textwrap.fill(title, 44 if narrow else 92), fontsize=9.5 if narrow else 12, parse_math=False)
        y, places = 0.0, []
        for row, height in zip(rows, heights, strict=True):
            places.append(y + height / 2)
            first = y + height / 2 - (len(row.lanes) - 1) / 2 * lane
            for number, facts in enumerate(row.lanes):
                for hit in (True, False):
                    at = [distance for distance, one in facts if one == hit]
                    colors = {"color": row.look.color} if hit else {"facecolors": "none", "edgecolors": PALE}
                    below.scatter(at, [first + number * lane] * len(at), s=dot**2, linewidths=0.8, zorder=3, **colors)
            if row.trained < last:
                below.vlines(row.trained, y, y + height, color=QUIET, linewidth=1)
            if not any(row.lanes):
                below.annotate(row.note, (0.02 * last, places[-1]), va="center", fontsize=9, color=QUIET)
            elif not narrow:
                below.annotate(f"{row.count}\n{row.note}".strip(), (1, places[-1]), xycoords=("axes fraction", "data"),
                               xytext=(8, 0), textcoords="offset points", va="center", fontsize=9, color=INK,
                               parse_math=False)  # fmt: skip
            y += height
            below.axhline(y, color=GRID, linewidth=0.8)
        names = [f"{row.name}\n{row.count}" if narrow and row.count else row.name for row in rows]
        below.set_yticks(places, names, parse_math=False, fontweight="bold", fontsize=8 if narrow else 10)
        for tick, row in zip(below.get_yticklabels(), rows, strict=True):
            tick.set_color(row.look.color)
        below.tick_params(axis="y", length=0)
        below.grid(False)
        below.spines["left"].set_visible(False)
        below.set(ylim=(y, 0), xlim=(0, last))
        marks = f"one dot for each fact: {FOUND} found  {MISSED} not found"
        below.set_xlabel(f"tokens between the fact and the question{chr(10) if narrow else '; '}{marks}", fontsize=9)
        below.set_xticks(np.linspace(0, last, 5))
        length_ticks(below)
        return figure


def _curves(axes: Axes, rows: Sequence[StripRow], last: int) -> None:
    """Draw the share found by distance under the first methods and the last, chance, and the trained length."""
    drawn = [row for row in rows if any(row.lanes)]
    drawn = drawn if len(drawn) <= CURVES else [*drawn[: CURVES - 1], drawn[-1]]
    for number, row in enumerate(drawn):
        at, share, low, high = share_by_distance(row, last)
        axes.plot(at, share, row.look.line, color=row.look.color, linewidth=2)
        if number < BANDED or len(drawn) <= BANDED + 1:
            axes.fill_between(at, low, high, color=row.look.color, alpha=0.13, linewidth=0)
    axes.axhline(CHANCE, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    note: Any = {"textcoords": "offset points", "fontsize": 8, "color": QUIET}
    axes.annotate("chance:\none in four", (1, CHANCE), xycoords=("axes fraction", "data"), xytext=(8, 0), va="center",
                  **note)  # fmt: skip
    if len({row.trained for row in rows}) == 1 and (trained := rows[0].trained) < last:
        axes.axvspan(trained, last, color=SHADE, zorder=0, linewidth=0)
        axes.axvline(trained, color=QUIET, linewidth=1)
        axes.annotate(f"trained length {tokens(trained)}", (trained, 1.2), xytext=(5, -2), va="top", **note)
    axes.set(ylim=(0, 1.2), ylabel="share found")
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
