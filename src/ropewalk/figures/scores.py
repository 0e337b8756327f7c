"""Figures of scores: by shift, distance and patch, attention maps, the two pairings, rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    OTHER,
    PALE,
    PURPLE,
    QUIET,
    RED,
    SKY,
    bar,
    caption,
    heat,
    length_ticks,
    panel,
    style,
)
from ropewalk.methods import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MOVES = {
    "both move": Look(BLUE, "-", "o"),
    "only the query moves": Look(RED, "--", "s"),
    "only the key moves": Look(GREEN, ":", "^"),
}


def shift(
    grid: Any,
    *,
    start: tuple[int, int],
    shifts: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    spread: float,
    note: str = "",
) -> Figure:
    """Draw scores of a query and a key: by both positions, and along a shift.

    **Arguments:**
    - `grid`: the score of a query at m with a key at n, `[m, n]`.
    - `start`: m and n before the shift.
    - `shifts`: in tokens.
    - `curves`: scores by shift.
    - `spread`: range of the score while both move.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.2, 4.4))
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
        image = heat(left, grid)
        left.set_aspect("equal")
        bar(figure, image, left, "score q·k / √head_dim", shrink=0.85)
        m, n = start
        ahead = len(grid) - 1 - max(m, n)
        left.plot([n, n + ahead], [m, m + ahead], color="white", linewidth=3.2)
        left.plot([n, n + ahead], [m, m + ahead], color=BLUE, linewidth=1.8)
        left.plot([n], [m], color="white", marker="o", markersize=8, markeredgecolor=BLUE, markeredgewidth=1.8)
        panel(left, "every query position, every key position")
        left.set_xlabel("key position n (tokens)")
        left.set_ylabel("query position m (tokens)")
        for name, values in curves.items():
            look = _MOVES.get(name, Look(QUIET))
            right.plot(
                shifts, values, color=look.color, linestyle=look.line, marker=look.marker,
                markevery=max(1, len(shifts) // 8),
                label=f"{name} (within {spread:.0e})" if name == "both move" else name,
            )  # fmt: skip
        right.set_xlim(shifts[0], shifts[-1])
        length_ticks(right)
        low, high = right.get_ylim()
        right.set_ylim(low, high + 0.4 * (high - low))
        panel(right, f"the circle (m = {m}, n = {n}) moved")
        right.set_xlabel("shift (tokens)")
        right.set_ylabel("score q·k / √head_dim")
        right.legend(loc="upper left")
        caption(figure, "A score depends only on the distance", note)
        return figure


def axial(panels: Sequence[tuple[str, tuple[int, int], Any]], *, note: str = "") -> Figure:
    """Draw the similarity of one patch to every patch of a grid, for each (name, patch, similarity)."""
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(1.4 + 3.1 * len(panels), 4.15))
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        low = min(float(values.min()) for _, _, values in panels)
        for index, (axes, (name, (row, column), values)) in enumerate(zip(grid, panels, strict=True)):
            image = heat(axes, values, vmin=low, vmax=1.0)
            axes.set_aspect("equal")
            axes.plot([column], [row], color="white", marker="x", markersize=7, markeredgewidth=3.2)
            axes.plot([column], [row], color=RED, marker="x", markersize=6, markeredgewidth=1.8)
            panel(axes, name)
            axes.set_xlabel("column (patches)")
            if index == 0:
                axes.set_ylabel("row (patches)")
        bar(figure, image, grid, "score / its largest (no unit)", shrink=0.8, pad=0.02)
        caption(figure, "One patch against all others", note)
        return figure


