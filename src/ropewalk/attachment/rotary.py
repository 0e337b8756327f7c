"""The rotary modules of a live model: found, understood, and given other tables on the instance only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment.layers import belongs_to
from ropewalk.attachment.tables import (
    LayerTables,
    LookedUp,
    TablesForward,
    layer_types_of,
    learned_format,
    table_format,
)
from ropewalk.attention.extensions import Extension
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types

_NAME = re.compile("Rotary|RoPE|Rope")
_FORWARD = "forward"
_UNDER_HOOK = "_old_forward"  # accelerate's hooks (device_map, offloading) keep the forward that they wrap there


@dataclass(frozen=True)
class RotaryModule:
    """One rotary module of a live model: its name in the model, and the tables of each layer type as it stands.

    `looked_up`: the name of the module's tensor that holds the tables of all positions; None: its forward makes them.
    """

    name: str
    module: nn.Module
    tables: Mapping[str | None, LayerTables]
    looked_up: str | None = None

    def replaced(self, forward: TablesForward) -> Replaced:
        """Put these tables in place of the module's own."""
        if self.looked_up is None:
            return replaced_forward(self.module, forward)
        return Replaced(self.module, self.looked_up, stand_in(self.module, self.looked_up, forward))


def rotary_modules(model: nn.Module, config: Any) -> tuple[RotaryModule, ...]:
    """Return the rotary modules of the decoder that `config` describes.

    Those of other parts (vision towers, encoders of audio) are left as they are. Raises `RopeError` where there is
    none, and for one whose tables are not understood.
    """
    ropes = ropes_of_layer_types(config)
    family = FAMILIES.get(family_name(str(config.model_type)) or "")
    if family is not None and family.looked_up is not None:
        rope = _rope_of(None, ropes, family.looked_up)
        assert rope is not None, "such a family has one rope"
        return tuple(
            RotaryModule(name, holder, tables, own)
            for name, holder, own, tables in understood_tables(model, family.looked_up, rope)
        )
    found = [
        _understood(name, module, ropes)
        for name, module in model.named_modules()
        if _NAME.search(type(module).__name__) and belongs_to(module, config.model_type) and _has_tables(module)
    ]
    if not found:
        raise RopeError(
            f"attach: this {config.model_type} has no rotary module whose tables could be replaced.",
            facts={"model": type(model).__name__},
            cure="Use the model without attaching it.",
        )
    return tuple(found)


def _has_tables(module: nn.Module) -> bool:
    """Return whether a module computes tables: an attention layer with such a name has weights."""
    return not any(isinstance(child, nn.Linear) for child in module.children())


def _understood(name: str, module: nn.Module, ropes: Mapping[str | None, RopeConfig | None]) -> RotaryModule:
    try:
        _fresh(module)
    except TypeError as error:
        raise RopeError(
            f"attach: {type(module).__name__} cannot be built from its config alone, so its tables cannot be probed.",
            facts={"module": name, "error": str(error)},
            cure="Use the model without attaching it.",
        ) from error
    tables = {}
    for label in layer_types_of(module):
        rope = _rope_of(label, ropes, name)
        if rope is not None:
            form = learned_format(lambda: _fresh(module), label, rope, name)
            tables[label] = LayerTables(rope, form, rope.num_axes, rope.pairs)
    return RotaryModule(name, module, tables)


def _fresh(module: nn.Module) -> nn.Module:
    """Return a new module of the same class and config on the CPU: the live one's frequencies may have been cast."""
    make: Any = type(module)
    with torch.device("cpu"):
        made: nn.Module = make(module.config)
    return made


def _rope_of(label: str | None, ropes: Mapping[str | None, RopeConfig | None], name: str) -> RopeConfig | None:
    """Return the rope of a module's layer type; a module with one for all serves every type that rotates."""
    if label in ropes:
        return ropes[label]
    if None in ropes:
        return ropes[None]
    turning = {rope for rope in ropes.values() if rope is not None}
    if label is None and len(turning) == 1:
        return turning.pop()
    raise RopeError(
        "attach: a rotary module's layer types are not those that the config describes.",
        facts={"module": name, "its layer type": label, "the config's": sorted(map(str, ropes))},
        cure="Use the model without attaching it.",
    )


def fresh_modules(modules: tuple[RotaryModule, ...]) -> dict[str, nn.Module]:
    """Return a fresh float32 module for each whose frequencies a cast has rounded (`model.to(bfloat16)`), by name."""
    return {held.name: _fresh(held.module) for held in modules if _was_cast(held.module)}


def _was_cast(module: nn.Module) -> bool:
    buffers: list[Tensor] = [buffer for name, buffer in module.named_buffers(recurse=False) if "inv_freq" in name]
    return any(buffer.dtype not in (torch.float32, torch.float64) for buffer in buffers)


class Replaced:
    """One attribute of a module, given another value on the instance, and given back by `restore`."""

    def __init__(self, module: nn.Module, name: str, value: object) -> None:
        self.module, self.name, self.value = module, name, value
        self.had = name in vars(module)
        self.before = vars(module).get(name)
        vars(module)[name] = value  # a buffer or parameter of that name stays, and is not seen

    def restore(self) -> None:
        """Put back the instance's own value or the class's; a forward that was wrapped since then passes calls on."""
        held = vars(self.module)
        if (
            held.get(self.name) is not self.value
        ):  # a hook of accelerate was added or removed, or it was wrapped by hand
            if isinstance(self.value, TablesForward):
                self.value.own = self.before if self.had else type(self.module).forward.__get__(self.module)
        elif self.had:
            held[self.name] = self.before
        else:
            del held[self.name]


