"""The figure of angles that training never showed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.figures.material import Array, frequencies, main_rope, opened, theta_of
from ropewalk.figures.style import (
    ON_LIGHT,
    bar,
    caption,
    fit,
    heat,
    length_ticks,
    panel,
    style,
    tokens,
)
from ropewalk.methods import Reach, method_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.values import check_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("pi", "ntk", "yarn", "llama3")
NAMES = {
    "plain": "no scaling",
    "pi": "PI",
    "linear": "PI",
    "ntk": "NTK",
    "yarn": "YaRN",
    "llama3": "Llama 3",
    "longrope": "LongRoPE",
    "abf": "ABF",
    "resonance": "Resonance",
}
_UNSEEN = "#f0a068"


def unseen(config: Any, target: int | None = None, *, rows: int = 256) -> Figure:
    """Draw the angles that no token had in training, hatched and counted: unscaled, then under each method.

    Training means training before any extension, at the config's original length, even if the model was then trained
    with its scaling. The colour of a column is the pair's frequency over its unscaled one.

    **Arguments:**
    - `config`: a `RopeConfig` with a trained length; a packaged config ("llama_2_7b"); the path of a config.json, a
      folder or a .gguf; the content of a config.json; or a transformers config. Of several ropes, that of full
      attention.
    - `target`: tokens of the long window; by default the length of the config's own scaling, or four times the trained
      length.
    - `rows`: positions in the picture.

    **Returns:** a matplotlib figure.
    **Raises:** `RopeError` for a target within the trained length, and for a rope that no method extends.

    >>> import ropewalk as rw
    >>> figure = rw.figures.unseen("llama_2_7b", 16_384, rows=16)
    """
    shown = unseen_numbers(config, target, rows=rows)
    positions, cells, ratios, trained = (shown[key] for key in ("positions", "cells", "ratios", "trained_length"))
    with style():
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import LinearSegmentedColormap, LogNorm
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
        from matplotlib.ticker import MaxNLocator

        columns = min(fit(3, 2), len(cells))
        rows = -(-len(cells) // columns)
        figure = Figure(figsize=fit((2.3 + 2.7 * columns, 1.5 + 2.9 * rows), (4.3, 1.7 + 1.7 * rows)))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        last = positions[-1] + 1
        least = min(0.5, *(float(values.min()) for values in ratios.values()))
        blues = LinearSegmentedColormap.from_list("ratio", ["#5b8db8", "#f4f6f8"])
        image = None
        for axes, (name, unseen_cells) in zip(grid.ravel(), cells.items(), strict=False):
            count, pairs = unseen_cells.shape
            extent = (-0.5, pairs - 0.5, last, 0)
            image = heat(axes, ratios[name][None], cmap=blues, norm=LogNorm(least, 1), extent=extent)
            boxes = []
            for pair in range(pairs):
                for start, stop in _runs(unseen_cells[:, pair]):
                    top, low = start * last / count, stop * last / count
                    boxes.append([(pair - 0.5, top), (pair + 0.5, top), (pair + 0.5, low), (pair - 0.5, low)])
            look: Any = {"facecolors": _UNSEEN, "edgecolors": ON_LIGHT, "linewidths": 0, "hatch": "/////"}
            axes.add_collection(PolyCollection(boxes, **look), autolim=False)
            axes.axhline(trained, color=ON_LIGHT, linewidth=1.2)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            length_ticks(axes, "y")
            axes.set_yticks([0, *(last * share / 4 for share in range(1, 5))])
            panel(axes, f"{name}: {_share(float(unseen_cells.mean()))} never seen")
        for axes in grid.ravel()[len(cells) :]:
            axes.set_axis_off()
        for axes in grid[-1]:
            axes.set_xlabel("pair (fastest first)")
        for axes in grid[:, 0]:
            axes.set_ylabel("position (tokens)")
        grid[0][0].annotate(
            f"{shown['mark']} {tokens(trained)}", (0, trained), xytext=(2, -3),
            textcoords="offset points", va="top", fontsize=fit(9, 7), color=ON_LIGHT,
        )  # fmt: skip
        place = fit({"shrink": 0.7, "pad": 0.02}, {"location": "bottom", "aspect": 40})
        drawn = bar(figure, image, grid, "frequency / unscaled frequency (no unit)", **place)
        powers = [2**n for n in range(12) if 2.0**-n >= least]
        drawn.set_ticks([1 / power for power in powers], labels=["1", *(f"1/{power}" for power in powers[1:])])
        drawn.minorticks_off()
        caption(figure, shown["title"], shown["note"])
        handle = Patch(facecolor=_UNSEEN, edgecolor=ON_LIGHT, linewidth=0, hatch="/////", label="angle never seen")
        if fit(True, False):
            figure.legend(handles=[handle], loc="upper right", borderaxespad=0.2)
        else:
            grid[0][-1].legend(handles=[handle], loc="lower left", labelcolor=ON_LIGHT)
        return figure


def unseen_numbers(config: Any, target: int | None = None, *, rows: int = 256) -> dict[str, Any]:
    """Return what `unseen` draws, by its arguments.

    **Returns:** "positions" `[rows]`, tokens; "cells", by method whether the angle is unseen, bool `[rows, pairs]`;
    "ratios", by method each pair's frequency over its unscaled one; "trained_length", tokens; "mark", "title", "note".

    >>> import ropewalk as rw
    >>> cells = rw.figures.unseen_numbers("llama_2_7b", 16_384)["cells"]
    >>> {name: f"{unseen.mean():.0%}" for name, unseen in cells.items()}
    {'no scaling': '16%', 'PI': '0%', 'NTK': '4%', 'YaRN': '0%', 'Llama 3': '0%'}
    """
    source = opened(config)
    rope = main_rope(source)
    trained, wanted = lengths(rope)
    check_whole("figures.unseen", least=2, target=target, rows=rows)
    length = target or wanted
    if length <= trained:
        raise RopeError(
            "figures.unseen: the target must exceed the trained length.",
            facts={"target": length, "trained_length": trained},
            cure="Pass a longer target, such as four times the trained length.",
        )
    methods = ("plain", *METHODS)
    ropes = {name: method_named(name).rope(rope.unscaled(), Reach(trained, length)) for name in methods}
    if rope.scaling is not None:  # with its own parameters, whatever the target
        ropes[rope.scaling.rope_type] = rope
    positions = np.linspace(0, length - 1, rows)
    base = frequencies(rope.unscaled())
    by_method = {NAMES.get(name, name): frequencies(one, length) for name, one in ropes.items()}
    return {
        "positions": positions,
        "cells": {name: never_seen(inv_freq, base, trained, positions) for name, inv_freq in by_method.items()},
        "ratios": {name: inv_freq / base for name, inv_freq in by_method.items()},
        "trained_length": trained,
        "mark": "trained length" if rope.trained_length == trained else "original length",
        "title": f"Angles never seen in {trained:,} tokens: {source.name}, to {length:,} tokens",
        "note": f"theta {theta_of(rope)}, {rope.pairs} pairs; shares are of all cells, {rows} positions. "
        "A pair that completes a turn within this length has seen every angle.",
    }


def never_seen(inv_freq: Array, trained_freq: Array, trained_length: int, positions: Array) -> npt.NDArray[np.bool_]:
    """Return whether training never showed each pair's angle at each position, modulo a turn; bool `[n, pairs]`.

    `inv_freq` are the frequencies in use, `trained_freq` those of training, in radians per token.
    """
    shown = trained_length * trained_freq
    unseen: npt.NDArray[np.bool_] = (shown < 2 * np.pi) & (np.mod(np.outer(positions, inv_freq), 2 * np.pi) >= shown)
    return unseen


def _runs(marked: Sequence[bool]) -> list[tuple[int, int]]:
    """Return start and end of each run of True.

    >>> _runs([False, True, True, False, True])
    [(1, 3), (4, 5)]
    """
    padded = [False, *marked, False]
    edges = [place for place, (before, after) in enumerate(pairwise(padded)) if bool(before) != bool(after)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _share(share: float) -> str:
    """Return a share in per cent; a small one is not rounded to 0.

    >>> _share(0.0), _share(0.0004), _share(0.413)
    ('0 %', 'below 0.1 %', '41.3 %')
    """
    return "0 %" if share == 0 else "below 0.1 %" if share < 0.001 else f"{share:.1%}".replace("%", " %")


def lengths(rope: RopeConfig) -> tuple[int, int]:
    """Return the lengths before and with a config's scaling (without a scaling: four times the first), in tokens."""
    trained = rope.original_length
    if trained is None:
        raise RopeError(
            "figures: this config does not contain its model's trained length.",
            facts={"config": rope},
            cure="Add max_position_embeddings to it.",
        )
    if rope.scaling is None:
        return trained, 4 * trained
    most, factor = rope.max_position_embeddings or trained, getattr(rope.scaling, "factor", None)
    return trained, max(most, round(trained * factor)) if isinstance(factor, int | float) else most
