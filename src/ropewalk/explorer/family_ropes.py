"""What the table of model families says of each family's rope where a config is silent."""

from __future__ import annotations

from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.ropes import ropes_of_layer_types

COMMON = {"hidden_size": 4096, "num_attention_heads": 32}
"""A head of 128 features, for the families whose class has no head_dim of its own."""


def family_entries() -> list[dict[str, Any]]:
    """Theta and pairs of each family's rope before any scaling, in alphabetical order.

    Ropes of several axes, and families whose class asks for more than a head_dim, are left out. `assumed`: the head_dim
    is ours, for want of one.

    >>> next(entry for entry in family_entries() if entry["name"] == "gpt_oss")["theta"]
    150000.0
    """
    found = []
    for name in sorted(FAMILIES):
        assumed = False
        ropes = _ropes({"model_type": name})
        if ropes is None:
            assumed, ropes = True, _ropes({"model_type": name, **COMMON})
        for label, rope in (ropes or {}).items():
            if rope is not None and rope.num_axes == 1 and isinstance(rope.theta, float) and rope.inv_freq is None:
                title = name if label is None else f"{name}, {label.replace('_', ' ')}"
                found.append(
                    {
                        "name": title,
                        "theta": rope.theta,
                        "pairs": rope.pairs,
                        "interleaved": rope.interleaved,
                        "assumed": assumed,
                    }
                )
    return found


def _ropes(config: dict[str, Any]) -> dict[str | None, RopeConfig | None] | None:
    try:
        return ropes_of_layer_types(config)
    except RopeError:
        return None
