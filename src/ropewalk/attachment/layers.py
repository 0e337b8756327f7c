"""The ropes and windows of each layer of a live transformers model, from its config and its modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.methods import ConfigForm
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig, ropes_by_block, ropes_of_layer_types
from ropewalk.rope.layer_types import is_windowed, window_of_layer_type

_TYPES = ("layer_types", "layers_block_type")  # the second: the older name of hybrid models
_ATTENDING = ("attention", "full", "sliding", "chunked", "local", "global", "hybrid")


def text_config_of(model: nn.Module) -> Any:
    """Return the config of the decoder of a live model; raise `RopeError` if it is no transformers model."""
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(config, "get_text_config", None)):
        raise RopeError(
            "attach: `model` must be a live transformers model.",
            facts={"model": type(model).__name__},
            cure="Load it with AutoModelForCausalLM.from_pretrained(...); a Decoder of ours is exact as it is.",
        )
    return config.get_text_config(decoder=True)


def labels_of(config: Any) -> tuple[str | None, ...]:
    """Return the label of each layer's rope: its layer type, or the family's name for that type's block."""
    family = FAMILIES.get(family_name(str(config.model_type)) or "")
    named = {} if family is None else family.block_of
    return tuple(label if label is None else named.get(label, label) for label in _layer_types(config))


def _layer_types(config: Any) -> list[str | None]:
    """Return the type of each layer, or None if the config does not contain it."""
    count = int(config.num_hidden_layers)
    stated = next((getattr(config, key) for key in _TYPES if getattr(config, key, None)), None)
    labels: list[str | None] = list(stated)[:count] if stated else [None] * count
    return labels + [None] * (count - len(labels))


def config_form_of(whole: Any, config: Any) -> ConfigForm:
    """Return where a whole model's config contains the ropes of its decoder, whose config is `config`."""
    part = None if config is whole else next((key for key, value in vars(whole).items() if value is config), None)
    ropes, nested = ropes_by_block(config)
    if not nested:
        return ConfigForm(part=part)
    blocks = {str(label): rope for label, rope in ropes.items() if rope is not None}
    return ConfigForm(names=labels_of(config), ropes=blocks, part=part)


def positions_of(model: nn.Module, config: Any) -> Positions:
    """Return each layer's rope and sliding window from the model's config; layers without attention have neither.

    Raises `RopeError` where `RopeConfig.from_hf` does.
    """
    fields: Mapping[str, Any] = config.to_dict()
    count, labels, blocks = int(config.num_hidden_layers), _layer_types(config), labels_of(config)
    ropes, flags = ropes_of_layer_types(config), _flags(config, count)
    live = _live_windows(model, config.model_type)

    def rope_of(layer: int) -> RopeConfig | None:
        label = labels[layer]
        if flags is not None and not flags[layer]:
            return None
        if label is not None and not any(word in label for word in _ATTENDING):
            return None
        if label is not None and "linear" in label:
            return None
        if None in ropes:
            return ropes[None]
        if flags is not None:
            return next((rope for rope in ropes.values() if rope is not None), None)
        return ropes.get(blocks[layer])

    def window_of(layer: int) -> int | None:
        label = labels[layer]
        if label is not None and not is_windowed(label):
            return None  # Exaone 4 keeps the number in every layer, and reads it by the layer's type
        return live[layer] if layer in live else window_of_layer_type(fields, label)

    layers = range(count)
    return Positions(tuple(map(rope_of, layers)), (None,) * count, tuple(map(window_of, layers)))


def _flags(config: Any, count: int) -> list[bool] | None:
    """Return for each layer whether it rotates, if the config has a list for that."""
    family = FAMILIES.get(family_name(str(config.model_type)) or "")
    stated = getattr(config, "no_rope_layers", None) if family is None or not family.flags else None
    stated = getattr(config, family.flags, None) if family is not None and family.flags else stated
    return [bool(flag) for flag in stated[:count]] if isinstance(stated, list | tuple) and stated else None


def belongs_to(module: nn.Module, model_type: str) -> bool:
    """Return whether a module was built from a config of this model_type, not for another part of the model."""
    return bool(getattr(getattr(module, "config", None), "model_type", None) == model_type)


def _live_windows(model: nn.Module, model_type: str) -> dict[int, int | None]:
    """Return the `sliding_window` of the attention modules that have one (or None), by layer."""
    found: dict[int, int | None] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and hasattr(module, "sliding_window") and belongs_to(module, model_type):
            window = module.sliding_window
            found[layer] = window if isinstance(window, int) and window > 0 else None
    return found
