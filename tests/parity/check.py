"""One rotary class against ropewalk: frequencies, attention factor, rotation, and that wrong readings show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import ropewalk as rw
from ropewalk.families import FAMILIES
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity.classes import CHANGES, READ_AS, UNREAD, Part, config_of, reading_of
from tests.parity.own import Sample, frequencies, sample
from tests.rope.models import Model

WRONG = ["pairing", "theta", "width"]
CLOSE, TURNED = 1e-6, 1e-5  # relative, of frequencies; absolute, of turned queries of unit variance


def reason(error: rw.RopeError) -> str:
    """The first line of an error, without the function's name."""
    return str(error).splitlines()[0].removeprefix("from_hf: ").removeprefix("attach: ")


def rounded(error: float) -> float:
    """Two digits: a record is not made to the bit."""
    return float(f"{error:.1e}")


def check(part: Part) -> dict[str, Any]:
    """The row of one class in the record.

    `status` is "exact", "refused" (with our reason) or "differs"; `layers` has an entry for each layer type that turns.
    """
    torch.manual_seed(0)
    config = config_of(part)
    row: dict[str, Any] = {
        "class": part.name,
        "folder": part.folder,
        "family": READ_AS.get(type(config).__name__, config.model_type),
    }
    if part.name in UNREAD:
        return {**row, "status": "refused", "reason": UNREAD[part.name]}
    try:
        readings = list(_layers(part, config))
    except rw.RopeError as error:
        return {**row, "status": "refused", "reason": reason(error)}
    layers = {label or "all": _layer(part, config, own, rope) for own, label, rope in readings}
    silent = _silent(config)
    exact = all(layer["exact"] and layer["noticed"] == WRONG for layer in layers.values())
    agrees = exact and layers and silent != "another rope"
    return {**row, "status": "exact" if agrees else "differs", "silent": silent, "layers": layers}


SIZES = {  # what a config states however little it states
    *("model_type", "vocab_size", "patch_size", "depth", "num_hidden_layers", "layer_types", "num_heads"),
    *("hidden_size", "embed_dim", "n_embd", "d_model", "num_attention_heads", "n_head", "n_heads"),
    *("max_position_embeddings", "max_sequence_length", "n_positions"),
}


def _silent(config: Any) -> str:
    """How a config that states its sizes alone is read: "the same rope", "another rope", or "refused"."""
    changed = CHANGES.get(config.model_type, {})
    fields = {key: value for key, value in config.to_dict().items() if key in SIZES} | changed
    try:
        same = ModelRopes.from_hf(fields).by_type == ModelRopes.from_hf(reading_of(config)).by_type
    except rw.RopeError:
        return "refused"
    return "the same rope" if same else "another rope"


def _layers(part: Part, config: Any) -> Iterator[tuple[str | None, str | None, rw.RopeConfig]]:
    """Each layer type that has frequencies of its own: its name there, ours, and our reading of it."""
    alpha = _alpha(part, config)
    ropes = ModelRopes.from_hf(reading_of(config), alpha=alpha).by_type
    turning = [label for label, rope in ropes.items() if rope is not None]
    own = Model(config, None, part.cls).layer_types if hasattr(config, "layer_types") else [None]
    for layer_type in own:
        label = None if None in ropes or not turning else (layer_type or turning[0])  # not turning: only linear layers
        yield layer_type, label, rw.RopeConfig.from_hf(reading_of(config), layer_type=label, alpha=alpha)


def _alpha(part: Part, config: Any) -> torch.Tensor | None:
    """The learned factors of a new module (zeros), in a family that has them; tests/rope/test_lerope.py has others."""
    family = FAMILIES.get(getattr(config, "model_type", ""))
    return None if family is None or family.module.learned is None else getattr(part.cls(config), family.module.learned)


def _layer(part: Part, config: Any, layer_type: str | None, rope: rw.RopeConfig) -> dict[str, Any]:
    """How far one layer type's frequencies, factor and rotation are from the class's own."""
    found: dict[str, Any] = {"rope": describe(rope)}
    own, exact = frequencies(part, config, layer_type), True
    if own is not None:
        error, factor = off(own, rope, 1)
        found |= {"frequencies": rounded(error), "factor": factor}
        exact = error <= CLOSE and factor <= CLOSE
    taken = sample(part, config, layer_type, rope)
    found["rotation"] = rounded(distance(taken, rope))
    wrong = sabotaged(rope)
    found["noticed"] = [name for name in wrong if distance(taken, wrong[name]) > 10 * TURNED]
    return {**found, "exact": exact and found["rotation"] <= TURNED}


def off(own: tuple[torch.Tensor, float], rope: rw.RopeConfig, seq_len: int) -> tuple[float, float]:
    """The relative errors of our frequencies and attention factor at a length, compared with the class's own."""
    ours = rw.inverse_frequencies(rope, seq_len)
    # the class keeps them above 0 even where it turns back
    expected, actual = own[0].flatten().unique(), ours.inv_freq.sum(0).abs().unique()
    same = actual.shape == expected.shape
    error = ((actual - expected).abs() / expected.abs().clamp(min=1e-30)).max().item() if same else math.inf
    return error, abs(ours.attention_factor / own[1] - 1.0)


def distance(taken: Sample, rope: rw.RopeConfig) -> float:
    """The largest difference of our rotation of the sample."""
    seq_len = int(taken.positions.max()) + 1 if rope.needs_seq_len else None
    ours = rw.RotaryEmbedding(rope).rotate(taken.q, position_ids=taken.positions, seq_len=seq_len)
    return float((ours - taken.turned).abs().max().detach())


def sabotaged(rope: rw.RopeConfig) -> dict[str, rw.RopeConfig]:
    """The same rope with another pairing, theta (or frequencies) off by one per cent, and one pair fewer that turns."""
    explicit = rope.inv_freq is not None
    theta = {"inv_freq": tuple(f * 1.01 for f in rope.inv_freq or ())} if explicit else {"theta": rope.theta * 1.01}
    fewer = {
        "rotary_dim": 2 * rope.pairs - 2,
        "axes": None if rope.axes is None else rope.axes[:-1],
        "inv_freq": None if rope.inv_freq is None else rope.inv_freq[:-1],
        "scaling": None
        if isinstance(rope.scaling, rw.scaling.LongRoPE | rw.scaling.Proportional | rw.scaling.LeRoPE)
        else rope.scaling,
    }
    return {
        "pairing": replace(rope, interleaved=not rope.interleaved, axis_blocks=False),
        "theta": replace(rope, **theta),
        "width": replace(rope, **fewer),
    }


def describe(rope: rw.RopeConfig) -> str:
    """What turns, in a few words: pairing, width, theta, rule, axes."""
    pairing = "interleaved" if rope.interleaved else "half-split"
    width = f"{rope.head_dim}" if 2 * rope.pairs == rope.head_dim else f"{2 * rope.pairs} of {rope.head_dim}"
    rule = "" if rope.scaling is None else f", {type(rope.scaling).__name__}"
    theta = f"theta {rope.theta:,.10g}" if rope.inv_freq is None else "frequencies of its own"
    axes = "" if rope.num_axes == 1 else f", {rope.num_axes} axes"
    return f"{pairing}, {width}, {theta}{rule}{axes}"
