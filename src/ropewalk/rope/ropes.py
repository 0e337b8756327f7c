"""The ropes of a whole model: one for each layer type."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from ropewalk.rope import hugging_face
from ropewalk.rope.config import RopeConfig


def ropes_of_layer_types(
    config: str | PathLike[str] | Mapping[str, Any] | Any,
) -> dict[str | None, RopeConfig | None]:
    """The rope of each layer type of a Hugging Face config, None for one without rotation (NoPE).

    `config` is what `RopeConfig.from_hf` takes. Where all layers rotate alike the only key is None. Raises `RopeError`
    as `from_hf` does, but for a missing `layer_type`, and for a model without any rotation.

    >>> gemma = {"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8}
    >>> {label: rope.theta for label, rope in ropes_of_layer_types(gemma).items()}
    {'sliding_attention': 10000.0, 'full_attention': 1000000.0}
    >>> ropes_of_layer_types({"model_type": "cohere2", "hidden_size": 512, "num_attention_heads": 4})["full_attention"]
    """
    read = hugging_face.read_layer_types(config)
    ropes = {label: None if fields is None else RopeConfig(**fields) for label, fields in read.items()}
    if len(set(ropes.values())) == 1 and None not in ropes.values():
        return {None: next(iter(ropes.values()))}
    return ropes


def ropes_by_block(
    config: str | PathLike[str] | Mapping[str, Any] | Any,
) -> tuple[dict[str | None, RopeConfig | None], bool]:
    """As `ropes_of_layer_types`, and whether the config has a block for each layer type; equal ones stay apart then.

    >>> ropes_by_block({"model_type": "olmo3", "hidden_size": 512, "num_attention_heads": 4})[1]
    True
    """
    read, nested = hugging_face.read_layer_types(config), hugging_face.is_nested(config)
    ropes = {label: None if fields is None else RopeConfig(**fields) for label, fields in read.items()}
    return (ropes, True) if nested and None not in ropes else (ropes_of_layer_types(config), False)
