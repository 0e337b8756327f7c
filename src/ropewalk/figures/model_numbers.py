"""Numbers of the figures about a layer or a trained model: weights, scores by distance, the wrong pairing's cost."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.attention.attention import Attention
from ropewalk.errors import RopeError
from ropewalk.figures.entry import HeadDim, Meaning, Model, Seed, Theta
from ropewalk.figures.material import (
    Array,
    attention_inputs,
    frequencies,
    plain,
    queries_and_keys,
    rotary_model,
    windows,
)
from ropewalk.models.decoder import Decoder
from ropewalk.readers.losses import window_losses
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of
from ropewalk.rope.pairing import Pairing, convert_pairing, pairing_order
from ropewalk.statistics import mean_and_interval

DRAWS = 1_000
BANDS = (0.9, 0.5)


def decay(
    head_dim: HeadDim = 64,
    theta: Theta = 10_000.0,
    length: Annotated[int, Meaning("distances shown, in tokens", 16, 65_536)] = 256,
    model: Model = "tiny",
    texts: Annotated[int, Meaning("windows of Moby-Dick", 1, 256)] = 16,
    tokens: Annotated[int, Meaning("tokens of a window", 16, 2_048)] = 256,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Return scores by distance: of equal q and k, of random ones, and of each head of a trained model on text."""
    distances = np.arange(length, dtype=np.float64)
    config = plain(head_dim, theta)
    equal, bound = decay_of(config, distances)
    draws = random_scores(config, distances, seed)
    trained = rotary_model(model)
    heads = head_scores(trained, windows(trained, texts, tokens), distances)
    quarters = {name: [float(part.mean()) for part in np.array_split(curve, 4)] for name, curve in heads.items()}
    falls = {name: parts[0] - parts[3] for name, parts in quarters.items()}
    rises = {name: parts[3] - parts[2] for name, parts in quarters.items()}
    return {
        "distances": distances,
        "equal": equal,
        "bound": bound,
        "random_bands": [(share, *np.quantile(draws, [0.5 - share / 2, 0.5 + share / 2], axis=0)) for share in BANDS],
        "random_mean": draws.mean(0),
        "random_examples": draws[:2],
        "heads": {name: curve - curve.mean() for name, curve in heads.items()},
        "falling": max(falls, key=falls.__getitem__),
        "rising": max(rises, key=rises.__getitem__),
        "rising_count": sum(rise > 0 for rise in rises.values()),
        "model": model,
        "note": f"head_dim {head_dim}, theta {theta:,.10g}; {DRAWS:,} draws (seed {seed}). Lower right: every query "
        f"with every key of {texts} windows of {tokens} tokens of\nMoby-Dick, at this distance, before the softmax. "
        "Falls: from the first to the last quarter of distances; rises again: from the third to the last.",
    }


def decay_of(config: RopeConfig, distances: Array) -> tuple[Array, Array]:
    """Return the score of equal q and k with equal pairs, and the paper's bound on it, both divided by |q| |k|.

    The bound is the mean of |S_j|, the sums of the first j unit vectors: S_P is P times the score, and with equal
    pairs the largest difference |h_(i+1) - h_i| is that of the last pair to 0.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.3, eq. 36 and 37.
    """
    angles = np.outer(distances, frequencies(config))
    return np.cos(angles).mean(1), np.abs(np.cumsum(np.exp(1j * angles), axis=1)).mean(1)


def random_scores(config: RopeConfig, distances: Array, seed: int) -> Array:
    """Return scores of random normal q and k, divided by |q| |k|, `[draws, distances]`.

    With q and k as complex numbers, a pair adds Re(q conj(k) exp(i D f)) at distance D.
    """
    random = np.random.default_rng(seed)
    q, k = (random.standard_normal((DRAWS, 2, config.pairs)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=(1, 2), keepdims=True) for x in (q, k))
    product = (q[:, 0] + 1j * q[:, 1]) * (k[:, 0] - 1j * k[:, 1])
    scores: Array = (product @ np.exp(1j * np.outer(frequencies(config), distances))).real
    return scores


