"""Numbers of the figures about ropes: angles, lengths, tables, scores, rounding."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.checkpoints.load import load_decoder
from ropewalk.encodings.absolute import sinusoidal_table
from ropewalk.errors import RopeError
from ropewalk.figures import benchmarks as draw_precision
from ropewalk.figures import heads as draw_scores
from ropewalk.figures import ropes as draw_reach
from ropewalk.figures import ropes as draw_tables
from ropewalk.figures import ropes as draw_turning
from ropewalk.figures.entry import Entry, HeadDim, Says, Seed, Theta
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
Config = Annotated[str, Says("a packaged config, or the path of a config.json, folder or .gguf")]
Configs = Annotated[tuple[str, ...], Says("packaged configs, or paths, by commas")]


def unseen(
    config: Config = "phi_3_5_mini",
    target: Annotated[int, Says("tokens of the long window; 0: as far as the config's own scaling", 0, 10_000_000)] = 0,
    rows: Annotated[int, Says("positions in the picture", 8, 2_048)] = 256,
) -> dict[str, Any]:
    """For each method, which angles of which pairs at which positions no token had in training.

    In training, before any extension, a pair's angle ran from 0 to trained_length * frequency; modulo a full turn, what
    lies beyond was never seen, and a pair that made a whole turn has seen everything. Without any scaling, then under
    each method.
    """
    rope = main_rope(config)
    trained, wanted = lengths(rope, config)
    length = target or wanted
    if length <= trained:
        raise RopeError(
            "figure unseen: the target lies within the trained length, where nothing is unseen.",
            facts={"target": length, "trained_length": trained},
            cure="Give a longer target, such as four times the trained length.",
        )
    methods = ("plain", *METHODS)
    ropes = {name: method_named(name).rope(unscaled(rope), Reach(trained, length)) for name in methods}
    own = own_name(rope)
    if own is not None:
        ropes[own] = rope  # its own parameters, not those that the target asks for
    positions = np.linspace(0, length - 1, rows)
    base = frequencies(unscaled(rope))
    turns = {NAMES.get(name, name): frequencies(one, length) for name, one in ropes.items()}
    return {
        "positions": positions,
        "cells": {name: never_seen(turn, base, trained, positions) for name, turn in turns.items()},
        "ratios": {name: turn / base for name, turn in turns.items()},
        "trained_length": trained,
        "title": f"Angles never seen in training: {titled(config)}, from {trained:,} to {length:,} tokens",
        "note": f"theta {rope.theta:,.10g}, {rope.pairs} pairs; shares are of all cells, {rows} positions. "
        "A pair that made a whole turn in training has seen every angle.",
    }


def never_seen(turn: Array, trained_turn: Array, trained_length: int, positions: Array) -> npt.NDArray[np.bool_]:
    """Whether each pair's angle at each position, modulo a turn, lies beyond what training showed; bool `[n, pairs]`.

    `turn` are the frequencies in use, `trained_turn` those of training, in radians per token.
    """
    shown = trained_length * trained_turn
    angles = np.outer(positions, turn)
    found: npt.NDArray[np.bool_] = (shown < 2 * np.pi) & (np.mod(angles, 2 * np.pi) >= shown)
    return found


def ratios(
    configs: Configs = ("llama_3_1_8b", "qwen2_5_7b_yarn", "phi_3_5_mini"),
) -> dict[str, Any]:
    """Scaled over unscaled frequency of each pair, under every method at the factor of each config's own scaling."""
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
                "title": f"{titled(name)}: {trained:,} tokens, factor {factor:g}",
                "ratios": {one: frequencies(used, length) / base for one, used in ropes.items()},
                "own": own,
                "factor": factor,
            }
        )
    return {
        "panels": panels,
        "names": NAMES,
        "note": "Thick: the scaling that the model ships with. The others: at the same factor, with usual bounds.",
    }


def wavelengths(
    configs: Configs = ("llama_2_7b", "llama_3_1_8b", "qwen2_5_7b_yarn", "gemma_3_1b", "smollm2_135m"),
) -> dict[str, Any]:
    """Tokens per turn of each pair before any scaling, and the longest distance that training showed."""
    rows = []
    for name in configs:
        source = published(name)
        window = source.config.get("sliding_window")
        for layer_type, rope in sorted(source.ropes.items(), key=lambda item: item[0] != "full_attention"):
            base = unscaled(rope)
            trained, _ = lengths(rope, name)
            local = layer_type == "sliding_attention" and isinstance(window, int)
            longest = min(trained, window) if local and isinstance(window, int) else trained
            kind = "" if layer_type is None else ", sliding layers" if local else ", full layers"
            turn = frequencies(base)
            rows.append((f"{titled(name)}{kind}", 2 * np.pi / turn[turn > 0], longest, rope.theta))
    return {"rows": rows, "note": "Before any scaling. Sliding layers never see further than their window."}