def decay(
    distances: Sequence[int],
    *,
    equal: Sequence[float],
    bound: Sequence[float],
    random_bands: Sequence[tuple[float, Sequence[float], Sequence[float]]],
    random_mean: Sequence[float],
    random_examples: Sequence[Sequence[float]],
    heads: Mapping[str, Sequence[float]],
    falling: str,
    rising: str,
    rising_count: int,
    model: str,
    note: str = "",
) -> Figure:
    """Draw scores against distance in tokens: q = k, the paper's bound for it, random q and k, and trained heads.

    **Arguments:**
    - `equal`, `bound`, `random_mean`, `random_examples`: scores over |q| |k| by distance.
    - `random_bands`: (share of draws, low, high).
    - `heads`: mean score by distance, less its mean over distances. `falling` and `rising` are drawn in colour.
    - `rising_count`: heads that rise again at the end.
    """
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.2, 7.6))
        first, above, second, third = figure.subplots(2, 2).ravel()
        first.plot(distances, equal, color=BLUE, label="equal pairs, q = k")
        first.set_ylim(min(-0.05, min(equal)), 1.05)
        panel(first, "q = k: falls, but not evenly")
        first.set_ylabel("score / |q| |k| (no unit)")
        above.plot(distances, bound, color=PURPLE, label="the paper's bound for q = k")
        above.axhline(1, color=INK, linewidth=1.4, linestyle="--", label="|q| |k|, the largest score there is")
        above.set_ylim(bottom=0)
        above.legend(loc="upper right")
        lowest = min(bound)
        panel(above, f"the bound: {lowest:.1f} |q| |k| or more" + (", so it excludes no score" if lowest >= 1 else ""))
        above.set_ylabel("bound / |q| |k| (no unit)")
        for number, (share, low, high) in enumerate(random_bands):
            second.fill_between(
                distances, low, high, color=ORANGE, alpha=0.25 + 0.25 * number, linewidth=0,
                label=f"{share:.0%} of draws",
            )  # fmt: skip
        for number, line in enumerate(random_examples):
            second.plot(distances, line, color=INK, linewidth=0.9, label=None if number else "single draws")
        second.plot(distances, random_mean, color=BLUE, linewidth=2, linestyle="--", label="mean of draws")
        second.set_ylim(top=1.35 * second.get_ylim()[1])
        second.legend(loc="upper right", ncols=2, fontsize=8)
        panel(second, "random q and k: no decay")
        second.set_ylabel("score / |q| |k| (no unit)")
        for name, values in heads.items():
            if name not in (falling, rising):
                third.plot(distances, values, color=PALE, linewidth=0.9, zorder=2)
        third.plot([], [], color=PALE, linewidth=0.9, label="the other heads")
        third.plot(distances, heads[falling], color=BLUE, zorder=4, label=f"falls most: {falling}")
        third.plot(distances, heads[rising], color=RED, linestyle="--", zorder=4, label=f"rises again most: {rising}")
        low, high = third.get_ylim()
        third.set_ylim(low, high + 0.25 * (high - low))
        third.legend(loc="upper right", fontsize=8)
        panel(third, f"{model}: {rising_count} of {len(heads)} heads rise again")
        third.set_ylabel("mean score q·k / √head_dim, less its mean")
        for axes in (first, above, second, third):
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.set_xlim(distances[0], distances[-1])
            axes.set_xlabel("distance (tokens)")
            length_ticks(axes)
        caption(figure, "Rotation allows decay with distance but does not enforce it", note)
        return figure


