"""What a rotary class of transformers does to queries: its own module and its own apply function, at random positions.

A sample holds queries, the positions that we would be given, and what the model makes of them. Vision towers get
(row, column); where a tower's model passes them in another order, or computes coordinates itself, that is done here, as
its model does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ropewalk as rw
from tests.parity.classes import Part
from tests.rope.models import Model

LONGEST = 20


class Sample(NamedTuple):
    """Queries `[batch, seq, heads, features]`, positions `[batch, seq]` (or `[..., axes]`), and the queries turned."""

    q: Tensor
    positions: Tensor
    turned: Tensor


def sample(part: Part, config: Any, layer_type: str | None, rope: rw.RopeConfig) -> Sample:
    """Random queries turned by the class itself; `rope` says how wide they are and how many axes positions have."""
    style = STYLES.get(part.name)
    if style is None:
        vision = "Vision" in part.name and hasattr(part.file, "apply_rotary_pos_emb_vision")
        style = _tower if vision or part.name.startswith("MLCD") else None
    if style is not None:
        return style(part, config, rope)
    q = torch.randn(2, 7, 3, rope.head_dim)
    positions = torch.randint(0, LONGEST, (2, 7) if rope.num_axes == 1 else (2, 7, rope.num_axes))
    model = Model(config, layer_type, part.cls, interleave="Audio" not in part.name)
    ids = positions if rope.num_axes == 1 else positions.movedim(-1, 0)
    return Sample(q, positions, model.rotate(q.transpose(1, 2), ids).transpose(1, 2))


def frequencies(part: Part, config: Any, layer_type: str | None) -> tuple[Tensor, float] | None:
    """The class's own inverse frequencies and attention factor; None where it keeps none (complex tables)."""
    if part.name in STYLES or "Vision" in part.name or part.name.startswith("MLCD"):
        module = part.cls(config)
        own = getattr(module, "inv_freq", None)
        return None if own is None else (own.double(), float(getattr(module, "attention_scaling", 1.0)))
    return Model(config, layer_type, part.cls).frequencies()


# --- vision towers: tokens of one image, [tokens, heads, features]


def _tower(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """Towers whose module takes the coordinates of each token."""
    q, positions = torch.randn(9, 3, rope.head_dim), torch.randint(0, LONGEST, (9, rope.num_axes))
    apply = getattr(part.file, "apply_rotary_pos_emb_vision", None) or part.file.apply_rotary_pos_emb
    turned, _ = apply(q, q, *part.cls(config)(q, positions))
    return Sample(q[None], positions[None], turned[None])


STYLES: dict[str, Callable[[Part, Any, rw.RopeConfig], Sample]] = {}