def main_rope(name: str) -> RopeConfig:
    """A config's rope; full attention's where there are several."""
    ropes = published(name).ropes
    return ropes.get("full_attention") or next(iter(ropes.values()))


def titled(name: str) -> str:
    """The model's name as its makers write it, or the file's."""
    return TITLES.get(name, published(name).name)


def own_name(rope: RopeConfig) -> str | None:
    """The method that a config ships with, by our name."""
    kind = None if rope.scaling is None else rope.scaling.rope_type
    return {"linear": "pi"}.get(kind, kind) if kind is not None else None


def lengths(rope: RopeConfig, name: str) -> tuple[int, int]:
    """The length before a config's scaling, and the one that the scaling is meant for (else four times), in tokens."""
    trained = rope.original_length
    if trained is None:
        raise RopeError(
            "figure: this config does not say how long its model was trained.",
            facts={"config": name},
            cure="Add max_position_embeddings to it, or choose another.",
        )
    most = rope.max_position_embeddings or trained
    if rope.scaling is None:
        return trained, 4 * trained
    return trained, max(most, round(trained * stated_factor(rope.scaling, most / trained)))


def stated_factor(scaling: Scaling | None, otherwise: float) -> float:
    """The factor that a scaling names, else the ratio of lengths."""
    factor = getattr(scaling, "factor", None)
    return float(factor) if isinstance(factor, int | float) and factor > 1 else otherwise


REACH_ENTRIES = (
    Entry(70, "unseen", "angles never seen in training, before and after each scaling", unseen, draw_reach.unseen),
    Entry(80, "ratios", "each pair's frequency under every scaling, on real configs", ratios, draw_reach.ratios),
    Entry(
        90,
        "wavelengths",
        "wavelengths of real models against their trained lengths",
        wavelengths,
        draw_reach.wavelength_strips,
    ),
)


Pairs = Annotated[tuple[int, ...], Says("pairs to show, fastest 0; none: a choice over the head", 0, 511)]


def clocks(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    pairs: Pairs = (),
    positions: Annotated[int, Says("tokens on the large circles", 2, 24)] = 9,
    position: Annotated[int, Says("the token that the wall shows", 1, 10_000_000)] = 256,
) -> dict[str, Any]:
    """Points on the circle of a few pairs for the first positions, and the angle of every pair at one position."""
    turn = frequencies(plain(head_dim, theta))
    shown = chosen_pairs(pairs, len(turn), (0, 1 / 8, 1 / 4, 1 / 2), "clocks")
    angles = np.outer(turn[list(shown)], np.arange(positions))
    at = turn * position
    return {
        "circles": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "radians_per_token": {pair: float(turn[pair]) for pair in shown},
        "turns": at / (2 * np.pi),
        "hands": (np.cos(at), np.sin(at)),
        "position": position,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}",
    }


def waves(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    trained_length: Annotated[int, Says("tokens seen in training", 2, 1_000_000)] = 128,
    length: Annotated[int, Says("tokens shown", 2, 1_000_000)] = 256,
    pairs: Pairs = (),
) -> dict[str, Any]:
    """Cosine and sine of a few pairs' angles at up to 4,096 points along a window."""
    turn = frequencies(plain(head_dim, theta))
    shown = chosen_pairs(pairs, len(turn), (0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4), "waves")
    positions = np.linspace(0, length, min(8 * length, 4096) + 1)
    angles = np.outer(turn[list(shown)], positions)
    return {
        "positions": positions,
        "curves": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "wavelengths": {pair: float(2 * np.pi / turn[pair]) for pair in shown},
        "trained_length": trained_length,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}",
    }