def order(
    rows: Sequence[tuple[str, Sequence[tuple[Sequence[int], Any]]]], *, words: Sequence[str], note: str = ""
) -> Figure:
    """Draw a row of attention weights for each (label, sentences); rows and columns of a panel are the words.

    **Arguments:**
    - `rows`: a sentence is the position of each word, and the weights `[words, words]`. A weight has a frame if its
      per cent are not those of the same two words in the first sentence.
    """
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        columns = len(rows[0][1])
        figure = Figure(figsize=(1.4 + 2.9 * columns, 1.0 + 2.75 * len(rows)))
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for drawn, (label, sentences) in zip(grid, rows, strict=True):
            for axes, (places, weights) in zip(drawn, sentences, strict=True):
                heat(axes, weights, cmap="Blues", vmin=0.0, vmax=1.0)
                axes.set_aspect("equal")
                for query, row in enumerate(weights):
                    for key, weight in enumerate(row):
                        shown, in_first = (f"{100 * one:.0f}" for one in (weight, sentences[0][1][query][key]))
                        axes.text(key, query, f"{shown} %", ha="center", va="center", fontsize=11, color=INK)
                        if shown != in_first:
                            axes.add_patch(
                                Rectangle(
                                    (key - 0.46, query - 0.46), 0.92, 0.92, fill=False, edgecolor=RED, linewidth=2
                                )
                            )
                names = [f"{word} ({place})" for word, place in zip(words, places, strict=True)]
                axes.set_xticks(range(len(words)), names)
                axes.set_yticks(range(len(words)), names)
                sentence = " ".join(word for _, word in sorted(zip(places, words, strict=True)))
                panel(axes, sentence)
                axes.set_xlabel("key (token)")
            drawn[0].set_ylabel(f"{label}\n\nquery (token)")
        caption(figure, "The same words in two orders", note)
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


