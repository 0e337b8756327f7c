"""Figures of scores: by distance, and attention maps of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.figures.material import (
    Array,
    attention_inputs,
    described,
    frequencies,
    main_rope,
    rotary_model,
    shown_name,
    windows,
)
from ropewalk.figures.style import (
    BLUE,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    bar,
    caption,
    fit,
    heat,
    length_ticks,
    panel,
    style,
    wrapped,
)
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.values import check_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DRAWS = 1_000
BANDS = (0.9, 0.5)
POINTS = 4_096  # distances at which scores are computed


def decay(config: Any, length: int = 256, *, seed: int = 0) -> Figure:
    """Draw scores by distance: of equal q and k, the paper's bound, and of random q and k.

    **Arguments:** those of `rw.figures.decay_numbers`. **Returns:** a matplotlib figure.

    >>> import ropewalk as rw
    >>> figure = rw.figures.decay(rw.RopeConfig(128, interleaved=False, theta=500_000.0), 8192)
    """
    shown = decay_numbers(config, length, seed=seed)
    distances = shown["distances"]
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=fit((9.2, 6.6), (4.3, 7.2)))
        panels = first, above, second = figure.subplot_mosaic(fit("ab;cc", "a;b;c")).values()
        first.plot(distances, shown["equal"], color=BLUE, label="equal pairs, q = k")
        first.set_ylim(min(-0.05, min(shown["equal"])), 1.05)
        panel(first, "q = k: falls, but not evenly")
        first.set_ylabel("score / |q| |k| (no unit)")
        above.plot(distances, shown["bound"], color=PURPLE, label="the paper's bound for q = k")
        above.axhline(1, color=INK, linewidth=1.4, linestyle="--", label="|q| |k|, the largest score there is")
        above.set_ylim(bottom=0)
        above.legend(loc="upper right")
        lowest = min(shown["bound"])
        panel(above, f"the bound: {lowest:.1f} |q| |k| or more" + (", so it excludes no score" if lowest >= 1 else ""))
        above.set_ylabel("bound / |q| |k| (no unit)")
        for number, (share, low, high) in enumerate(shown["random_bands"]):
            second.fill_between(
                distances, low, high, color=ORANGE, alpha=0.25 + 0.25 * number, linewidth=0,
                label=f"{share:.0%} of draws",
            )  # fmt: skip
        for number, line in enumerate(shown["random_examples"]):
            second.plot(distances, line, color=INK, linewidth=0.9, label=None if number else "single draws")
        second.plot(distances, shown["random_mean"], color=BLUE, linewidth=2, linestyle="--", label="mean of draws")
        second.set_ylim(top=fit(1.35, 2.0) * second.get_ylim()[1])
        second.legend(loc="upper right", ncols=2, fontsize=8)
        panel(second, "random q and k: no decay")
        second.set_ylabel("score / |q| |k| (no unit)")
        for axes in panels:
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.set_xlim(distances[0], distances[-1])
            axes.set_xlabel("distance (tokens)")
            length_ticks(axes)
        caption(figure, "Rotation allows decay with distance but does not enforce it", shown["note"])
        return figure


def decay_numbers(config: Any, length: int = 256, *, seed: int = 0) -> dict[str, Any]:
    """Return what `decay` draws, by its arguments.

    **Arguments:**
    - `config`: as for `rw.figures.unseen`. `length`: distances from 0 to `length` - 1 tokens, 16 or more.
    - `seed`: of random q and k.

    **Returns:** "distances", at most 4,096; by distance, over |q| |k|: "equal", "bound", "random_mean",
    "random_examples" and "random_bands" of (share of draws, low, high); "note".

    >>> import ropewalk as rw
    >>> numbers = rw.figures.decay_numbers(rw.RopeConfig(64, interleaved=False))
    >>> numbers["equal"][[0, 64, 128]].round(2).tolist()
    [1.0, 0.43, 0.28]
    """
    check_whole("figures.decay", least=16, optional=False, length=length)
    rope = main_rope(config)
    distances = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round())
    equal, bound = decay_of(rope, distances)
    draws = random_scores(rope, distances, seed)
    return {
        "distances": distances,
        "equal": equal,
        "bound": bound,
        "random_bands": [(share, *np.quantile(draws, [0.5 - share / 2, 0.5 + share / 2], axis=0)) for share in BANDS],
        "random_mean": draws.mean(0),
        "random_examples": draws[:2],
        "note": f"{described(rope)}; {DRAWS:,} draws (seed {seed}).",
    }


def named(text: str | None) -> str:
    """Return the name of a text in a note."""
    return "Moby-Dick" if text is None else "the given text"


def decay_of(config: RopeConfig, distances: Array) -> tuple[Array, Array]:
    """Return the score of equal q and k with equal pairs, and the paper's bound on it, both divided by |q| |k|.

    The bound is the mean of |S_j|, the sums of the first j unit vectors: S_P is P times the score, and with equal
    pairs the largest difference |h_(i+1) - h_i| is that of the last pair to 0.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.3, eq. 36 and 37.
    """
    angles = np.outer(distances, frequencies(config, int(distances[-1]) + 1))
    return np.cos(angles).mean(1), np.abs(np.cumsum(np.exp(1j * angles), axis=1)).mean(1)


def random_scores(config: RopeConfig, distances: Array, seed: int) -> Array:
    """Return scores of random normal q and k, divided by |q| |k|, `[draws, distances]`.

    With q and k as complex numbers, a pair adds Re(q conj(k) exp(i D f)) at distance D.
    """
    random = np.random.default_rng(seed)
    q, k = (random.standard_normal((DRAWS, 2, config.pairs)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=(1, 2), keepdims=True) for x in (q, k))
    product = (q[:, 0] + 1j * q[:, 1]) * (k[:, 0] - 1j * k[:, 1])
    scores: Array = (product @ np.exp(1j * np.outer(frequencies(config, int(distances[-1]) + 1), distances))).real
    return scores


LEAST = 1e-3  # weights below share one colour


def maps(model: str | Decoder = "tiny", tokens: int = 64, **options: Any) -> Figure:
    """Draw attention weights of a few heads: as trained, without rotation, and with all positions moved.

    **Arguments:** those of `rw.figures.maps_numbers`. **Returns:** a matplotlib figure.

    >>> import ropewalk as rw
    >>> text = "The whale swam on. The whale swam on. The whale swam on."
    >>> figure = rw.figures.maps("tiny", 12, text=text, heads=[(2, 1)])
    """
    shown = maps_numbers(model, tokens, **options)
    rows, columns = shown["rows"], shown["columns"]
    with style():
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure

        figure = Figure(figsize=fit((2.0 + 2.7 * len(columns), 1.3 + 2.75 * len(rows)), (4.3, 1.6 + 1.6 * len(rows))))
        grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
        image = None
        for index, (label, weights) in enumerate(rows):
            for axes, values, name in zip(grid[index], weights, columns, strict=True):
                hidden = np.triu(np.ones(values.shape, dtype=bool), 1)
                visible = np.ma.masked_where(hidden, np.maximum(values, LEAST))
                image = heat(axes, visible, norm=LogNorm(LEAST, 1.0))
                axes.set_aspect("equal")
                axes.locator_params(integer=True)
                axes.spines[["left", "bottom"]].set_visible(False)
                if index == 0:
                    first, colon, rest = name.partition(": ")
                    panel(axes, fit(f"{first}\n{rest}" if colon else f"{first}\n", wrapped(first, 15)))
            grid[index][0].set_ylabel(f"{label}\n\nquery position{fit(' ', chr(10))}(tokens)")
        for axes in grid[-1][fit(slice(None), slice(1, 2))]:
            axes.set_xlabel("key position (tokens)")
        if image is not None:
            place = fit({"shrink": 0.6, "pad": 0.02}, {"location": "bottom", "aspect": 40})
            bar(figure, image, grid, f"attention weight (no unit; {LEAST:g} and below alike)", **place)
        caption(figure, "Attention maps: rotation changes them, a shift does not", shown["note"])
        return figure


def maps_numbers(
    model: str | Decoder = "tiny",
    tokens: int = 64,
    *,
    text: str | None = None,
    moved: int = 10_000,
    heads: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """Return what `maps` draws, by its arguments.

    **Arguments:**
    - `model`: a trained `Decoder`, or the argument of `rw.load`. `tokens`: of the window.
    - `text`: by default Moby-Dick. `moved`: tokens added to all positions.
    - `heads`: (layer, head) of each row; by default three that are chosen by their weights.

    **Returns:** "rows" of (head, weights `[tokens, tokens]` as trained, without rotation, with positions moved);
    "columns", their names; "note".
    **Raises:** `RopeError` for a model without rotation in some layer, or a head that it does not have.

    >>> import ropewalk as rw
    >>> [(head, weights)] = rw.figures.maps_numbers("tiny", 16, heads=[(2, 1)])["rows"]
    >>> head, weights[0].shape
    ('layer 2, head 1', (16, 16))
    """
    check_whole("figures.maps", optional=False, tokens=tokens, moved=moved)
    rotary = rotary_model(model)
    ids, positions = windows(rotary, 1, tokens, text), torch.arange(tokens)
    trained = weights(rotary, ids, positions)
    without = weights(rotary.with_positions(rope=None), ids, None)
    elsewhere = weights(rotary, ids, positions + moved)
    layers, each = trained.shape[:2]
    if any(not (0 <= layer < layers and 0 <= head < each) for layer, head in heads):
        raise RopeError(
            "figures.maps: the model does not have this head.",
            facts={"heads": heads, "layers": layers, "heads of a layer": each},
            cure="Pass (layer, head), both counted from 0.",
        )
    chosen = {f"layer {layer}, head {head}": (layer, head) for layer, head in heads} or by_kind(trained, without)
    return {
        "rows": [
            (label, [maps[layer, head] for maps in (trained, without, elsewhere)])
            for label, (layer, head) in chosen.items()
        ],
        "columns": [
            "with rotation",
            "without rotation",
            f"all positions + {moved:,}: differs by at most {np.abs(trained - elsewhere).max():.1g}",
        ],
        "note": f"{shown_name(model)}, {tokens} tokens of {named(text)}; the same weights everywhere. Rotation is "
        "removed in every layer; the difference is the largest over all heads.",
    }


def weights(model: Decoder, ids: Tensor, position_ids: Tensor | None) -> Array:
    """Return attention weights of one window `[1, tokens]`, float64 `[layers, heads, tokens, tokens]`."""
    layers = []
    with torch.inference_mode():
        for attention, hidden in attention_inputs(model, ids, position_ids):
            length = ids.shape[1] if attention.rope is not None and attention.rope.needs_seq_len else None
            _, weight = attention(hidden, position_ids=position_ids, need_weights=True, seq_len=length)
            layers.append(weight[0].double().numpy())
    return np.stack(layers)


def by_kind(trained: Array, without: Array) -> dict[str, tuple[int, int]]:
    """Return three heads by label: most weight on the token before; changed most, and least, without rotation."""
    before = trained.diagonal(-1, 2, 3).mean(-1)
    changed = np.abs(trained - without).sum(-1).mean(-1) / 2
    chosen: dict[str, tuple[int, int]] = {}
    for label, order in (
        ("attends to the token before", -before),
        ("changes most", -changed),
        ("changes least", changed),
    ):
        places = [tuple(map(int, np.unravel_index(place, order.shape))) for place in np.argsort(order, axis=None)]
        layer, head = next((place for place in places if place not in chosen.values()), places[0])
        chosen[f"layer {layer}, head {head}\n{label}"] = (layer, head)
    return chosen
