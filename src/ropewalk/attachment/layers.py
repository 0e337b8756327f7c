"""The ropes and windows of a live transformers model's layers: from its config, and back into config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.families import family_named
from ropewalk.methods import (
    Method,
    Reach,
    longrope_block,
    main_rope,
    method_named,
    trained_length_of,
    why_no_effect,
    with_mscales,
)
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import compared_lengths, same_rope
from ropewalk.rope.model_ropes import TYPE_KEYS, ModelRopes
from ropewalk.rope.rope_parameters import has_blocks, is_windowed
from ropewalk.rope.values import MOST_SIZE, TRAINED_KEY, as_whole


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


_KEPT = ("partial_rotary_factor",)


def fields_under(
    fields: Mapping[str, Any],
    own: ModelRopes,
    method: str,
    reach: Reach,
    length: int | None = None,
    *,
    read_back: bool = True,
) -> dict[str, Any] | str:
    """Return the config's keys under a method, or the reason why there are none; arguments as for `rope_fields`.

    `read_back`: whether the keys must give the ropes in transformers; False for a .gguf file.

    `as-is`, and `plain` of an unscaled model, keep the model's own numbers.
    """
    record = method_named(method)
    if not record.extends and (record.keeps_own or all(rope.as_trained() == rope for rope in own.present_ropes)):
        blocks = {str(label): _block(rope) for label, rope in zip(own.labels, own.ropes, strict=True) if rope}
        main, stated = main_rope(own.ropes), fields.get("rope_parameters") or {}
        if main is None:
            return "the model has no rope"
        nested = has_blocks(stated)
        unused = {key: dict(block) for key, block in stated.items() if nested and key not in map(str, own.labels)}
        return {
            "rope_parameters": unused | blocks if nested else next(iter(blocks.values())),
            "max_position_embeddings": main.max_position_embeddings or reach.trained,
        }
    try:
        changed = record.positions(own, reach)
        accepts = _accepted if read_back else None
        return rope_fields(fields, own, changed, method=record, target=reach.target, length=length, accepts=accepts)
    except RopeError as error:
        if record.extends and not reach.extends:
            raise
        return error.reason


def _accepted(fields: Mapping[str, Any]) -> bool:
    """Return whether the class takes such a block: `validate_rope` of transformers 5.23's Phi-3 and Phi-MoE."""
    kind, block = fields.get("model_type"), fields["rope_parameters"]
    if kind in ("phi3", "phi4_multimodal"):
        return block["rope_type"] in ("default", "longrope")
    return kind != "phimoe" or block["rope_type"] != "longrope" or "short_mscale" in block


def _block(rope: RopeConfig) -> dict[str, Any]:
    """Return the block of a rope, or of no rule if transformers has none for its frequencies."""
    with suppress(RopeError):
        return rope.to_hf()
    return {"rope_type": "default"}


def attention_keys(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a block that a class reads in attention, whatever the rule: Ministral 3 scales its queries."""
    keys = ("llama_4_scaling_beta", TRAINED_KEY)
    return {key: block[key] for key in keys if keys[0] in block and key in block}


def rope_fields(
    fields: Mapping[str, Any],
    own: ModelRopes,
    positions: ModelRopes,
    *,
    method: Method | None,
    target: int | None,
    length: int | None = None,
    accepts: Callable[[Mapping[str, Any]], bool] | None = lambda fields: True,
) -> dict[str, Any] | str:
    """Return the config's keys for these positions, or the reason why there are none, as a clause.

    **Arguments:**
    - `fields`: of the decoder's config. `own`: the current positions of `fields`.
    - `method`, `target`: the method that made the positions, and its length in tokens. `length`: stated instead.
    - `accepts`: whether the config's class takes such fields. None: they are not read back.

    The keys, read back as this family's, give the same frequencies at lengths below, at and above the trained length.
    """
    if method is not None and method.config is None:
        return method.not_in_config
    if any(positions.extensions):
        return "no config.json describes a change of attention"
    no_effect = why_no_effect(own, positions, target) if method is not None and method.extends and target else None
    if no_effect is not None:
        return no_effect
    wanted = _ropes_of_names(own.labels, own.ropes, positions.ropes)
    if wanted is None:
        return "layers of one type have different ropes"
    stated = fields.get("rope_parameters")
    if not isinstance(stated, Mapping):
        return "its class has no block of rope parameters"
    nested = has_blocks(stated)
    if not nested and len(set(wanted.values())) > 1:
        return "its config has one rope for all layers, but layers with a window keep theirs"
    ropes = {label: rope for label, rope in wanted.items() if rope is not None}
    if len(ropes) < len(wanted):
        return "a config of this family cannot describe a model without a rope"
    trained = trained_length_of(own)
    longest = target or 2 * (trained or 2048)
    lengths = compared_lengths(trained or 2048, longest)
    maxima = [one for one in (length or target, fields.get("max_position_embeddings"), trained) if one]
    # named rules first, then divisors: Phi-3's class takes no other rule, and requires the fraction, also if it is 1.0
    named = {label: _named(rope) for label, rope in ropes.items()}
    divided = {
        label: named[label] if rope.scaling is None else longrope_block(rope, trained or 0, target or trained or 0)
        for label, rope in ropes.items()
    }
    before = {label: (stated.get(label) or {}) if nested else stated for label in ropes}
    kept = {label: {key: block[key] for key in _KEPT if key in block} for label, block in before.items()}
    for blocks in (named, divided):
        for stated_length in dict.fromkeys(maxima) if None not in blocks.values() else ():
            whole = {
                str(one): kept[one] | with_mscales(block or {}, stated_length) | attention_keys(before[one])
                for one, block in blocks.items()
            }
            written: dict[str, Any] = {**stated, **whole} if nested else next(iter(whole.values()))
            at_the_top = {key: written[key] for key in (TRAINED_KEY,) if key in written and key in fields}
            found = {"rope_parameters": written, "max_position_embeddings": stated_length, **at_the_top}
            changed = {**fields, **found}
            if accepts is None or (accepts(changed) and _describes(changed, wanted, lengths)):
                return found
    return "loading such a config of this family gives different ropes"


def _ropes_of_names(
    names: Sequence[str | None], own: Sequence[RopeConfig | None], ropes: Sequence[RopeConfig | None]
) -> dict[str | None, RopeConfig | None] | None:
    """Return the rope of each block, or None if layers of one block have different ropes.

    - `names`: of each layer's block. `own`: each layer's previous rope; a layer without one belongs to no block.
    """
    blocks: dict[str | None, RopeConfig | None] = {}
    for name, before, rope in zip(names, own, ropes, strict=True):
        if before is not None and blocks.setdefault(name, rope) != rope:
            return None
    return blocks


def _named(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the block of a rope; None if transformers has no name for its rule (`longrope_block` is complete)."""
    try:
        block = rope.to_hf()
    except RopeError:
        return None
    return None if block["rope_type"] == "longrope" else block


def _describes(
    fields: Mapping[str, Any], wanted: Mapping[str | None, RopeConfig | None], lengths: Sequence[int]
) -> bool:
    """Return whether a config describes these ropes, by their numbers."""
    try:
        ropes = ModelRopes.from_hf(fields).by_type
    except RopeError:
        return False
    rotating = {rope for rope in ropes.values() if rope is not None}
    only = rotating.pop() if len(rotating) == 1 else None
    pairs = [(rope, ropes.get(label, ropes.get(None)) or only) for label, rope in wanted.items()]
    return all(
        one and other and one.interleaved == other.interleaved and same_rope(one, other, lengths)
        for one, other in pairs
    )
