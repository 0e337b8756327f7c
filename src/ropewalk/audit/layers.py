"""What the layers of a rope see of a distance: how far they look, and what else than the rotation carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import DECODERS, FAMILIES, family_name
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.ropes import ropes_of_layer_types
from ropewalk.rope.windows import window_of_layer_type


@dataclass(frozen=True)
class Layers:
    """The layers that have one rope.

    - `window`: tokens that each of them sees at most; None: all.
    - `beside`: why the rotation is not all that tells these tokens apart, in words; None: it is.
    """

    window: int | None = None
    beside: str | None = None


def layers_of_config(config: Mapping[str, Any], layer_type: str | None) -> Layers:
    """Those of a layer type of a Hugging Face config (its text part); None is the one rope of all layers."""
    name = family_name(str(config.get("model_type", "")))
    family = FAMILIES.get(name or "")
    if family is None:
        return Layers()
    window = window_of_layer_type(config, layer_type)
    beside = None
    if family.mla:
        beside = "only a slice of each head turns"
    elif _has_still_layers(config, name or ""):
        beside = "some layers do not rotate"
    return Layers(window, beside)


def layers_of_positions(positions: Positions, rope: RopeConfig) -> Layers:
    """Those of a model that is there."""
    windows = [window for own, window in zip(positions.ropes, positions.sliding_windows, strict=True) if own == rope]
    known = [window for window in windows if window is not None]
    return Layers(
        max(known) if known and len(known) == len(windows) else None,
        "some layers do not rotate" if None in positions.ropes else None,
    )


def _has_still_layers(config: Mapping[str, Any], name: str) -> bool:
    """Whether layers of this model have no rotation."""
    flags = config.get("no_rope_layers")
    if isinstance(flags, list | tuple) and flags:
        return 0 in flags
    if name in DECODERS and "no_rope_layers" in DECODERS[name].defaults:
        return True
    try:
        return None in ropes_of_layer_types(config).values()
    except RopeError:
        return False
