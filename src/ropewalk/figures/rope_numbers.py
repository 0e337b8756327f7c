"""Numbers of the figures about ropes: angles, lengths, tables, scores, rounding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.checkpoints.load import load_decoder
from ropewalk.encodings.absolute import sinusoidal_table
from ropewalk.errors import RopeError
from ropewalk.figures.entry import HeadDim, Meaning, Seed, Theta
from ropewalk.figures.material import TITLES, Array, frequencies, packaged, plain, published
from ropewalk.methods import Reach, method_named, unscaled
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Scaling
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.rotation.rotate import rotate

METHODS = ("pi", "ntk", "yarn", "llama3")
NAMES = {
    "plain": "no scaling",
    "pi": "PI",
    "ntk": "NTK",
    "yarn": "YaRN",
    "llama3": "Llama 3",
    "longrope": "LongRoPE",
    "abf": "ABF",
    "resonance": "Resonance",
}
Config = Annotated[str, Meaning("a packaged config, or the path of a config.json, folder or .gguf")]
Configs = Annotated[tuple[str, ...], Meaning("packaged configs, or paths, by commas")]


def unseen(
    config: Config = "phi_3_5_mini",
    target: Annotated[
        int, Meaning("tokens of the long window; 0: the reach of the config's own scaling", 0, 10_000_000)
    ] = 0,
    rows: Annotated[int, Meaning("positions in the picture", 8, 2_048)] = 256,
) -> dict[str, Any]:
    """Return the angles of each pair that no token had in training, by position: unscaled, then under each method.

    Training means training before any extension, at the config's original length, even if the model was then trained
    with its scaling. There, a pair's angle ranges from 0 to length * frequency. Larger angles, modulo a full turn, are
    unseen; a pair that completes a turn has seen all angles.
    """
    rope = main_rope(config)
    trained, wanted = lengths(rope, config)
    length = target or wanted
    if length <= trained:
        raise RopeError(
            "figure unseen: the target must exceed the trained length.",
            facts={"target": length, "trained_length": trained},
            cure="Pass a longer target, such as four times the trained length.",
        )
    methods = ("plain", *METHODS)
    ropes = {name: method_named(name).rope(unscaled(rope), Reach(trained, length)) for name in methods}
    own = own_name(rope)
    if own is not None:
        ropes[own] = rope  # with its own parameters, whatever the target
    positions = np.linspace(0, length - 1, rows)
    base = frequencies(unscaled(rope))
    by_method = {NAMES.get(name, name): frequencies(one, length) for name, one in ropes.items()}
    return {
        "positions": positions,
        "cells": {name: never_seen(inv_freq, base, trained, positions) for name, inv_freq in by_method.items()},
        "ratios": {name: inv_freq / base for name, inv_freq in by_method.items()},
        "trained_length": trained,
        "mark": "trained length" if rope.trained_length == trained else "original length",
        "title": f"Angles never seen in {trained:,} tokens: {titled(config)}, to {length:,} tokens",
        "note": f"theta {rope.theta:,.10g}, {rope.pairs} pairs; shares are of all cells, {rows} positions. "
        "A pair that completes a turn within this length has seen every angle.",
    }


def never_seen(inv_freq: Array, trained_freq: Array, trained_length: int, positions: Array) -> npt.NDArray[np.bool_]:
    """Return whether training never showed each pair's angle at each position, modulo a turn; bool `[n, pairs]`.

    `inv_freq` are the frequencies in use, `trained_freq` those of training, in radians per token.
    """
    shown = trained_length * trained_freq
    unseen: npt.NDArray[np.bool_] = (shown < 2 * np.pi) & (np.mod(np.outer(positions, inv_freq), 2 * np.pi) >= shown)
    return unseen


def ratios(
    configs: Configs = ("llama_3_1_8b", "qwen2_5_7b_yarn", "phi_3_5_mini"),
) -> dict[str, Any]:
    """Return each pair's scaled over unscaled frequency, under every method at the factor of the config's scaling."""
    panels = []
    for name in configs:
        rope = main_rope(name)
        trained, wanted = lengths(rope, name)
        base = frequencies(unscaled(rope))
        factor = stated_factor(rope.scaling, wanted / trained)
        length = round(trained * factor)
        ropes = {one: method_named(one).rope(unscaled(rope), Reach(trained, length)) for one in METHODS}
        own = own_name(rope)
        if own is not None:
            ropes[own] = rope
        panels.append(
            {
                "title": f"{titled(name)}: from {trained:,} tokens, factor {factor:g}",
                "ratios": {one: frequencies(used, length) / base for one, used in ropes.items()},
                "own": own,
                "factor": factor,
            }
        )
    return {
        "panels": panels,
        "names": NAMES,
        "note": "Thick: the scaling of the published model. The others: at the same factor, with usual bounds.",
    }


def wavelengths(
    configs: Configs = ("llama_2_7b", "llama_3_1_8b", "qwen2_5_7b_yarn", "gemma_3_1b", "smollm2_135m"),
) -> dict[str, Any]:
    """Return the tokens per turn of each pair as the model was trained, and the longest distance in training.

    A scaling is included if the model was trained with it (Llama 3.1), and excluded if it is an option for inference.
    """
    rows = []
    for name in configs:
        source = published(name)
        window = source.config.get("sliding_window")
        for layer_type, rope in sorted(source.ropes.items(), key=lambda item: item[0] != "full_attention"):
            trained = rope.trained_length or lengths(rope, name)[0]
            local = layer_type == "sliding_attention" and isinstance(window, int)
            longest = min(trained, window) if local and isinstance(window, int) else trained
            kind = "" if layer_type is None else ", sliding layers" if local else ", full layers"
            inv_freq = frequencies(rope.as_trained(), trained)
            rows.append((f"{titled(name)}{kind}", 2 * np.pi / inv_freq[inv_freq > 0], longest, rope.theta))
    return {
        "rows": rows,
        "note": f"As trained{_with_and_without(configs)}. Sliding layers never see further than their window.",
    }


def _with_and_without(configs: Sequence[str]) -> str:
    """Return which models were trained with the scaling of their config, and which have one for inference."""
    named: dict[bool, list[str]] = {}
    for name in configs:
        rope = main_rope(name)
        if unscaled(rope) != rope:
            named.setdefault(rope.as_trained() == rope, []).append(titled(name))
    kinds = {True: "with its config's scaling", False: "without its config's scaling"}
    parts = [f"{', '.join(names)} {kinds[kind]}" for kind, names in sorted(named.items(), reverse=True)]
    return f": {', '.join(parts)}" if parts else ""


def main_rope(name: str) -> RopeConfig:
    """Return a config's rope, or that of full attention if there are several."""
    ropes = published(name).ropes
    return ropes.get("full_attention") or next(iter(ropes.values()))


