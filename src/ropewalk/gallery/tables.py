"""Numbers of the figure of three tables: sinusoidal, RoPE's angles, and a learned table that was trained."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import torch

from ropewalk.checkpoints.load import load_decoder
from ropewalk.encodings.sinusoidal import sinusoidal_table
from ropewalk.errors import RopeError
from ropewalk.figures import tables as draw_tables
from ropewalk.gallery.entry import Entry, HeadDim, Says, Theta
from ropewalk.gallery.material import Array, frequencies, packaged, plain


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


ENTRIES = (
    Entry(30, "tables", "the sinusoidal table, RoPE's angles and a trained learned table", tables, draw_tables.tables),
)
