"""What each module of a live model is given under some positions: worked out before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ropewalk.attachment.layers import belongs_to
from ropewalk.attachment.rotary import RotaryModule
from ropewalk.attachment.tables import LayerTables
from ropewalk.attention.extensions import Extension, ReRoPE
from ropewalk.errors import RopeError
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig

_NEUTRAL = ReRoPE(window=1 << 30)  # cuts no distance: attention under it is the model's own


@dataclass
class LayerPlan:
    """What is put where.

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
    """The plan for these positions; raises `RopeError` where the model cannot be put under them."""
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


def neutral(own: Positions, positions: Positions) -> Positions:
    """The model's own ropes, and an extension that changes nothing where `positions` have one that remaps."""
    extensions = tuple(_NEUTRAL if held is not None and held.remaps else None for held in positions.extensions)
    return replace(own, extensions=extensions)


def attention_layers(model: nn.Module, config: Any, layers: Sequence[int]) -> Mapping[int, nn.Module]:
    """The attention module of each of these layers; raises `RopeError` where there is not exactly one."""
    found: dict[int, list[nn.Module]] = {layer: [] for layer in layers}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        attends = "Attention" in type(module).__name__ and belongs_to(module, config.model_type)
        if attends and isinstance(layer, int) and layer in found:
            found[layer].append(module)
    wrong = [layer for layer, there in found.items() if len(there) != 1]
    if wrong:
        raise RopeError(
            f"attach: the attention of a layer of this {config.model_type} is not found as one module.",
            facts={"layer": wrong[0], "modules": ", ".join(type(module).__name__ for module in found[wrong[0]])},
            cure="Choose a method of frequencies that gives all layers one rope.",
        )
    return {layer: there[0] for layer, there in found.items()}


def _layers_of(label: str | None, labels: Sequence[str | None], own: Positions, alone: bool) -> list[int]:
    """The layers that read a module's tables of a layer type."""
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
