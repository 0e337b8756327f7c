"""The rotary modules of a live model, and the replacement of their tables on the instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment.layers import belongs_to, tensor_of
from ropewalk.attachment.probe import is_named_rotary
from ropewalk.attachment.tables import (
    LayerTables,
    TablesForward,
    layer_types_of,
    learned_format,
)
from ropewalk.errors import RopeError, library_errors
from ropewalk.families import family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.model_ropes import ModelRopes

_FORWARD = "forward"
_UNDER_HOOK = "_old_forward"  # accelerate's hooks (device_map, offloading) keep the forward that they wrap there


@dataclass(frozen=True)
class RotaryModule:
    """One rotary module of a live model: its name in the model, and its own tables of each layer type."""

    name: str
    module: nn.Module
    tables: Mapping[str | None, LayerTables]


def rotary_modules(model: nn.Module, config: Any, own: ModelRopes) -> tuple[RotaryModule, ...]:
    """Return the rotary modules of the decoder described by `config`, without those of other parts (vision towers).

    **Raises:** `RopeError` if there is none, or if the form of its tables is unknown.
    """
    ropes = own.by_type
    modules = [
        _module_with_forward(name, module, ropes)
        for name, module in model.named_modules()
        if is_named_rotary(module) and belongs_to(module, config.model_type)
    ]
    if not modules:
        raise RopeError(
            f"attach: this {config.model_type} has no rotary module whose tables can be replaced.",
            facts={"model": type(model).__name__},
            cure="Use the model without attaching it.",
        )
    return tuple(modules)


def _module_with_forward(name: str, module: nn.Module, ropes: Mapping[str | None, RopeConfig | None]) -> RotaryModule:
    """Return a rotary module with the form of its forward's tables."""
    made, tables = fresh(module), {}
    for label in layer_types_of(module):
        rope = _rope_of(label, ropes, name)
        if rope is not None:
            form = learned_format(made, label, rope, name)
            tables[label] = LayerTables(rope, form, rope.num_axes, rope.pairs)
    return RotaryModule(name, module, tables)


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
        learned, own = (tensor_of(each, family.module.learned) for each in (module, made))
        if learned is not None and own is not None:
            own.copy_(learned)
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


def fresh_modules(modules: tuple[RotaryModule, ...]) -> dict[str, nn.Module]:
    """Return a new float32 module for each one with cast frequencies (`model.to(bfloat16)`), by name."""
    return {rotary.name: fresh(rotary.module) for rotary in modules if _was_cast(rotary.module)}


def _was_cast(module: nn.Module) -> bool:
    buffers: list[Tensor] = [buffer for name, buffer in module.named_buffers(recurse=False) if "inv_freq" in name]
    return any(buffer.dtype not in (torch.float32, torch.float64) for buffer in buffers)


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
    return Replaced(module, _UNDER_HOOK if _UNDER_HOOK in vars(module) else _FORWARD, forward)


@dataclass
class LayerPlan:
    """The tables and extensions of a model under some positions.

    - `tables`: of each rotary module, by layer type. `overrides`: of single layers. `extensions`: by layer.
    - `text_only`: positions of several axes must be those of plain text, if single layers have different tables, or
      attention counts the tokens.
    """

    tables: list[dict[str | None, LayerTables]] = field(default_factory=list)
    overrides: dict[int, LayerTables] = field(default_factory=dict)
    extensions: dict[int, Extension] = field(default_factory=dict)
    text_only: bool = False


def plan_layers(modules: Sequence[RotaryModule], own: ModelRopes, positions: ModelRopes) -> LayerPlan:
    """Plan a model under these positions; raise `RopeError` if that is impossible."""
    _check(own, positions)
    plan = LayerPlan(extensions={layer: one for layer, one in enumerate(positions.extensions) if one is not None})

    def wanted(layer: int) -> RopeConfig | None:
        extension = positions.extensions[layer]
        return None if extension is not None and extension.remaps else positions.ropes[layer]

    for rotary in modules:
        of_module = {}
        for label, tables in rotary.tables.items():
            layers = [
                layer
                for layer, rope in enumerate(own.ropes)
                if rope is not None and (label is None or len(rotary.tables) == 1 or own.labels[layer] == label)
            ]
            ropes = [wanted(layer) for layer in layers]
            common = max(dict.fromkeys(ropes), key=ropes.count) if ropes else tables.rope
            of_module[label] = tables.with_rope(common)
            for layer, rope in zip(layers, ropes, strict=True):
                if rope != common:
                    plan.overrides[layer] = tables.with_rope(rope)
        plan.tables.append(of_module)
    remaps = any(extension.remaps for extension in plan.extensions.values())
    plan.text_only = bool(plan.overrides or remaps) and any(rope.num_axes > 1 for rope in own.present_ropes)
    return plan


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