def head_scores(model: Decoder, ids: Tensor, distances: Array) -> dict[str, Array]:
    """Return the mean score q·k / sqrt(head_dim) of each head at each distance, over every query and key of the text.

    Each query is moved `distance` tokens after each key, which separates the effect of distance from that of content.
    With q and k as complex numbers, the mean is Re(mean(q) conj(mean(k)) exp(i D f)).
    """
    curves: dict[str, Array] = {}
    for layer, given in enumerate(attention_inputs(model, ids)):
        rope = given.attention.rope
        assert rope is not None
        scale = attention_factor_of(rope, len(distances)) ** 2 / rope.head_dim**0.5
        rotation = np.exp(1j * np.outer(frequencies(rope, len(distances)), distances))
        q, k = (x.double().mean((0, 2)) for x in queries_and_keys(given))
        for head, (one_q, one_k) in enumerate(zip(q, k, strict=True)):
            pairs_q, rest_q = as_complex(one_q, rope)
            pairs_k, rest_k = as_complex(one_k, rope)
            scores = ((pairs_q * pairs_k.conj()) @ rotation).real + float(rest_q @ rest_k)
            curves[f"layer {layer}, head {head}"] = scores * scale
    return curves


def as_complex(x: Tensor, rope: RopeConfig) -> tuple[Any, Array]:
    """Return the pairs of `[head_dim]` as complex numbers, and the features that are not rotated."""
    rotary = x[: 2 * rope.pairs]
    pairs = rotary.view(-1, 2) if rope.interleaved else rotary.view(2, -1).T
    return (pairs[:, 0] + 1j * pairs[:, 1]).numpy(), x[2 * rope.pairs :].numpy()


WORDS = ("dog", "bites", "man")
"""The sentence of the first step; its other order has the same words."""


