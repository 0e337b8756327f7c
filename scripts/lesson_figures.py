"""Figures that only the lesson draws: order, layer, biases, pairing, cache and precision.

`NAME(**numbers())` of each is drawn by scripts/docs_figures.py.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.figures.material import Array, frequencies, rotary_model, shown_name, windows
from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    MAP,
    ORANGE,
    OTHER,
    PURPLE,
    QUIET,
    RED,
    SKY,
    caption,
    heat,
    panel,
    style,
)
from ropewalk.layers.encodings import Sizes, t5_bucket
from ropewalk.methods import Look
from ropewalk.rope.pairing import Pairing, pairing_order
from ropewalk.statistics import mean_and_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = ("dog", "bites", "man")
"""The sentence of the first step; its other order has the same words."""


def order_numbers(head: int = 0, seed: int = 0) -> dict[str, Any]:
    """Return one head's attention weights of two sentences with the same words, without positions and with rotation.

    Word vectors `[3, 64]` and the layer's weights are random, each drawn with `seed`. Rows and columns are words in
    the order of `WORDS`, whatever their order in the sentence.
    """
    vectors = torch.randn(len(WORDS), 64, generator=torch.Generator().manual_seed(seed))
    rows = []
    for label, encoding in (("without positions", "none"), ("with rotary positions", "rope")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = rw.Attention(64, 4, encoding=encoding, causal=False)
        by_sentence = []
        for places in (torch.arange(len(WORDS)), torch.arange(len(WORDS)).flip(0)):  # of each word in the sentence
            with torch.inference_mode():
                _, weight = layer(vectors[places.argsort()][None], need_weights=True)
            by_sentence.append((places.tolist(), weight[0, head][places][:, places].double().numpy()))
        rows.append((label, by_sentence))
    return {
        "rows": rows,
        "words": WORDS,
        "note": f"A layer of 64 features and 4 heads (head {head}), not causal, untrained; words are random vectors "
        f"(seed {seed}).\nA row: where the attention of this word goes. In brackets: positions. Framed: differs from "
        "the left.",
    }


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


def layer_numbers(
    heads: int = 4, key_heads: int = 2, head_dim: int = 16, tokens: int = 10, batch: int = 2
) -> dict[str, Any]:
    """Return the shapes in an attention layer with RoPE, by name, recorded in a forward pass."""
    shapes: dict[str, tuple[int, ...]] = {}

    def split(name: str) -> Any:
        return lambda _, __, out: shapes.update({name: (*out.shape[:-1], out.shape[-1] // head_dim, head_dim)})

    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        attention = rw.Attention(heads * head_dim, heads, num_key_value_heads=key_heads, head_dim=head_dim)
        for name in ("q", "k", "v"):
            getattr(attention, f"{name}_proj").register_forward_hook(split(name))
        x = torch.randn(batch, tokens, heads * head_dim)
        out, weight = attention(x, need_weights=True)
    return {"shapes": {"x": tuple(x.shape), **shapes, "weights": tuple(weight.shape), "out": tuple(out.shape)}}


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


CACHES = ("right", "every token at position 0", "nothing stored", "keys rotated again")


def cache_numbers(tokens: int = 6) -> dict[str, Any]:
    """Return the distance in the score of each new token with each cached key, for each way to use a cache.

    Each token's query and key are the same vector. They are rotated, the key is stored in a `KVCache`, and the distance
    is the angle between the query and each stored key over the frequency of the pair. nan: the cache has no such key.
    """
    return {
        "distances": {way: _cached_distances(way, tokens) for way in CACHES},
        "note": f"{tokens} tokens are generated, one in each step (row). Each cell: angle between the rotated query\n"
        "and a stored key, over the pair's frequency. The border marks the key that the step stores.",
    }


def _cached_distances(way: str, tokens: int) -> Array:
    """Return the distances `[steps, keys]` that the stored keys show."""
    config = rw.RopeConfig(4, interleaved=True)  # its second pair rotates by 0.01 radians per token
    rope, frequency = rw.RotaryEmbedding(config), float(frequencies(config)[1])
    store = rw.KVCache(num_layers=1, batch=1, num_key_value_heads=1, head_dim=4, dtype=torch.float64)
    vector = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 4)
    distances = np.full((tokens, tokens), np.nan)
    for step in range(tokens):
        position = 0 if way == "every token at position 0" else step
        query = rope.rotate(vector, position_ids=torch.tensor([position]))
        layout = store.lay_out(1, 1)
        keys = store.write(0, query, query, layout)[0]
        store.commit(layout)
        first = step + 1 - keys.shape[2]  # the token of the cache's first key
        distances[step, first : step + 1] = (_angle(query[0, 0]) - _angle(keys[0, 0])) / frequency
        if way == "nothing stored":
            store.truncate(0)
        elif way == "keys rotated again":
            rope.rotate(keys, position_ids=torch.arange(step + 1), layout="bhsd", inplace=True)
    return distances


def _angle(vectors: Tensor) -> Array:
    """Return the angle of the second pair of each vector `[vectors, 4]`, in radians."""
    angles: Array = torch.atan2(vectors[:, 3], vectors[:, 2]).numpy()
    return angles


_RIGHT, _WRONG = "#cfe4f3", "#f7d3bd"  # fills of cells that ink can be read on


def cache(distances: Mapping[str, Any], *, note: str = "") -> Figure:
    """Draw a table for each way to use a cache: the distance that each score contains, `[steps, keys]`; nan: no key.

    Cells with a distance other than step - key are red and in bold.
    """
    with style():
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


def biases_numbers(heads: int = 8, longest: int = 128) -> dict[str, Any]:
    """Return ALiBi's bias `[heads, distances]` and T5's bucket `[distances]` at distances 0, 1, ..., `longest`."""
    distances = torch.arange(longest + 1)
    sizes = Sizes(hidden_size=8 * heads, num_attention_heads=heads, head_dim=8)
    return {
        "alibi": rw.encodings.ALiBi().build(sizes).of_distance(distances).numpy(),
        "buckets": t5_bucket(distances, num_buckets=32, max_distance=128, causal=True).numpy(),
        "note": f"ALiBi with {heads} heads; T5 with 32 buckets and a largest distance of 128, causal.",
    }


def biases(alibi: Any, *, buckets: Any, note: str = "") -> Figure:
    """Draw ALiBi's bias of each head, and T5's bucket, by distance; a line marks where the last bucket begins."""
    with style():
        from matplotlib import colormaps
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.8, 4.0))
        left, right = figure.subplots(1, 2)
        for head, values in enumerate(alibi):
            left.plot(values, color=colormaps[MAP](head / max(1, len(alibi) - 1)), label=f"slope 1/{2 ** (head + 1)}")
        left.set_ylim(-16.5, 0.5)
        left.set_ylabel("added to the score (no unit)")
        left.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        panel(left, "ALiBi: one slope for each head")
        right.step(range(len(buckets)), buckets, where="post", color=RED)
        right.axvline(int((buckets == buckets.max()).argmax()), color=QUIET, linewidth=1)
        right.set_ylabel("bucket (index)")
        panel(right, "T5: one learned number for each bucket")
        for axes in (left, right):
            axes.set_xlabel("distance (tokens)")
        caption(figure, "Two biases by distance", note)
        return figure


def pairing_numbers(head_dim: int = 8, models: Sequence[str] = (), texts: int = 8, tokens: int = 256) -> dict[str, Any]:
    """Return the features of each pair in both conventions, and the loss of models with the right and wrong one.

    By default of "tiny" and of the model that $ROPEWALK_SMOLLM2 names.
    """
    smollm2 = os.environ.get("ROPEWALK_SMOLLM2")
    named = tuple(models) or ("tiny", *([smollm2] if smollm2 else []))
    return {
        "pairs": {name: pairs_of(head_dim, name == "interleaved") for name in ("interleaved", "half-split")},
        "losses": {shown_name(name): losses(rotary_model(name), texts, tokens) for name in named},
        "note": f"Mean over {texts} windows of {tokens} tokens of Moby-Dick; whiskers: 95 % interval of the paired "
        "difference to its own pairing; dotted: every token equally likely.\n"
        "Converted: the rows of q and k reordered by convert_pairing, and run in the other pairing.",
    }


def pairs_of(head_dim: int, interleaved: bool) -> list[tuple[int, int]]:
    """Return the two features of each pair, fastest first.

    >>> pairs_of(4, True), pairs_of(4, False)
    ([(0, 1), (2, 3)], [(0, 2), (1, 3)])
    """
    if not interleaved:
        return [(i, i + head_dim // 2) for i in range(head_dim // 2)]
    order = pairing_order("half", head_dim).tolist()  # interleaved place of each half-split feature
    return [(order[a], order[b]) for a, b in pairs_of(head_dim, False)]


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


def losses(model: rw.Decoder, texts: int, tokens: int) -> dict[str, Any]:
    """Return nats per token with the model's own pairing, the wrong one, and the wrong one with converted weights.

    Each is (mean, low, high); the interval is that of the paired difference over windows, centred at the mean.
    "uniform" is ln(vocab_size).
    """
    ids = windows(model, texts, tokens)
    wrong = wrongly_paired(model)
    own = [_loss(model, row) for row in ids]
    result: dict[str, Any] = {"uniform": math.log(model.config.vocab_size), "bars": {}}
    for name, case in (("its own pairing", None), ("the wrong pairing", wrong), ("converted", converted(wrong))):
        means = own if case is None else [_loss(case, row) for row in ids]
        mean, _ = mean_and_interval(means)
        apart, interval = mean_and_interval([one - base for one, base in zip(means, own, strict=True)])
        low, high = interval or (apart, apart)
        result["bars"][name] = (mean, mean + low - apart, mean + high - apart)
    return result


@torch.inference_mode()
def _loss(model: rw.Decoder, ids: Tensor) -> float:
    """Return the mean loss of tokens `[tokens]`, all but the first, in nats."""
    return float(torch.nn.functional.cross_entropy(model(ids[None])[0, :-1].float(), ids[1:]))


def wrongly_paired(model: rw.Decoder) -> rw.Decoder:
    """Return the model with the other pairing in every layer."""
    other = (rope and dataclasses.replace(rope, interleaved=not rope.interleaved) for rope in model.config.ropes)
    return model.with_positions(rope=tuple(other))


def converted(wrong: rw.Decoder) -> rw.Decoder:
    """Return the model with weights reordered for the pairing of its config."""
    rope = next(rope for rope in wrong.config.ropes if rope is not None)
    model = rw.Decoder(wrong.config)
    to: Pairing = "interleaved" if rope.interleaved else "half"
    weights = rw.convert_pairing(wrong.state_dict(), to=to, config={"model_type": "llama", "head_dim": rope.head_dim})
    model.load_state_dict(weights)
    return model.eval()


NEAR = 64  # positions before each point of a curve, of which the largest error counts
WAYS = ("angles in bfloat16", "angles in float32", "tables in bfloat16", "tables in float16", "ropewalk")


def _tables_of(way: str, head_dim: int, theta: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin `[positions, pairs]` as each way computes them, as float32."""
    config = rw.RopeConfig(head_dim, interleaved=False, theta=theta)
    cos, sin = rw.RotaryEmbedding(config).cos_sin(positions)
    if way.startswith("tables"):
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float16
        return cos.to(dtype).float(), sin.to(dtype).float()
    if way.startswith("angles"):  # common code: inv_freq and the product in this dtype, then cos and sin
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float32
        inv_freq = torch.from_numpy(frequencies(config)).to(dtype)
        angles = (positions.to(dtype)[:, None] * inv_freq).float()
        return angles.cos(), angles.sin()
    return cos, sin