def layer(shapes: Mapping[str, tuple[int, ...]]) -> Figure:
    """Draw where an attention layer rotates: `shapes` of "x", "q", "k", "v", "weights" and "out" are on the arrows."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch

        figure = Figure(figsize=(10.4, 4.0))
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.set_xlim(-0.7, 10.9)
        axes.set_ylim(-0.7, 3.4)
        for name, (x, y, text) in _BOXES.items():
            own = name.startswith(("rotate", "positions"))
            axes.add_patch(
                FancyBboxPatch(
                    (x - 0.55, y - 0.27), 1.1, 0.54, boxstyle="round,pad=0,rounding_size=0.1", zorder=3,
                    facecolor="#dbeaf6" if own else "white", edgecolor=BLUE if own else INK, linewidth=2 if own else 1,
                )
            )  # fmt: skip
            axes.text(x, y, text, ha="center", va="center", fontsize=10, zorder=4, color=INK)
        for start, end, carried in _ARROWS:
            (x, y, _), (to_x, to_y, _) = _BOXES[start], _BOXES[end]
            down = start == "positions"
            tail = (x, y - 0.27) if down else (x + 0.55, y)
            head = (to_x, to_y + 0.27) if down else (to_x - 0.55, to_y)
            arrow = {"arrowstyle": "->", "color": BLUE if down else INK}
            axes.annotate("", head, tail, arrowprops=arrow, zorder=2)  # below the boxes
            if carried is not None:
                level = tail[1] == head[1]
                along, up = ((one + other) / 2 for one, other in zip(tail, head, strict=True))
                axes.text(
                    along, up + 0.08 * level, str(list(shapes[carried])), fontsize=8, color=QUIET, ha="center",
                    va="bottom" if level else "center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                )  # fmt: skip
        axes.text(0.0, 0.62, str(list(shapes["x"])), ha="center", va="center", fontsize=8, color=QUIET)
        axes.annotate("", (10.1, 0.75), (9.45, 0.75), arrowprops={"arrowstyle": "->", "color": INK})
        axes.text(10.15, 0.75, str(list(shapes["out"])), ha="left", va="center", fontsize=8, color=QUIET)
        note = "Input and output: [batch, tokens, hidden]; q, k, v: [batch, tokens, heads, head_dim]; weights: "
        caption(figure, "Where an attention layer rotates", note + "[batch, heads, queries, keys].")
        return figure


LEAST = 1e-3  # weights below share one colour


def maps(rows: Sequence[tuple[str, Sequence[Any]]], *, columns: Sequence[str], note: str = "") -> Figure:
    """Draw a row of attention maps for each (label, weights `[queries, keys]` of each column); later keys are white."""
    with style():
        import numpy as np
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2.0 + 2.7 * len(columns), 1.3 + 2.75 * len(rows)))
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
        image = None
        for index, (label, weights) in enumerate(rows):
            for axes, values, name in zip(grid[index], weights, columns, strict=True):
                hidden = np.triu(np.ones(values.shape, dtype=bool), 1)
                shown = np.ma.masked_where(hidden, np.maximum(values, LEAST))
                image = heat(axes, shown, norm=LogNorm(LEAST, 1.0))
                axes.set_aspect("equal")
                axes.spines[["left", "bottom"]].set_visible(False)
                if index == 0:
                    first, colon, rest = name.partition(": ")
                    panel(axes, f"{first}\n{rest}" if colon else f"{first}\n")
                if index == len(rows) - 1:
                    axes.set_xlabel("key position (tokens)")
            grid[index][0].set_ylabel(f"{label}\n\nquery position (tokens)")
        if image is not None:
            bar(figure, image, grid, f"attention weight (no unit; {LEAST:g} and below alike)", shrink=0.6, pad=0.02)
        caption(figure, "Attention maps: rotation changes them, a shift does not", note)
        return figure


_RIGHT, _WRONG = "#cfe4f3", "#f7d3bd"  # fills of cells that ink can be read on


def cache(distances: Mapping[str, Any], *, note: str = "") -> Figure:
    """Draw a table for each way to use a cache: the distance that each score contains, `[steps, keys]`; nan: no key.

    Cells with a distance other than step - key are red and in bold.
    """
    with style():
        import numpy as np
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        rows = (len(distances) + 1) // 2  # two columns: a phone shows the numbers, too
        figure = Figure(figsize=(6.4, 0.8 + 2.9 * rows))
        grid = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True)
        for axes, (name, table) in zip(grid.flat, distances.items(), strict=False):
            for (step, key), value in np.ndenumerate(table):
                if np.isnan(value):
                    continue
                wrong, stored = round(float(value)) != step - key, step == key
                axes.add_patch(
                    Rectangle(
                        (key - 0.46, step - 0.46), 0.92, 0.92, facecolor=_WRONG if wrong else _RIGHT,
                        edgecolor=INK if stored else "none", linewidth=1.3,
                    )
                )  # fmt: skip
                axes.text(
                    key, step, f"{round(float(value))}", ha="center", va="center", fontsize=9,
                    color=INK, fontweight="bold" if wrong else "normal",
                )  # fmt: skip
            axes.set_xlim(-0.6, table.shape[1] - 0.4)
            axes.set_ylim(table.shape[0] - 0.4, -0.6)
            axes.set_aspect("equal")
            axes.grid(False)
            axes.set_xticks(range(table.shape[1]))
            axes.set_yticks(range(table.shape[0]))
            panel(axes, name)
        for axes in grid[-1]:
            axes.set_xlabel("key of token n (index)")
        for axes in grid[:, 0]:
            axes.set_ylabel("query of token m (index)")
        caption(figure, "The distance between query and key that each score contains", note)
        return figure


_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, QUIET, INK)
_BARS = {
    "its own pairing": Look(BLUE, ""),
    "the wrong pairing": Look(RED, "////"),
    "converted": Look(SKY, "...."),
}


def pairing(
    pairs: Mapping[str, Sequence[tuple[int, int]]], *, losses: Mapping[str, Mapping[str, Any]], note: str = ""
) -> Figure:
    """Draw the features of each pair joined by arcs, for each convention, and the loss of each model.

    **Arguments:**
    - `pairs`: two features for each pair, by convention.
    - `losses`: by model, "bars", (mean, low, high) in nats per token by case, and "uniform", the loss of an even guess.
    """
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch

        width = max(4.9, 2.4 + 1.7 * len(losses))
        figure = Figure(figsize=(4.5 + width, 4.8))
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(4.5, width))[0]
        tall = [1.3 + 0.32 * len(joined) * (joined[0][1] - joined[0][0] > 1) for joined in pairs.values()]
        grid = left.subplots(len(pairs), 1, squeeze=False, height_ratios=tall)[:, 0]
        for axes, (name, joined) in zip(grid, pairs.items(), strict=True):
            features = 2 * len(joined)
            top = 0.0
            for number, (a, b) in enumerate(joined):
                color = _COLORS[number % len(_COLORS)]
                for feature in (a, b):
                    axes.add_patch(
                        FancyBboxPatch(
                            (feature - 0.33, -0.3), 0.66, 0.6, boxstyle="round,pad=0,rounding_size=0.12",
                            facecolor="white", edgecolor=color, linewidth=2,
                        )
                    )  # fmt: skip
                    axes.text(feature, 0, str(number), ha="center", va="center", fontsize=10, color=INK)
                level = 0.6 + (0.32 * number if b - a > 1 else 0.0)  # crossing arcs have different heights
                axes.plot([a, a, b, b], [0.3, level, level, 0.3], color=color, linewidth=1.6)
                top = max(top, level)
            axes.set_xlim(-0.7, features - 0.3)
            axes.set_ylim(-0.5, top + 0.2)
            axes.set_aspect("equal", anchor="NW")
            axes.grid(False)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_xticks(range(features))
            panel(axes, name + " (number in the box: pair)")
            axes.set_xlabel("feature of the head (index)")
        caption(left, "Which features form a pair")
        axes = right.add_subplot()
        thick = 0.26
        for place, of_model in enumerate(losses.values()):
            for index, (case, (mean, low, high)) in enumerate(of_model["bars"].items()):
                look = _BARS.get(case, Look(QUIET))
                axes.bar(
                    place + (index - 1) * thick, mean, thick * 0.9, color=look.color, hatch=look.line,
                    edgecolor="white", linewidth=0, label=None if place else case,
                )  # fmt: skip
                axes.errorbar(
                    place + (index - 1) * thick, mean, yerr=[[mean - low], [high - mean]], color=INK, linewidth=1.2,
                    capsize=3,
                )  # fmt: skip
                axes.annotate(
                    f"{mean:.2f}", (place + (index - 1) * thick, high), xytext=(0, 3), textcoords="offset points",
                    ha="center", fontsize=9,
                )  # fmt: skip
            axes.plot(
                [place - 0.45, place + 0.45], [of_model["uniform"]] * 2, color=QUIET, linestyle=":", linewidth=1.6
            )
        axes.set_xticks(range(len(losses)), list(losses))
        axes.set_xlim(-0.6, len(losses) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("loss (nats per token)")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, fontsize=9, columnspacing=1.2)
        caption(right, "What the wrong pairing costs")
        if note:
            figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
        return figure


_PRECISION_LOOKS = {
    "angles in bfloat16": Look(PURPLE, ":", "v"),
    "angles in float32": Look(RED, "--", "s"),
    "tables in bfloat16": Look(ORANGE, "-.", "^"),
    "tables in float16": Look(GREEN, "--", "D"),
    "ropewalk": Look(BLUE, "-", "o"),
}


def precision(
    positions: Sequence[int],
    *,
    cosines: Mapping[str, Sequence[float]],
    scores: Mapping[str, Sequence[float]],
    distance: int,
    note: str = "",
) -> Figure:
    """Draw errors of cosines, and of scores at one distance, by position in tokens for each way of computing."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        figure = Figure(figsize=(9.8, 4.6))
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, curves in ((left, cosines), (right, scores)):
            for name, values in curves.items():
                look = _PRECISION_LOOKS.get(name, OTHER)
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
    """Return a power of ten as short text.

    >>> _short(100.0), _short(10_000.0), _short(1e7)
    ('100', '10,000', '10M')
    """
    return f"{value / 1e6:,.0f}M" if value >= 1e6 else f"{value:,.0f}"