def chosen_pairs(pairs: tuple[int, ...], count: int, shares: tuple[float, ...], figure: str) -> tuple[int, ...]:
    """The pairs that were asked for, in order, or those at the given shares of the head."""
    if not pairs:
        return tuple(sorted({min(count - 1, int(share * count)) for share in shares}))
    if max(pairs) >= count or len(pairs) > 12:
        raise RopeError(
            f"figure {figure}: `pairs` are counted from 0 within the head, at most twelve.",
            facts={"pairs": pairs, "pairs of the head": count},
            cure=f"Choose from 0 to {count - 1}, or leave it out.",
        )
    return tuple(sorted(set(pairs)))


TURNING_ENTRIES = (
    Entry(10, "clocks", "one pair turning, and a clock for every pair", clocks, draw_turning.clocks),
    Entry(
        20,
        "waves",
        "sine and cosine of each pair's angle by position, the trained length marked",
        waves,
        draw_turning.waves,
    ),
)


def learned_table(model: str = "") -> tuple[Array, str]:
    """The learned table `[positions, hidden_size]` of a trained model, and a line that says where it is from.

    "" is the packaged one, which `scripts/make_learned_table.sh` trained.
    """
    if not model:
        with np.load(packaged("learned_table.npz"), allow_pickle=False) as stored:
            made = json.loads(str(stored["provenance"]))
            text = f"trained on {made['tokens']:,} tokens of Moby Dick, {made['parameters'] / 1e6:.1f}M parameters"
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
    model: Annotated[str, Says("a model trained with --encoding learned; none: the packaged table")] = "",
) -> dict[str, Any]:
    """The three tables over the learned one's positions, and for each how alike every two positions are."""
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
        f"table {source}:\nits colours end at the 99th percentile, and its mean over positions is taken off before "
        "the cosine.",
    }


def alike(rows: Array) -> Array:
    """Cosine of the angle between every two rows, `[rows, rows]`."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found: Array = unit @ unit.T
    return found


TABLES_ENTRIES = (
    Entry(30, "tables", "the sinusoidal table, RoPE's angles and a trained learned table", tables, draw_tables.tables),
)


def turned(x: Tensor, config: RopeConfig, position_ids: Tensor) -> Tensor:
    """One vector `[head_dim]` at every position, `[positions, head_dim]`, in its own dtype."""
    rows = x.expand(1, len(position_ids), 1, -1).contiguous()
    return RotaryEmbedding(config).rotate(rows, position_ids=position_ids)[0, :, 0]


def shift(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    length: Annotated[int, Says("positions of the table, each way", 4, 256)] = 32,
    shifts: Annotated[int, Says("tokens moved, at most", 1, 100_000)] = 64,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Scores q at m with k at n, and along a shift of both, of q alone and of k alone; q and k drawn at random."""
    config = plain(head_dim, theta)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, head_dim, generator=generator)
    places = torch.arange(length)
    grid = turned(q, config, places) @ turned(k, config, places).T / head_dim**0.5
    m, n = length // 2, length // 4
    moved = torch.arange(shifts + 1)

    def scores(by_query: int, by_key: int) -> Array:
        at_m, at_n = turned(q, config, m + by_query * moved), turned(k, config, n + by_key * moved)
        found: Array = ((at_m * at_n).sum(-1) / head_dim**0.5).double().numpy()
        return found

    both = scores(1, 1)
    return {
        "grid": grid.double().numpy(),
        "start": (m, n),
        "shifts": moved.numpy(),
        "curves": {"both move": both, "only the query moves": scores(1, 0), "only the key moves": scores(0, 1)},
        "spread": float(both.max() - both.min()),
        "note": f"One query and one key, random (seed {seed}); head_dim {head_dim}, theta {theta:,.10g}, float32",
    }


