"""A live transformers model: its layers' ropes and windows, its rotary modules, and the replacement of their tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from ropewalk.attachment.probe import is_named_rotary, tensors_of
from ropewalk.attachment.tables import LayerTables, TablesForward, layer_types_of, learned_format
from ropewalk.errors import RopeError, library_errors
from ropewalk.families import family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import TYPE_KEYS, ModelRopes, is_windowed
from ropewalk.rope.values import MOST_SIZE, as_whole

_UNDER_HOOK = "_old_forward"  # accelerate's hooks (device_map, offloading) keep the forward that they wrap there


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
    family = family_named(config.model_type)
    learned, alpha = None if family is None else family.module.learned, None
    if learned is not None:
        tensors = (tensors_of(one).get(learned) for one in model.modules() if belongs_to(one, config.model_type))
        alpha = next((tensor for tensor in tensors if tensor is not None), None)
    found = ModelRopes.from_hf(config, alpha=alpha)
    live = _live_windows(model, config.model_type)
    # Exaone 4 has the number in every layer, and uses it by the layer's type
    windows = (
        live.get(layer, window) if window or label is None or is_windowed(label) else None
        for layer, (label, window) in enumerate(zip(found.labels, found.sliding_windows, strict=True))
    )
    return replace(found, sliding_windows=tuple(windows))


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


# --- rotary modules


Tables = Mapping[str | None, LayerTables]
"""The tables of one rotary module by layer type."""


def rotary_modules(model: nn.Module, config: Any, own: ModelRopes) -> dict[nn.Module, Tables]:
    """Return the own tables of each rotary module of the decoder of `config`, without other parts (vision towers).

    **Raises:** `RopeError` if there is none, or if the form of its tables is unknown.
    """
    modules = {
        module: _own_tables(name, module, own.by_type)
        for name, module in model.named_modules()
        if is_named_rotary(module) and belongs_to(module, config.model_type)
    }
    if not modules:
        raise RopeError(
            f"attach: this {config.model_type} has no rotary module whose tables can be replaced.",
            facts={"model": type(model).__name__},
            cure="Use the model without attaching it.",
        )
    return modules


def _own_tables(name: str, module: nn.Module, ropes: Mapping[str | None, RopeConfig | None]) -> Tables:
    made, tables = fresh(module), {}
    for label in layer_types_of(module):
        rope = _rope_of(label, ropes, name)
        if rope is not None:
            form = learned_format(made, label, rope, name)
            tables[label] = LayerTables(rope, form, rope.num_axes, rope.pairs)
    return tables


def fresh(module: nn.Module) -> nn.Module:
    """Return a new module of the same class and config on the CPU: a cast may have rounded the live frequencies.

    Learned factors of the frequencies are copied: no config contains them.
    """
    make: Any = type(module)
    facts = {"module": make.__name__}
    cure = "Restore the config that the model was built with."
    with (
        torch.device("cpu"),
        library_errors("attach: a rotary module cannot be built from its config.", facts=facts, cure=cure),
    ):
        made: nn.Module = make(module.config)
    family = family_named(getattr(module.config, "model_type", ""))
    if family is not None and family.module.learned is not None:
        learned, own = (tensors_of(each).get(family.module.learned) for each in (module, made))
        if learned is not None and own is not None:
            own.detach().copy_(learned.detach())
    return made


def _rope_of(label: str | None, ropes: Mapping[str | None, RopeConfig | None], name: str) -> RopeConfig | None:
    """Return the rope of a module's layer type; a module without layer types has the rope of all rotating layers."""
    if label in ropes:
        return ropes[label]
    if None in ropes:
        return ropes[None]
    rotating = {rope for rope in ropes.values() if rope is not None}
    if label is None and len(rotating) == 1:
        return rotating.pop()
    raise RopeError(
        "attach: the layer types of a rotary module differ from those of the config.",
        facts={"module": name, "its layer type": label, "the config's": sorted(map(str, ropes))},
        cure="Use the model without attaching it.",
    )


def was_cast(module: nn.Module) -> bool:
    """Return whether a cast such as `model.to(bfloat16)` has rounded a rotary module's frequencies."""
    buffers = module.named_buffers(recurse=False)
    return any("inv_freq" in name and buffer.dtype.itemsize < 4 for name, buffer in buffers)


