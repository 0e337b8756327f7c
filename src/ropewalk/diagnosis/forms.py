"""How each planned method is set: the keys of config.json, or the Python call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.diagnosis.plan import Plan
from ropewalk.diagnosis.record import MethodForm
from ropewalk.diagnosis.wording import attach_call, python_call
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, main_rope, rope_parameters
from ropewalk.rope.config import RopeConfig


def form_of(method: str, plan: Plan, *, engines: Sequence[str] = (), model: str | None = None) -> MethodForm:
    """Return how a method is set. `engines`: that run it. `model`: its path or name; None: an object."""
    config = config_of(method, plan)
    call = None
    if config is None and not METHODS[method].crops:
        design = plan.design
        call = attach_call(method, design.target, design.trained_length)
        call = call if model is None else python_call(model, method, design.target)
    return MethodForm(config=config, call=call, same_as=plan.same_as.get(method), engines=tuple(engines))


def config_of(method: str, plan: Plan) -> dict[str, Any] | None:
    """Return the keys of config.json that make a checkpoint use a method; None if no config expresses it.

    `max_position_embeddings` is the target, with these exceptions: the trained length if the rule starts from it
    (dynamic), and for plain; the config's own length if the method keeps the scaling.
    """
    rope, record, block = main_rope(plan.positions[method].ropes), METHODS[method], block_under(method, plan)
    if rope is None or block is None:
        return None
    length = plan.design.target
    unchanged = record.scaling is None and (record.keeps_own or rope.scaling is not None)
    if unchanged and rope.max_position_embeddings is not None:
        length = rope.max_position_embeddings
    elif record.scaling is None or (rope.scaling is not None and rope.scaling.starts_at_max_length):
        length = plan.design.trained_length
    return plan.config_form.whole({"rope_parameters": block, "max_position_embeddings": length})


def block_under(method: str, plan: Plan) -> dict[str, Any] | None:
    """Return the `rope_parameters` of a planned method, with a block for each layer type if the config has them.

    None for methods in attention and crop, without a rope (drope), and if layers that share a block differ.
    """
    positions = plan.positions[method]
    if any(positions.extensions) or METHODS[method].crops:
        return None
    return rope_parameters(plan.config_form, plan.own.ropes, positions.ropes, _block_of)


def _block_of(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the block of a rope; None if there is none, as for a rule on top of a scaling used in training."""
    try:
        return rope.to_hf()
    except RopeError:
        return None