def titled(name: str) -> str:
    """Return the name of a packaged model as its makers write it, else the file's."""
    return TITLES.get(name, published(name).name)


def own_name(rope: RopeConfig) -> str | None:
    """Return the method of a config's own scaling, by our name; None if it has none."""
    kind = None if rope.scaling is None else rope.scaling.rope_type
    return {"linear": "pi"}.get(kind, kind) if kind is not None else None


def lengths(rope: RopeConfig, name: str) -> tuple[int, int]:
    """Return the lengths before and with a config's scaling (without a scaling: four times the first), in tokens."""
    trained = rope.original_length
    if trained is None:
        raise RopeError(
            "figure: this config does not contain its model's trained length.",
            facts={"config": name},
            cure="Add max_position_embeddings to it.",
        )
    most = rope.max_position_embeddings or trained
    if rope.scaling is None:
        return trained, 4 * trained
    return trained, max(most, round(trained * stated_factor(rope.scaling, most / trained)))


def stated_factor(scaling: Scaling | None, otherwise: float) -> float:
    """Return the scaling's `factor` if it has one above 1, else `otherwise`."""
    factor = getattr(scaling, "factor", None)
    return float(factor) if isinstance(factor, int | float) and factor > 1 else otherwise


Pairs = Annotated[tuple[int, ...], Meaning("pairs to show, fastest 0; none: a choice over the head", 0, 511)]


def clocks(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    pairs: Pairs = (),
    positions: Annotated[int, Meaning("tokens on the large circles", 2, 24)] = 9,
    position: Annotated[int, Meaning("position that the clocks show", 1, 10_000_000)] = 256,
) -> dict[str, Any]:
    """Return points on the circles of a few pairs at the first positions, and every pair's angle at one position."""
    inv_freq = frequencies(plain(head_dim, theta))
    shown = chosen_pairs(pairs, len(inv_freq), (0, 1 / 8, 1 / 4, 1 / 2), "clocks")
    angles = np.outer(inv_freq[list(shown)], np.arange(positions))
    at = inv_freq * position
    return {
        "circles": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "radians_per_token": {pair: float(inv_freq[pair]) for pair in shown},
        "turns": at / (2 * np.pi),
        "hands": (np.cos(at), np.sin(at)),
        "position": position,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}",
    }