def axial(
    head_dim: HeadDim = 64,
    theta: Annotated[float, Says("the base; grids are small, so it is small", 1.001, 1e15)] = 100.0,
    side: Annotated[int, Says("patches of the grid, each way", 3, 128)] = 24,
    row: Annotated[int, Says("row of the one patch", 0, 127)] = 8,
    column: Annotated[int, Says("column of the one patch", 0, 127)] = 11,
) -> dict[str, Any]:
    """Score of one patch's query to every patch's equal key, over its largest: axial 2D, another patch, one axis."""
    if head_dim % 4 or max(row, column) >= side:
        raise RopeError(
            "figure axial: head_dim is a multiple of 4, and the patch lies on the grid.",
            facts={"head_dim": head_dim, "row": row, "column": column, "side": side},
            cure=f"Rows and columns count from 0 to {side - 1}.",
        )
    halves = (0,) * (head_dim // 4) + (1,) * (head_dim // 4)
    grid = RopeConfig(head_dim, interleaved=False, theta=theta, axes=halves, axes_restart=True)
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
    ones = torch.ones(head_dim, dtype=torch.float64)
    by_axes, by_order = turned(ones, grid, at), turned(ones, plain(head_dim, theta), torch.arange(side * side))

    def similarity(rows: Tensor, patch: tuple[int, int]) -> Array:
        found: Array = (rows @ rows[patch[0] * side + patch[1]] / head_dim).view(side, side).numpy()
        return found

    corner = (side - 1, 0)
    return {
        "panels": [
            ("axial 2D", (row, column), similarity(by_axes, (row, column))),
            ("axial 2D, patch in the corner", corner, similarity(by_axes, corner)),
            ("one axis, patches in reading order", (row, column), similarity(by_order, (row, column))),
        ],
        "note": f"Query and key are the same vector of ones; head_dim {head_dim}, theta {theta:,.10g}",
    }


def decay_of(config: RopeConfig, distances: Array) -> tuple[Array, Array]:
    """Score of equal q and k with equal pairs over its largest, and the paper's bound over its value at distance 0.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.3, eq. 36 and 37: the mean of |S_j|, sums of the first j
    unit vectors.
    """
    angles = np.outer(distances, frequencies(config))
    sums = np.abs(np.cumsum(np.exp(1j * angles), axis=1)).mean(1)
    at_zero = (angles.shape[1] + 1) / 2
    return np.cos(angles).mean(1), sums / at_zero


SCORES_ENTRIES = (
    Entry(
        40, "shift", "a score stays when query and key both move, and changes when one does", shift, draw_scores.shift
    ),
    Entry(130, "axial", "axial 2D: one patch against all others", axial, draw_scores.axial),
)


NEAR = 64  # positions looked at around each point of a curve
WAYS = ("angles in bfloat16", "angles in float32", "tables in bfloat16", "tables in float16", "ropewalk")


def _tables_of(way: str, head_dim: int, theta: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin `[positions, pairs]` as each way has them, held in float32."""
    config = plain(head_dim, theta)
    cos, sin = RotaryEmbedding(config).cos_sin(positions)
    if way.startswith("tables"):
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float16
        return cos.to(dtype).float(), sin.to(dtype).float()
    if way.startswith("angles"):  # the usual code: inv_freq and the product in this dtype, then cos and sin
        dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float32
        turn = torch.from_numpy(frequencies(config)).to(dtype)
        angles = (positions.to(dtype)[:, None] * turn).float()
        return angles.cos(), angles.sin()
    return cos, sin


def precision(
    head_dim: HeadDim = 128,
    theta: Theta = 10_000.0,
    longest: Annotated[int, Says("the last position", 1_024, 10_000_000)] = 10_000_000,
    distance: Annotated[int, Says("tokens between query and key", 0, 1_023)] = 16,
    points: Annotated[int, Says("points of a curve", 4, 256)] = 48,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Largest |cos - truth| over pairs, and largest error of a score, near each of some positions, for each way.

    The truth is float64; a score is q at m with k at m - distance, over |q| |k|, for 32 random q and k.
    """
    turn = frequencies(plain(head_dim, theta))
    middles = np.unique(np.geomspace(NEAR, longest, points).astype(np.int64))
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, 1, 32, head_dim, generator=generator), dim=-1)
    cosines: dict[str, list[float]] = {way: [] for way in WAYS}
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    true_score = score_of(q.double(), k.double(), *_exact(turn, np.array([distance])), *_exact(turn, np.array([0])))
    for middle in middles:
        near = np.arange(max(0, middle - NEAR), middle)
        truth = np.cos(np.outer(near.astype(np.float64), turn))
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
    """Scores `[heads]` of q and k `[1, 1, heads, head_dim]` rotated by the tables of one position each."""
    at_m, at_n = rotate(q, cos_m, sin_m, interleaved=False), rotate(k, cos_n, sin_n, interleaved=False)
    return (at_m.double() * at_n.double()).sum(-1).flatten()


def _exact(turn: Array, positions: Array) -> tuple[Tensor, Tensor]:
    angles = torch.from_numpy(np.outer(positions, turn))
    return angles.cos(), angles.sin()


PRECISION_ENTRIES = (
    Entry(
        140, "precision", "what 32-bit angles and 16-bit tables cost by position", precision, draw_precision.precision
    ),
)
