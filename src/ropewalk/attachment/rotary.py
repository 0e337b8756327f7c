"""The rotary modules of a live model: found, understood, and given another forward on the instance alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment.formats import layer_types_of, learned_format
from ropewalk.attachment.layers import belongs_to
from ropewalk.attachment.looked_up import stand_in, understood_tables
from ropewalk.attachment.tables import LayerTables, TablesForward
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.ropes import ropes_of_layer_types

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
        """The module with these tables in place of its own."""
        if self.looked_up is None:
            return replaced_forward(self.module, forward)
        return Replaced(self.module, self.looked_up, stand_in(self.module, self.looked_up, forward))


def rotary_modules(model: nn.Module, config: Any) -> tuple[RotaryModule, ...]:
    """The rotary modules of the decoder that `config` describes.

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
    """Whether it hands out tables: an attention layer that is called after its rotation has weights of its own."""
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
    """A new module of the same class and config on the CPU: the live one's frequencies may have been cast."""
    make: Any = type(module)
    with torch.device("cpu"):
        made: nn.Module = make(module.config)
    return made


def _rope_of(label: str | None, ropes: Mapping[str | None, RopeConfig | None], name: str) -> RopeConfig | None:
    """The rope of a module's layer type; a module with one for all serves every type that rotates."""
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
    """For each module whose frequencies a cast has rounded (`model.to(bfloat16)`), a fresh one in float32, by name."""
    return {held.name: _fresh(held.module) for held in modules if _was_cast(held.module)}


def _was_cast(module: nn.Module) -> bool:
    buffers: list[Tensor] = [buffer for name, buffer in module.named_buffers(recurse=False) if "inv_freq" in name]
    return any(buffer.dtype not in (torch.float32, torch.float64) for buffer in buffers)


class Replaced:
    """One attribute of a module, given another value on the instance, and given back by `restore`."""

    def __init__(self, module: nn.Module, name: str, value: object) -> None:
        self.module, self.name = module, name
        self.had = name in vars(module)
        self.before = vars(module).get(name)
        vars(module)[name] = value  # a buffer or parameter of that name stays, and is not seen

    def restore(self) -> None:
        """As it was before: the instance's own value, or the class's."""
        if self.had:
            vars(self.module)[self.name] = self.before
        else:
            del vars(self.module)[self.name]


def replaced_forward(module: nn.Module, forward: object) -> Replaced:
    """Another forward of this instance; where a hook of accelerate wraps its forward, the one under the hook."""
    return Replaced(module, _UNDER_HOOK if _UNDER_HOOK in vars(module) else _FORWARD, forward)