class Replaced:
    """One attribute of a module with a different value on the instance, until `restore`."""

    def __init__(self, module: nn.Module, name: str, value: object) -> None:
        self.module, self.name, self.value = module, name, value
        self.had = name in vars(module)
        self.before = vars(module).get(name)
        vars(module)[name] = value  # hides a buffer or parameter of that name

    def restore(self) -> None:
        """Restore the instance's own value or the class's; a forward wrapped since then passes calls on."""
        attributes = vars(self.module)
        if attributes.get(self.name) is not self.value:  # a hook of accelerate or another wrapper came or went
            if isinstance(self.value, TablesForward):
                self.value.own = self.before if self.had else type(self.module).forward.__get__(self.module)
        elif self.had:
            attributes[self.name] = self.before
        else:
            del attributes[self.name]


def replace_forward(module: nn.Module, forward: object) -> Replaced:
    """Replace the forward of this instance; if a hook of accelerate wraps it, replace it under the hook."""
    return Replaced(module, _UNDER_HOOK if _UNDER_HOOK in vars(module) else "forward", forward)


class LayerPlan(NamedTuple):
    """The tables of a model under some positions.

    - `tables`: of each rotary module, by layer type. `overrides`: of single layers.
    - `text_only`: positions of several axes must be those of plain text, if single layers have different tables, or
      attention counts the tokens.
    """

    tables: list[Tables]
    overrides: dict[int, LayerTables]
    text_only: bool


def plan_layers(modules: Iterable[Tables], own: ModelRopes, positions: ModelRopes) -> LayerPlan:
    """Plan a model under these positions; raise `RopeError` if that is impossible."""
    _check(own, positions)
    planned, overrides = list[Tables](), dict[int, LayerTables]()

    def wanted(layer: int) -> RopeConfig | None:
        extension = positions.extensions[layer]
        return None if extension is not None and extension.remaps else positions.ropes[layer]

    for own_tables in modules:
        of_module = {}
        for label, tables in own_tables.items():
            layers = [
                layer
                for layer, rope in enumerate(own.ropes)
                if rope is not None and (label is None or len(own_tables) == 1 or own.labels[layer] == label)
            ]
            ropes = [wanted(layer) for layer in layers]
            common = max(dict.fromkeys(ropes), key=ropes.count) if ropes else tables.rope
            of_module[label] = replace(tables, rope=common)
            for layer, rope in zip(layers, ropes, strict=True):
                if rope != common:
                    overrides[layer] = replace(tables, rope=rope)
        planned.append(of_module)
    several = any(rope.num_axes > 1 for rope in own.present_ropes)
    return LayerPlan(planned, overrides, several and bool(overrides or positions.remaps))


def _check(own: ModelRopes, positions: ModelRopes) -> None:
    """Raise `RopeError` for positions that the model's layers do not support."""
    if positions.num_layers != own.num_layers:
        raise RopeError(
            "attach: positions must have one entry for each layer.",
            facts={"layers": own.num_layers, "entries": positions.num_layers},
            cure="Start from the handle's own: method.positions(handle.own, reach).",
        )
    for layer, (before, after, extension, window) in enumerate(
        zip(own.ropes, positions.ropes, positions.extensions, own.sliding_windows, strict=True)
    ):
        remaps = extension is not None and extension.remaps and window is None  # then our attention rotates
        if before is None and (after, extension) != (None, None) and not (after is not None and remaps):
            raise RopeError(
                "attach: a layer without rotation supports neither a rope nor an extension.",
                facts={"layer": layer, "rope": after, "extension": extension},
                cure="Pass None for this layer.",
            )
        rotated_by_us = remaps and before is not None and before.num_axes == 1
        if after is not None and before is not None and _shape(after, rotated_by_us) != _shape(before, rotated_by_us):
            raise RopeError(
                "attach: a new rope must rotate the same pairs as the model's own.",
                facts={"layer": layer, "its own rope": before, "rope": after},
                cure="Change only theta or the scaling.",
            )
        if extension is not None and extension.remaps and (after is None or window is not None):
            raise RopeError(
                "attach: an extension needs a layer with a rope and attention to all earlier tokens.",
                facts={"layer": layer, "rope": after, "sliding_window": window},
                cure="Pass None for this layer.",
            )


def _shape(rope: RopeConfig, rotated_by_us: bool) -> tuple[object, ...]:
    """Return the settings that a rope must share with the model's own; our attention supports any pairing and width."""
    fixed = rope.head_dim, rope.axes, rope.axes_restart
    return fixed if rotated_by_us else (*fixed, rope.interleaved, rope.rotary_dim)