def waves(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    trained_length: Annotated[int, Meaning("tokens seen in training", 2, 1_000_000)] = 256,
    length: Annotated[int, Meaning("tokens shown", 2, 1_000_000)] = 512,
    pairs: Pairs = (),
) -> dict[str, Any]:
    """Return cosine and sine of a few pairs' angles at up to 4,096 points of a window."""
    inv_freq = frequencies(plain(head_dim, theta))
    shown = chosen_pairs(pairs, len(inv_freq), (0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4), "waves")
    positions = np.linspace(0, length, min(8 * length, 4096) + 1)
    angles = np.outer(inv_freq[list(shown)], positions)
    return {
        "positions": positions,
        "curves": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "wavelengths": {pair: float(2 * np.pi / inv_freq[pair]) for pair in shown},
        "trained_length": trained_length,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}",
    }


def chosen_pairs(pairs: tuple[int, ...], count: int, shares: tuple[float, ...], figure: str) -> tuple[int, ...]:
    """Return the requested pairs in order, or by default those at the given fractions of the head."""
    if not pairs:
        return tuple(sorted({min(count - 1, int(share * count)) for share in shares}))
    if max(pairs) >= count or len(pairs) > 12:
        raise RopeError(
            f"figure {figure}: `pairs` are counted from 0 within the head, at most twelve.",
            facts={"pairs": pairs, "pairs of the head": count},
            cure=f"Choose from 0 to {count - 1}, or leave it out.",
        )
    return tuple(sorted(set(pairs)))


def learned_table(model: str = "") -> tuple[Array, str]:
    """Return the learned table `[positions, hidden_size]` of a trained model, and a line about its origin.

    "" is the packaged table, which `scripts/make_learned_table.sh` trains.
    """
    if not model:
        with np.load(packaged("learned_table.npz"), allow_pickle=False) as stored:
            made = json.loads(str(stored["provenance"]))
            text = f"trained on {made['tokens']:,} tokens of Moby-Dick, {made['parameters'] / 1e6:.1f}M parameters"
            return stored["table"].astype(np.float64), text
    loaded = load_decoder(model, dtype=torch.float32)
    weights = getattr(getattr(loaded.encoding, "positions", None), "weight", None)
    if weights is None:
        raise RopeError(
            "figure tables: this model has no learned table of positions.",
            facts={"model": model, "encoding": loaded.config.encoding},
            cure="Train one: ropewalk train --encoding learned; or leave `model` out.",
        )
    return weights.detach().double().numpy(), f"of {model}"


def tables(
    theta: Theta = 10_000.0,
    head_dim: HeadDim = 64,
    model: Annotated[str, Meaning("a model trained with --encoding learned; none: the packaged table")] = "",
) -> dict[str, Any]:
    """Return three tables over the learned one's positions, and the cosines between the rows of each."""
    learned, source = learned_table(model)
    positions, hidden = learned.shape
    sinusoidal = sinusoidal_table(torch.arange(positions), hidden, theta).numpy()
    angles = np.outer(np.arange(positions), frequencies(plain(head_dim, theta)))
    rotations = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return {
        "sinusoidal": sinusoidal,
        "angles": angles,
        "learned": learned,
        "learned_reach": float(np.quantile(np.abs(learned), 0.99)),
        "alike": {
            "sinusoidal": alike(sinusoidal),
            "rope": alike(rotations),
            "learned": alike(learned - learned.mean(0)),
        },
        "note": f"theta {theta:,.10g}; sinusoidal and learned: {hidden} features; RoPE: head_dim {head_dim}. Learned "
        f"table {source}:\nits colours end at the 99th percentile, and its mean over positions is subtracted before "
        "the cosine.",
    }


def alike(rows: Array) -> Array:
    """Return the cosine of the angle between every two rows, `[rows, rows]`."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines: Array = unit @ unit.T
    return cosines


def rotated(x: Tensor, config: RopeConfig, position_ids: Tensor) -> Tensor:
    """Return one vector `[head_dim]` rotated to every position, `[positions, head_dim]`, in its own dtype."""
    rows = x.expand(1, len(position_ids), 1, -1).contiguous()
    return RotaryEmbedding(config).rotate(rows, position_ids=position_ids)[0, :, 0]


def shift(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    length: Annotated[int, Meaning("positions of the table, each way", 4, 256)] = 32,
    shifts: Annotated[int, Meaning("tokens moved, at most", 1, 100_000)] = 64,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Return scores of a random q at m with a random k at n, then with both moved, only q moved, and only k moved."""
    config = plain(head_dim, theta)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, head_dim, generator=generator)
    places = torch.arange(length)
    grid = rotated(q, config, places) @ rotated(k, config, places).T / head_dim**0.5
    m, n = length // 2, length // 4
    moved = torch.arange(shifts + 1)

    def curve(by_query: int, by_key: int) -> Array:
        at_m, at_n = rotated(q, config, m + by_query * moved), rotated(k, config, n + by_key * moved)
        scores: Array = ((at_m * at_n).sum(-1) / head_dim**0.5).double().numpy()
        return scores

    both = curve(1, 1)
    return {
        "grid": grid.double().numpy(),
        "start": (m, n),
        "shifts": moved.numpy(),
        "curves": {"both move": both, "only the query moves": curve(1, 0), "only the key moves": curve(0, 1)},
        "spread": float(both.max() - both.min()),
        "note": f"One query and one key, random (seed {seed}); head_dim {head_dim}, theta {theta:,.10g}, float32",
    }


