"""Numbers of the figures about length: angles never seen in training, frequency ratios, wavelengths of real models."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.figures import reach as draw_reach
from ropewalk.gallery.entry import Entry, Says
from ropewalk.gallery.material import TITLES, Array, frequencies, published
from ropewalk.methods import Reach, method_named, unscaled
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Scaling

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


ENTRIES = (
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
