"""How far the layers of a published model look, as its config says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.families import FAMILIES, family_name

_WINDOWED = ("sliding", "chunked", "local")


def is_windowed(layer_type: str) -> bool:
    """Whether layers of this type see a window of the text.

    >>> is_windowed("sliding_attention"), is_windowed("full_attention")
    (True, False)
    """
    return any(word in layer_type for word in _WINDOWED)


def window_of_layer_type(config: Mapping[str, Any], layer_type: str | None) -> int | None:
    """Tokens that a layer of this type sees at most; None: all. `config` is a Hugging Face config's text part.

    `layer_type` None stands for the one type of all layers.

    >>> window_of_layer_type({"model_type": "mistral", "sliding_window": 4096}, None)
    4096
    """
    family = FAMILIES.get(family_name(str(config.get("model_type", ""))) or "")
    if family is None:
        return None
    mixed = len(set(config.get("layer_types") or ())) > 1
    local = family.windowed and not mixed if layer_type is None else is_windowed(layer_type)
    window = config.get(family.window_key, family.sliding_window) if local else None
    return window if isinstance(window, int) else None