def axial(
    head_dim: HeadDim = 64,
    theta: Annotated[float, Meaning("the base: small, as grids are", 1.001, 1e15)] = 100.0,
    side: Annotated[int, Meaning("patches of the grid, each way", 3, 128)] = 24,
    row: Annotated[int, Meaning("row of the one patch", 0, 127)] = 8,
    column: Annotated[int, Meaning("column of the one patch", 0, 127)] = 11,
) -> dict[str, Any]:
    """Return the score of one patch's query with every patch's equal key, over its largest.

    Panels: axial 2D, a patch in the corner, and one axis in reading order.
    """
    if head_dim % 4 or max(row, column) >= side:
        raise RopeError(
            "figure axial: head_dim must be a multiple of 4, and the patch on the grid.",
            facts={"head_dim": head_dim, "row": row, "column": column, "side": side},
            cure=f"Give a row and a column from 0 to {side - 1}, and head_dim 4, 8, ...",
        )
    halves = (0,) * (head_dim // 4) + (1,) * (head_dim // 4)
    grid = RopeConfig(head_dim, interleaved=False, theta=theta, axes=halves, axes_restart=True)
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
    ones = torch.ones(head_dim, dtype=torch.float64)
    by_axes, by_order = rotated(ones, grid, at), rotated(ones, plain(head_dim, theta), torch.arange(side * side))

    def similarity(rows: Tensor, patch: tuple[int, int]) -> Array:
        scores: Array = (rows @ rows[patch[0] * side + patch[1]] / head_dim).view(side, side).numpy()
        return scores

    corner = (side - 1, 0)
    return {
        "panels": [
            ("axial 2D", (row, column), similarity(by_axes, (row, column))),
            ("axial 2D, patch in the corner", corner, similarity(by_axes, corner)),
            ("one axis, patches in reading order", (row, column), similarity(by_order, (row, column))),
        ],
        "note": f"Query and key are the same vector of ones; head_dim {head_dim}, theta {theta:,.10g}",
    }


NEAR = 64  # positions before each point of a curve, of which the largest error counts
WAYS = ("angles in bfloat16", "angles in float32", "tables in bfloat16", "tables in float16", "ropewalk")


def _tables_of(way: str, head_dim: int, theta: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin `[positions, pairs]` as each way computes them, as float32."""
    config = plain(head_dim, theta)
    cos, sin = RotaryEmbedding(config).cos_sin(positions)
    if way.startswith("tables"):
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float16
        return cos.to(dtype).float(), sin.to(dtype).float()
    if way.startswith("angles"):  # common code: inv_freq and the product in this dtype, then cos and sin
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float32
        inv_freq = torch.from_numpy(frequencies(config)).to(dtype)
        angles = (positions.to(dtype)[:, None] * inv_freq).float()
        return angles.cos(), angles.sin()
    return cos, sin


def precision(
    head_dim: HeadDim = 128,
    theta: Theta = 10_000.0,
    longest: Annotated[int, Meaning("the last position", 1_024, 10_000_000)] = 10_000_000,
    distance: Annotated[int, Meaning("tokens between query and key", 0, 1_023)] = 16,
    points: Annotated[int, Meaning("points of a curve", 4, 256)] = 48,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Return the largest |cos - truth| over pairs, and the largest error of a score, by position, for each way.

    The truth is float64. A score is q at m with k at m - distance, over |q| |k|, for 32 random q and k.
    """
    inv_freq = frequencies(plain(head_dim, theta))
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
    at_m, at_n = rotate(q, cos_m, sin_m, interleaved=False), rotate(k, cos_n, sin_n, interleaved=False)
    return (at_m.double() * at_n.double()).sum(-1).flatten()


def _exact(inv_freq: Array, positions: Array) -> tuple[Tensor, Tensor]:
    angles = torch.from_numpy(np.outer(positions, inv_freq))
    return angles.cos(), angles.sin()


CACHES = ("right", "every token at position 0", "nothing stored", "keys rotated again")


def cache(
    tokens: Annotated[int, Meaning("tokens that are generated", 2, 32)] = 6,
) -> dict[str, Any]:
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
    config = RopeConfig(4, interleaved=True)  # its second pair rotates by 0.01 radians per token
    rope, frequency = RotaryEmbedding(config), float(frequencies(config)[1])
    store = KVCache(num_layers=1, batch=1, num_key_value_heads=1, head_dim=4, dtype=torch.float64)
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