def replaced_forward(module: nn.Module, forward: object) -> Replaced:
    """Give this instance another forward, under a hook of accelerate if one wraps it."""
    return Replaced(module, _UNDER_HOOK if _UNDER_HOOK in vars(module) else _FORWARD, forward)


def understood_tables(
    model: nn.Module, path: str, rope: RopeConfig
) -> list[tuple[str, nn.Module, str, dict[str | None, LayerTables]]]:
    """Return each table at this path in the model: name of the holder, holder, name of the tensor, form.

    Raises `RopeError` for a table whose rows are not the sines and cosines of `rope`.
    """
    found = []
    for name, module in model.named_modules():
        holder, own = _held(module, path)
        if holder is not None:
            where = f"{name}.{path}".lstrip(".")
            form = table_format(_tensors(holder, own)[own], rope, where)
            tables: dict[str | None, LayerTables] = {None: LayerTables(rope, form, rope.num_axes, rope.pairs)}
            found.append((where, holder, own, tables))
    return found


def _held(module: nn.Module, path: str) -> tuple[nn.Module | None, str]:
    """Return the module that holds the tensor at a path from this one, or None, and the tensor's name."""
    *inner, name = path.split(".")
    holder: nn.Module | None = module
    for part in inner:
        holder = None if holder is None else holder._modules.get(part)
    there = holder is not None and isinstance(_tensors(holder, name).get(name), Tensor)
    return (holder if there else None), name


def stand_in(holder: nn.Module, name: str, forward: TablesForward) -> LookedUp:
    """Return the stand-in for a module's tensor of this name."""
    return LookedUp(forward, _tensors(holder, name), name)


def _tensors(module: nn.Module, name: str) -> dict[str, Any]:
    return module._buffers if name in module._buffers else module._parameters


@dataclass
class LayerPlan:
    """The tables and extensions for each module.

    `tables`: of each rotary module, by layer type. `overrides`: of single layers. `extensions`: by layer. `text_only`:
    positions of several axes must be those of plain text, for they are told layer by layer, or counted in attention.
    """

    tables: list[dict[str | None, LayerTables]] = field(default_factory=list)
    overrides: dict[int, LayerTables] = field(default_factory=dict)
    extensions: dict[int, Extension] = field(default_factory=dict)
    text_only: bool = False


def planned(
    modules: Sequence[RotaryModule], labels: Sequence[str | None], own: Positions, positions: Positions
) -> LayerPlan:
    """Return the plan for these positions; raise `RopeError` if the model cannot be put under them."""
    _check(own, positions)
    plan = LayerPlan(extensions={layer: held for layer, held in enumerate(positions.extensions) if held is not None})

    def wanted(layer: int) -> RopeConfig | None:
        extension = positions.extensions[layer]
        return None if extension is not None and extension.remaps else positions.ropes[layer]

    for held in modules:
        of_module = {}
        for label, tables in held.tables.items():
            layers = _layers_of(label, labels, own, len(held.tables) == 1)
            ropes = [wanted(layer) for layer in layers]
            common = max(dict.fromkeys(ropes), key=ropes.count) if ropes else tables.rope
            of_module[label] = tables.with_rope(common)
            for layer, rope in zip(layers, ropes, strict=True):
                if rope != common:
                    plan.overrides[layer] = tables.with_rope(rope)
        plan.tables.append(of_module)
    remaps = any(held.remaps for held in plan.extensions.values())
    plan.text_only = bool(plan.overrides or remaps) and any(rope.num_axes > 1 for rope in own.present_ropes)
    return plan


def _layers_of(label: str | None, labels: Sequence[str | None], own: Positions, alone: bool) -> list[int]:
    """Return the layers that read a module's tables of a layer type."""
    return [
        layer
        for layer, rope in enumerate(own.ropes)
        if rope is not None and (label is None or alone or labels[layer] == label)
    ]


def _check(own: Positions, positions: Positions) -> None:
    if positions.num_layers != own.num_layers:
        raise RopeError(
            "attach: positions have one entry for each layer.",
            facts={"layers": own.num_layers, "entries": positions.num_layers},
            cure="Start from the handle's own: method.positions(handle.own, reach).",
        )
    for layer, (before, after, extension, window) in enumerate(
        zip(own.ropes, positions.ropes, positions.extensions, own.sliding_windows, strict=True)
    ):
        if before is None and (after is not None or extension is not None):
            raise RopeError(
                "attach: a layer without rotation gets neither a rope nor an extension.",
                facts={"layer": layer, "rope": after, "extension": extension},
                cure="Leave None there.",
            )
        if after is not None and before is not None and _shape(after) != _shape(before):
            raise RopeError(
                "attach: a live model's heads turn the same pairs under every rope.",
                facts={"layer": layer, "its own rope": before, "rope": after},
                cure="Change theta or the scaling alone.",
            )
        if extension is not None and extension.remaps and (after is None or window is not None):
            raise RopeError(
                "attach: an extension remaps the positions of a layer with a rope that sees all earlier tokens.",
                facts={"layer": layer, "rope": after, "sliding_window": window},
                cure="Leave None there.",
            )


def _shape(rope: RopeConfig) -> tuple[object, ...]:
    return rope.head_dim, rope.interleaved, rope.rotary_dim, rope.axes, rope.axes_restart