def precision_numbers(
    head_dim: int = 128,
    theta: float = 10_000.0,
    longest: int = 10_000_000,
    distance: int = 16,
    points: int = 48,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the largest |cos - truth| over pairs, and the largest error of a score, by position, for each way.

    The truth is float64. A score is q at m with k at m - distance, over |q| |k|, for 32 random q and k.
    """
    inv_freq = frequencies(rw.RopeConfig(head_dim, interleaved=False, theta=theta))
    middles = np.unique(np.geomspace(NEAR, longest, points).astype(np.int64))
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, 1, 32, head_dim, generator=generator), dim=-1)
    cosines: dict[str, list[float]] = {way: [] for way in WAYS}
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    true_score = score_of(
        q.double(), k.double(), *_exact(inv_freq, np.array([distance])), *_exact(inv_freq, np.array([0]))
    )
    for middle in middles:
        near = np.arange(max(0, middle - NEAR), middle)
        truth = np.cos(np.outer(near.astype(np.float64), inv_freq))
        ends = torch.tensor([max(middle, distance + 1)])
        for way in WAYS:
            cos, _ = _tables_of(way, head_dim, theta, torch.from_numpy(near))
            cosines[way].append(float(np.abs(cos.double().numpy() - truth).max()))
            at_m, at_n = (_tables_of(way, head_dim, theta, place) for place in (ends, ends - distance))
            scores[way].append(float((score_of(q, k, *at_m, *at_n) - true_score).abs().max()))
    return {
        "positions": middles,
        "cosines": {way: np.array(values) for way, values in cosines.items()},
        "scores": {way: np.array(values) for way, values in scores.items()},
        "distance": distance,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}; the largest of {NEAR} positions and all pairs (left), "
        "of 32 random queries and keys (right); truth in float64",
    }


def score_of(q: Tensor, k: Tensor, cos_m: Tensor, sin_m: Tensor, cos_n: Tensor, sin_n: Tensor) -> Tensor:
    """Return the scores `[heads]` of q and k `[1, 1, heads, head_dim]`, each rotated by one position's tables."""
    at_m, at_n = rw.rotate(q, cos_m, sin_m, interleaved=False), rw.rotate(k, cos_n, sin_n, interleaved=False)
    return (at_m.double() * at_n.double()).sum(-1).flatten()


def _exact(inv_freq: Array, positions: Array) -> tuple[Tensor, Tensor]:
    angles = torch.from_numpy(np.outer(positions, inv_freq))
    return angles.cos(), angles.sin()


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
