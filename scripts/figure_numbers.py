"""What the figures of the lesson show: order, layers, caches, encodings, and one rope.

`NAME_numbers` returns the arguments of `NAME` in figures.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.figures.material import Array, described, frequencies, theta_of
from ropewalk.models.encodings import sinusoidal_table
from ropewalk.statistics import mean_and_interval

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

    def angle(vectors: Tensor) -> Array:
        return torch.atan2(vectors[:, 3], vectors[:, 2]).numpy()

    for step in range(tokens):
        position = 0 if way == "every token at position 0" else step
        query = rope.rotate(vector, position_ids=torch.tensor([position]))
        layout = store.lay_out(1, 1)
        keys = store.write(0, query, query, layout)[0]
        store.commit(layout)
        first = step + 1 - keys.shape[2]  # the token of the cache's first key
        distances[step, first : step + 1] = (angle(query[0, 0]) - angle(keys[0, 0])) / frequency
        if way == "nothing stored":
            store.truncate(0)
        elif way == "keys rotated again":
            rope.rotate(keys, position_ids=torch.arange(step + 1), layout="bhsd", inplace=True)
    return distances


TABLE = Path(__file__).with_name("learned_table.npz")
"""A learned table of positions `[256, 128]`, with the settings of its training."""


def tables_numbers(rope: rw.RopeConfig) -> dict[str, Any]:
    """Return what `tables` draws: "alike", by table the cosines between its rows, as many as the learned one has."""
    table, source = learned_table()
    positions, hidden = table.shape
    sinusoidal = sinusoidal_table(torch.arange(positions), hidden, rope.theta).numpy()
    angles = np.outer(np.arange(positions), frequencies(rope, positions))
    return {
        "alike": {
            "sinusoidal, added": alike(sinusoidal),
            "RoPE": alike(np.concatenate([np.cos(angles), np.sin(angles)], axis=1)),
            "learned, added": alike(table - table.mean(0)),
        },
        "note": f"theta {theta_of(rope)}; sinusoidal and learned: {hidden} features; RoPE: head_dim {rope.head_dim}.\n"
        f"Learned table {source}; its mean over positions is subtracted.",
    }


def learned_table() -> tuple[Array, str]:
    """Return the learned table of positions, and its origin in words."""
    with np.load(TABLE, allow_pickle=False) as stored:
        made = json.loads(str(stored["provenance"]))
        text = f"trained on {made['tokens']:,} tokens of Moby-Dick, {made['parameters'] / 1e6:.1f}M parameters"
        return stored["table"].astype(np.float64), text


def alike(rows: Array) -> Array:
    """Return the cosine of the angle between every two rows, `[rows, rows]`."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


def shift_numbers(rope: rw.RopeConfig, *, length: int = 32, shifts: int = 64, seed: int = 0) -> dict[str, Any]:
    """Return what `shift` draws, in float32.

    "grid" `[length, length]`, the score of q at m with k at n; "start", (m, n) before the shift; "curves", scores by
    shift with both, only the query or only the key moved; "spread", the range of the score while both move.
    """
    q, k = torch.randn(2, rope.head_dim, generator=torch.Generator().manual_seed(seed))
    positions, moved, longest = torch.arange(length), torch.arange(shifts + 1), length + shifts
    grid = rotated(q, rope, positions, longest) @ rotated(k, rope, positions, longest).T / rope.head_dim**0.5
    m, n = length // 2, length // 4

    def curve(by_query: int, by_key: int) -> Array:
        at_m = rotated(q, rope, m + by_query * moved, longest)
        at_n = rotated(k, rope, n + by_key * moved, longest)
        return ((at_m * at_n).sum(-1) / rope.head_dim**0.5).double().numpy()

    both = curve(1, 1)
    return {
        "grid": grid.double().numpy(),
        "start": (m, n),
        "shifts": moved.numpy(),
        "curves": {"both move": both, "only the query moves": curve(1, 0), "only the key moves": curve(0, 1)},
        "spread": float(both.max() - both.min()),
        "note": f"One query and one key, random (seed {seed}); {described(rope)}, float32",
    }


def rotated(x: Tensor, rope: rw.RopeConfig, position_ids: Tensor, seq_len: int) -> Tensor:
    """Return one vector `[head_dim]` rotated to every position, `[positions, head_dim]`, in its own dtype."""
    rows = x.expand(1, len(position_ids), 1, -1).contiguous()
    return rw.RotaryEmbedding(rope).rotate(rows, position_ids=position_ids, seq_len=seq_len)[0, :, 0]


RECORD = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "compare.jsonl"

Point = tuple[float, float, tuple[float, float] | None]
"""x, nats per token, and their interval; None for a single value."""


def comparison_numbers(record: Path = RECORD) -> dict[str, Any]:
    """Return the loss by length of each encoding, and of rope under each scaling, with intervals over seeds."""
    first, *lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    settings = first["settings"]
    trained, seeds = settings["seq_len"], len(settings["seeds"])
    tokens = settings["steps"] * settings["batch_size"] * trained / 1e6
    bands = f", {seeds} seeds; bars: 95 % t interval over seeds" if seeds > 1 else ", one seed"
    note = f"size {settings['size']}, trained on {tokens:.1f}M tokens at {trained} tokens{bands}"
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
