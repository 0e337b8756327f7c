"""The ropes and windows of a live transformers model's layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.families import family_named
from ropewalk.rope.model_ropes import TYPE_KEYS, ModelRopes
from ropewalk.rope.rope_parameters import is_windowed
from ropewalk.rope.values import MOST_SIZE, as_whole


def text_config_of(model: nn.Module) -> Any:
    """Return the config of the decoder of a live model; raise `RopeError` if it is not a transformers model."""
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(config, "get_text_config", None)):
        raise RopeError(
            "attach: `model` must be a live transformers model.",
            facts={"model": type(model).__name__},
            cure="Load it with AutoModelForCausalLM.from_pretrained(...); ropewalk's own Decoder is already exact.",
        )
    text = config.get_text_config(decoder=True)
    count, types = as_whole(getattr(text, "num_hidden_layers", None)), [getattr(text, key, None) for key in TYPE_KEYS]
    named = all(isinstance(one, list | tuple) and all(isinstance(label, str) for label in one) for one in types if one)
    if not (callable(getattr(text, "to_dict", None)) and count is not None and 0 <= count <= MOST_SIZE and named):
        raise RopeError(
            "attach: the text config must be transformers', with a number of layers and a list of their types.",
            facts={"model": type(model).__name__, "text config": text, "num_hidden_layers": count, "types": types},
            cure="Restore the config that the model was built with.",
        )
    return text


def positions_of(model: nn.Module, config: Any) -> ModelRopes:
    """Return each layer's rope and sliding window from the model's config; layers without attention have neither.

    **Raises:** `RopeError` as `RopeConfig.from_hf`.
    """
    found = ModelRopes.from_hf(config, alpha=alpha_of(model, config))
    live = _live_windows(model, config.model_type)
    # Exaone 4 has the number in every layer, and uses it by the layer's type
    windows = (
        live.get(layer, window) if window or label is None or is_windowed(label) else None
        for layer, (label, window) in enumerate(zip(found.labels, found.sliding_windows, strict=True))
    )
    return replace(found, sliding_windows=tuple(windows))


def alpha_of(model: nn.Module, config: Any) -> Tensor | None:
    """Return the learned logarithms of factors in the decoder's rotary module; None if its family has none."""
    family = family_named(config.model_type)
    if family is None or family.module.learned is None:
        return None
    own = (module for module in model.modules() if belongs_to(module, config.model_type))
    return next((found for module in own if (found := tensor_of(module, family.module.learned)) is not None), None)


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """Return a buffer or a parameter by its name, without a gradient; None if the module has neither."""
    found = module._buffers.get(name, module._parameters.get(name))
    return None if found is None else found.detach()


def belongs_to(module: nn.Module, model_type: str) -> bool:
    """Return whether a module was built from a config of this model_type, not for another part of the model."""
    return bool(getattr(getattr(module, "config", None), "model_type", None) == model_type)


def _live_windows(model: nn.Module, model_type: str) -> dict[int, int | None]:
    """Return the `sliding_window` (or None) of each attention module with this attribute, by layer."""
    windows: dict[int, int | None] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and hasattr(module, "sliding_window") and belongs_to(module, model_type):
            window = module.sliding_window
            windows[layer] = window if isinstance(window, int) and window > 0 else None
    return windows