def order(
    head: Annotated[int, Meaning("of the layer's four heads", 0, 3)] = 0,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Return one head's attention weights of two sentences with the same words, without positions and with rotation.

    Word vectors `[3, 64]` and the layer's weights are random, each drawn with `seed`. Rows and columns are words in
    the order of `WORDS`, whatever their order in the sentence.
    """
    vectors = torch.randn(len(WORDS), 64, generator=torch.Generator().manual_seed(seed))
    rows = []
    for label, encoding in (("without positions", "none"), ("with rotary positions", "rope")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = Attention(64, 4, encoding=encoding, causal=False)
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


def layer(
    heads: Annotated[int, Meaning("query heads", 1, 128)] = 4,
    key_heads: Annotated[int, Meaning("key and value heads, a divisor of the query heads", 1, 128)] = 2,
    head_dim: HeadDim = 16,
    tokens: Annotated[int, Meaning("tokens of the text", 1, 4_096)] = 10,
    batch: Annotated[int, Meaning("texts", 1, 64)] = 2,
) -> dict[str, Any]:
    """Return the shapes in an attention layer with RoPE, by name, recorded in a forward pass."""
    shapes: dict[str, tuple[int, ...]] = {}

    def split(name: str) -> Any:
        return lambda _, __, out: shapes.update({name: (*out.shape[:-1], out.shape[-1] // head_dim, head_dim)})

    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        attention = Attention(heads * head_dim, heads, num_key_value_heads=key_heads, head_dim=head_dim)
        for name in ("q", "k", "v"):
            getattr(attention, f"{name}_proj").register_forward_hook(split(name))
        x = torch.randn(batch, tokens, heads * head_dim)
        out, weight = attention(x, need_weights=True)
    return {"shapes": {"x": tuple(x.shape), **shapes, "weights": tuple(weight.shape), "out": tuple(out.shape)}}


def maps(
    model: Model = "tiny",
    tokens: Annotated[int, Meaning("tokens of the window", 8, 512)] = 64,
    moved: Annotated[int, Meaning("tokens added to all positions", 1, 1_000_000)] = 10_000,
    heads: Annotated[
        tuple[str, ...], Meaning('heads as layer.head ("2.1"); none: three that are chosen by their weights')
    ] = (),
) -> dict[str, Any]:
    """Return attention weights of a few heads on one window: as trained, without rotation, with all positions moved."""
    rotary = rotary_model(model)
    ids, positions = windows(rotary, 1, tokens), torch.arange(tokens)
    trained = weights(rotary, ids, positions)
    without = weights(rotary.with_positions(rope=None), ids, None)
    elsewhere = weights(rotary, ids, positions + moved)
    chosen = named_heads(heads, trained.shape) if heads else by_kind(trained, without)
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
        "note": f"{model}, {tokens} tokens of Moby-Dick; the same weights everywhere. Rotation is removed in every "
        "layer; the difference is the largest over all heads.",
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


def named_heads(names: Sequence[str], shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Parse heads written as layer.head; raise `RopeError` for one that the model does not have."""
    chosen = {}
    for name in names[:8]:
        layer, dot, head = name.partition(".")
        if not (dot and layer.isdigit() and head.isdigit() and int(layer) < shape[0] and int(head) < shape[1]):
            raise RopeError(
                "figure maps: the model does not have this head.",
                facts={"head": name, "layers": shape[0], "heads": shape[1]},
                cure="Write layer.head, both counted from 0: heads=0.2,3.1",
            )
        chosen[f"layer {int(layer)}, head {int(head)}"] = (int(layer), int(head))
    return chosen


SMOLLM2 = "ROPEWALK_SMOLLM2"


def pairing(
    head_dim: Annotated[int, Meaning("features of the drawn head, even", 4, 32)] = 8,
    models: Annotated[
        tuple[str, ...],
        Meaning(f'models to measure; none: "tiny", and the SmolLM2 that ${SMOLLM2} names'),
    ] = (),
    texts: Annotated[int, Meaning("windows of Moby-Dick", 2, 256)] = 8,
    tokens: Annotated[int, Meaning("tokens of a window", 16, 4_096)] = 256,
) -> dict[str, Any]:
    """Return the features of each pair in both conventions, and the loss of models with the right and wrong one."""
    if head_dim % 2:
        raise RopeError(
            "figure pairing: `head_dim` must be even.", facts={"head_dim": head_dim}, cure="Give an even number."
        )
    smollm2 = os.environ.get(SMOLLM2)
    named = models or ("tiny", *([smollm2] if smollm2 else []))
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


def losses(model: Decoder, texts: int, tokens: int) -> dict[str, Any]:
    """Return nats per token with the model's own pairing, the wrong one, and the wrong one with converted weights.

    Each is (mean, low, high); the interval is that of the paired difference over windows, centred at the mean.
    "uniform" is ln(vocab_size).
    """
    ids = windows(model, texts, tokens)
    wrong = model.with_positions(rope=tuple(None if rope is None else _other(rope) for rope in model.config.ropes))
    own = [float(window_losses(model, row).mean()) for row in ids]
    result: dict[str, Any] = {"uniform": math.log(model.config.vocab_size), "bars": {}}
    for name, case in (("its own pairing", None), ("the wrong pairing", wrong), ("converted", converted(wrong))):
        means = own if case is None else [float(window_losses(case, row).mean()) for row in ids]
        mean, _ = mean_and_interval(means)
        apart, interval = mean_and_interval([one - base for one, base in zip(means, own, strict=True)])
        low, high = interval or (apart, apart)
        result["bars"][name] = (mean, mean + low - apart, mean + high - apart)
    return result


def converted(wrong: Decoder) -> Decoder:
    """Return the model with weights reordered for the pairing of its config."""
    rope = next(rope for rope in wrong.config.ropes if rope is not None)
    model = Decoder(wrong.config)
    to: Pairing = "interleaved" if rope.interleaved else "half"
    weights = convert_pairing(wrong.state_dict(), to=to, head_dim=rope.head_dim, rotary_dim=rope.rotary_dim)
    model.load_state_dict(weights)
    return model.eval()


def shown_name(model: str) -> str:
    """Return a model's name for the picture: the last part of a path, without .gguf."""
    return Path(model).name.removesuffix(".gguf")


def _other(rope: RopeConfig) -> RopeConfig:
    return dataclasses.replace(rope, interleaved=not rope.interleaved)
