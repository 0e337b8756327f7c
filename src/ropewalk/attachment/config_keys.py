"""Which keys of config.json give these ropes back? For `attach`, the doctor, serve-config and `extend apply`.

`checkpoints.gguf_copy` answers the same for the keys of a .gguf file. Both read the keys that they found, and compare
the numbers at the same lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import RopeError
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
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.rope_parameters import has_blocks
from ropewalk.rope.values import TRAINED_KEY

_KEPT = ("partial_rotary_factor",)
_REFUSED = {  # rules at which a class of transformers 5.23 fails; PhiMoE needs longrope's mscales
    **dict.fromkeys(("phi3", "phi4_multimodal"), ("linear", "dynamic", "yarn", "llama3", "proportional")),
    "recurrent_gemma": ("yarn", "llama3"),
    "dots3_note_text": ("longrope",),
}


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

    `as-is`, and `plain` of an unscaled model, keep the model's own numbers.
    """
    record = method_named(method)
    if not record.extends and (record.keeps_own or all(rope.as_trained() == rope for rope in own.present_ropes)):
        pairs = zip(own.labels, own.ropes, strict=True)
        blocks = {str(label): block_of(rope) or {"rope_type": "default"} for label, rope in pairs if rope}
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
        return rope_fields(fields, own, changed, method=record, target=reach.target, length=length, read_back=read_back)
    except RopeError as error:
        if record.extends and not reach.extends:
            raise
        return error.reason


def block_of(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the block of a rope; None if transformers has no rule for its frequencies."""
    try:
        return rope.to_hf()
    except RopeError:
        return None


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
    read_back: bool = True,
) -> dict[str, Any] | str:
    """Return the config's keys for these positions, or the reason why there are none, as a clause.

    **Arguments:**
    - `fields`: of the decoder's config. `own`: the current positions of `fields`.
    - `method`, `target`: the method that made the positions, and its length in tokens. `length`: stated instead.
    - `read_back`: whether the keys, read as this family's, must give the same frequencies at lengths below, at and
      above the trained length; False for a .gguf file.
    """
    if method is not None and method.config is None:
        return method.not_in_config
    if any(positions.extensions):
        return "no config.json describes a change of attention"
    no_effect = why_no_effect(own, positions, target) if method is not None and method.extends and target else None
    if no_effect is not None:
        return no_effect
    wanted: dict[str | None, RopeConfig | None] = {}
    for name, before_it, after in zip(own.labels, own.ropes, positions.ropes, strict=True):
        if before_it is not None and wanted.setdefault(name, after) != after:
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
    longest = target or trained or 2048
    lengths = compared_lengths(trained or longest, longest)
    maxima = [one for one in (length or target, fields.get("max_position_embeddings"), trained) if one]
    # named rules first, then divisors: Phi-3's class takes no other rule, and requires the fraction, also if it is 1.0
    named = {label: block_of(rope) for label, rope in ropes.items()}
    named = {label: block if block and block["rope_type"] != "longrope" else None for label, block in named.items()}
    divided = {
        label: named[label] if rope.scaling is None else longrope_block(rope, trained or 0, longest)
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
            if not read_back or _describes({**fields, **found}, ropes, lengths):
                return found
    return "loading such a config of this family gives different ropes"


def _describes(fields: Mapping[str, Any], ropes: Mapping[str | None, RopeConfig], lengths: Sequence[int]) -> bool:
    """Return whether the config's class takes it, and it describes these ropes, by their numbers."""
    kind, stated = str(fields.get("model_type")), fields["rope_parameters"]
    for block in stated.values() if has_blocks(stated) else [stated]:
        if block["rope_type"] in _REFUSED.get(kind, ()):
            return False
        if kind == "phimoe" and block["rope_type"] == "longrope" and "short_mscale" not in block:
            return False
    try:
        read = ModelRopes.from_hf(fields)
    except RopeError:
        return False
    pairs = [(one, read.of_label(label)) for label, one in ropes.items()]
    return all(
        len(found) == 1 and one.interleaved == found[0].interleaved and same_rope(one, found[0], lengths)
        for one, found in pairs
    )
