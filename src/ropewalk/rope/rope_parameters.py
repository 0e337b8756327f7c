"""The `rope_parameters` block of a Hugging Face config: its scaling rule, and the block of each layer type."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ropewalk.errors import NoRotation, RopeError
from ropewalk.families import FAMILIES, Family
from ropewalk.families.values import TRAINED_KEY, number, refuse_null
from ropewalk.rope.scaling import RULES, Scaling

COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
_PLAIN_RULE = {"rope_type": "default"}
_PLAIN = ("default", "mrope", "axial")  # no scaling; the last two describe how axes share the pairs

_FOREIGN = {
    "attn_factor": "vLLM and llama.cpp multiply YaRN's own factor by it, and `attention_factor` replaces that factor: "
    "write `attention_factor`: attn_factor * (0.1 ln(factor) + 1).",
    "extrapolation_factor": "vLLM multiplies YaRN's ramp by it; no Hugging Face key does, and 1 changes nothing.",
}
"""Keys of other programs whose nearest Hugging Face key has a different meaning."""


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known word that a name misspells: at most two letters differ, and neither the first nor a digit.

    >>> [misspelt(name, ["yarn", "linear", "llama3"]) for name in ("yran", "lenear", "linearity", "llama4")]
    ['yarn', 'linear', None, None]
    """
    own = Counter(name)
    for word in difflib.get_close_matches(name, sorted(set(known)), cutoff=0.7):
        apart = (own - Counter(word)) + (Counter(word) - own)
        if word[0] == name[0] and apart.total() <= 2 and not any(letter.isdigit() for letter in apart):
            return word
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the word that a name misspells, or with all of them."""
    close = misspelt(name, known)
    return f"Did you mean `{close}`?" if close else f"Known: {', '.join(sorted(set(known)))}."


class Described(NamedTuple):
    """The described part of a config: its fields, its family, and the family's name in the table."""

    fields: dict[str, Any]
    family: Family
    name: str


def rule_of(block: Mapping[str, Any], meanings: Mapping[str, tuple[str, str | None]]) -> type[Scaling] | None:
    """Return the rule of a block's `rope_type`, else of its `type`; None is plain RoPE.

    `meanings` are a family's special names (see `Family.meanings`). Raises `RopeError` for an unknown name.
    """
    stated = block.get("rope_type", block.get("type", "default"))
    if isinstance(stated, str):
        if stated in _PLAIN:
            return None
        meant, key = meanings.get(stated, ("", ""))
        special = key is None or block.get(key)
        for rule in RULES.values():
            if rule.rope_type == meant if special else stated in rule.hf_names:
                return rule
    known = (rule.hf_names[0] for rule in RULES.values() if rule.hf_names)
    cure = nearest(str(stated), ("default", *known))
    raise RopeError("from_hf: unknown `rope_type`.", facts={"rope_type": stated}, cure=cure)


def check_keys(block: Mapping[str, Any], rule: type[Scaling] | None, further: Iterable[str]) -> None:
    """Raise `RopeError` for a key that the rule does not have and that is not in `further`, and for a missing key."""
    name, required = ("default", ()) if rule is None else (rule.rope_type, rule.required_keys)
    known = {*COMMON, *required, *(() if rule is None else rule.optional_keys), *further}
    for key in block:
        if key not in known and block[key] is not None:
            of_rules = (k for other in RULES.values() for k in (*other.required_keys, *other.optional_keys))
            raise RopeError(
                f"from_hf: unknown key `{key}` in the rope block of type {name!r}.",
                facts={key: block[key]},
                cure=f"{_FOREIGN.get(key) or nearest(key, {*known, *of_rules} - {key})} Remove the key if it does not "
                "belong to this rule.",
            )
    for key in required:
        if key not in block:
            raise RopeError(
                f"from_hf: rope type {name!r} needs the key `{key}`.",
                facts={"keys present": sorted(block)},
                cure=f"Add `{key}` to the rope block.",
            )


# --- the block of each layer type

Blocks = dict[str | None, dict[str, Any] | None]
"""Flat blocks by layer type, the only key None if one describes all layers; None: its layers do not rotate."""
_OUTER = ("rope_theta", "partial_rotary_factor", "rope_type", "type", "truncate")  # keys that are no layer type
_ATTENDING = ("attention", "full", "sliding", "chunked", "local", "global", "hybrid")
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def blocks_of_layers(config: Described, layer_type: object = None) -> Blocks:
    """Return the flat block of each layer type; raise `RopeError` for malformed blocks, and if nothing rotates.

    `layer_type`: the one that is asked for, of which only the type is checked.
    """
    fields, family, name = config
    types = fields.get("layer_types")
    listed = types is None or (isinstance(types, list | tuple) and all(isinstance(one, str) for one in types))
    if not (listed and isinstance(layer_type, str | None)):
        raise RopeError(
            "from_hf: `layer_type` must be a string, and `layer_types` a list of strings.",
            facts={"layer_type": layer_type, "layer_types": types},
            cure='For example layer_type="sliding_attention".',
        )
    if family.switch is not None:
        key, on, default = family.switch
        if fields.get(key, default) != on:
            raise NoRotation(
                f"from_hf: this {name} has no rotation: its config does not enable it.",
                facts={key: fields.get(key, default)},
                cure=f"Use rope=None for this config. A config with rotation contains {key}: {on!r}.",
            )
    stated, old = _stated(fields)
    if has_blocks(stated):
        if name in FAMILIES and not (family.blocks or family.scaled):
            raise RopeError(
                f"from_hf: transformers' {name} uses one flat block, but this config nests blocks by layer type.",
                facts={"rope block": stated},
                cure="Write one block for all layers.",
            )
        return _nested(fields, stated or {}, family)
    block = dict(family.block) if stated is None else stated
    rule = None if family.scaled else rule_of(block, family.meanings)
    if rule is not None and TRAINED_KEY in rule.required_keys:  # transformers prefers Phi-3's place, next to the block
        refuse_null(fields, TRAINED_KEY)
        outer = fields.get(TRAINED_KEY, family.defaults.get(TRAINED_KEY))
        block = block if outer is None else {**block, TRAINED_KEY: outer}
    if stated is not None and (family.blocks or family.scaled):
        flat = old and bool(family.scaled)  # the spelling for some of the layer types
        unnamed = flat and "rope_type" not in stated and not family.block_of  # DeepSeek-V4's class reads `type`, too
        if unnamed or not flat:
            one = "one flat block without `rope_type`" if unnamed else "one flat block"
            raise RopeError(
                f"from_hf: {name} needs a block for each layer type, but this config has {one}.",
                facts={"block": stated, "layer types": sorted(family.blocks or fields.get("layer_types") or ())},
                cure='Nest it: "rope_parameters": {"' + next(iter(family.blocks or family.scaled)) + '": {...}, ...}.',
            )
        stated = block = _truncated_by(stated, {})
    of_layers = _by_lists(config, block) if family.lists else {}
    if of_layers:
        return of_layers
    if family.blocks:
        return _of_family(fields, stated, family)
    rotating = _rotating_types(fields, family) if family.nope else {}
    if False in rotating.values():
        return {label: block if rotates else None for label, rotates in rotating.items()}
    return {None: block}


def block_of_layer(config: Described, layer_type: str | None) -> dict[str, Any]:
    """Return the flat block of the layers of `layer_type`, or of all layers.

    Raises `RopeError` if layer types differ and none is given, if it is unknown, and if it has no rotation.
    """
    fields, family, name = config
    blocks = blocks_of_layers(config, layer_type)
    flat = blocks.get(None)
    if flat is not None and layer_type is None:
        return flat
    named = {str(label): block for label, block in sorted(blocks.items(), key=str)} if flat is None else {}
    rotating = [block for block in named.values() if block is not None]
    if flat is None and not rotating:
        raise NoRotation(
            f"from_hf: no layer of this {name} rotates.",
            facts={"layer types": list(named), "sliding_window": fields.get("sliding_window")},
            cure="Use rope=None for all layers.",
        )
    if layer_type is None:
        if len(rotating) == len(named) and len({json.dumps(_PLAIN_RULE | one, default=str) for one in rotating}) == 1:
            return rotating[0]
        raise RopeError(
            f"from_hf: {name} rotates its layer types differently, but `layer_type` is None.",
            facts=named,
            cure="Pass layer_type=" + " or ".join(map(repr, named)) + ".",
        )
    layer_type, types = family.block_of.get(layer_type, layer_type), fields.get("layer_types") or ()
    chosen, known, listed = named.get(layer_type), {*named}, {*named, *types}
    if flat is not None:
        known = listed = {*types, *_ATTENTION, *family.layer_types}
        chosen = flat if _rotates(fields, family, layer_type) else None
    if chosen is None and layer_type in listed:
        raise RopeError(
            f"from_hf: layers of this type have no rotation in {name} (NoPE).",
            facts={"layer_type": layer_type},
            cure="Use rope=None for these layers.",
        )
    if chosen is None or layer_type not in known:
        raise RopeError(
            "from_hf: the model has no such `layer_type`.",
            facts={"layer_type": layer_type, "layer types": sorted(known)},
            cure=nearest(layer_type, known),
        )
    return chosen


def has_blocks(stated: object) -> bool:
    """Return whether a config's block contains one for each layer type."""
    return isinstance(stated, Mapping) and any(isinstance(value, Mapping) for value in stated.values())


def _by_lists(config: Described, block: dict[str, Any]) -> Blocks:
    """Return the block of each layer type if the config lists a theta, or a fraction, for each layer; else {}."""
    fields, family, name = config
    given = {
        own: [one if one is None else number(one, own) for one in fields[key]]
        for key, own in family.lists.items()
        if isinstance(fields.get(key), list | tuple)
    }
    types = fields.get("layer_types") or ()
    if not given:  # only some types are scaled
        return {label: dict(block) if label in family.scaled else {} for label in types} if family.scaled else {}
    if not types:
        if all(len(set(value)) == 1 and all(value) for value in given.values()):
            return {label: {**block, **{key: value[0] for key, value in given.items()}} for label in _ATTENTION[:2]}
        raise RopeError(
            f"from_hf: this {name} lists settings for each layer, but no `layer_types`.",
            facts=given,
            cure="Add `layer_types` to the config.",
        )
    blocks: Blocks = {}
    for label in dict.fromkeys(types):
        own = {key: {v for of, v in zip(types, value, strict=False) if of == label} for key, value in given.items()}
        if any(len(values) != 1 for values in own.values()):
            raise RopeError(
                f"from_hf: layers of one type differ in this {name}, but a RopeConfig describes a whole type.",
                facts={"layer_type": label, **own},
                cure="Write a RopeConfig(...) for each layer yourself.",
            )
        values = {key: only.pop() for key, only in own.items()}
        # a flat block precedes the lists in the layers that it applies to
        both = {**block, **values} if not family.scaled else {**values, **(block if label in family.scaled else {})}
        blocks[label] = both if values.get("rope_theta", True) else None
    return blocks


def _rotating_types(fields: Mapping[str, Any], family: Family) -> dict[str, bool]:
    """Return for each layer type whether its layers rotate, in a family with one block."""
    types, flags = fields.get("layer_types"), fields.get(family.flags) if family.flags else None
    if isinstance(flags, list | tuple) and flags:  # one for each layer; they imply the layer types if there are none
        rotating, still = ([t for t in family.layer_types if (t in family.nope) == nope] for nope in (False, True))
        of_layer = types or [label for flag in flags for label in (rotating if flag else still)]
        return {t: any(flag for of, flag in zip(of_layer, flags, strict=False) if of == t) for t in of_layer}
    return {label: _rotates(fields, family, label) for label in types or family.layer_types}


def _rotates(fields: Mapping[str, Any], family: Family, label: str) -> bool:
    """Return whether the class rotates layers of this type under this config."""
    rule = family.without_window if fields.get("sliding_window", family.module.sliding_window) is None else None
    return attends(label) and rule != "still" and (label not in family.nope or rule == "rotate")


def attends(layer_type: str | None) -> bool:
    """Return whether layers of this type have attention with a rope; None stands for all layers."""
    return layer_type is None or ("linear" not in layer_type and any(word in layer_type for word in _ATTENDING))


def _stated(fields: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """Return the config's block, and whether it has the old spelling (`rope_scaling`)."""
    new, old = fields.get("rope_parameters"), fields.get("rope_scaling")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, Mapping):
            raise RopeError(
                f"from_hf: `{key}` must be an object or null.",
                facts={key: value},
                cure='For example {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}.',
            )
    if new and old and dict(old) not in (dict(new), new.get("full_attention")):  # OLMo 3's classes merge them
        raise RopeError(
            "from_hf: `rope_parameters` and `rope_scaling` are both present and differ.",
            facts={"rope_parameters": dict(new), "rope_scaling": dict(old)},
            cure="Keep one of them; transformers 5 writes rope_parameters.",
        )
    if old and not new:
        return dict(old), True
    return (None if new is None else dict(new)), False  # an empty block replaces the class's default


def _nested(fields: Mapping[str, Any], stated: Mapping[str, Any], family: Family) -> Blocks:
    """Return the nested block of each layer type, with the family's defaults.

    transformers uses `truncate` only if it is next to the blocks. A theta or a fraction there has no effect, so a block
    without its own raises.
    """
    blocks: Blocks = {label: None if block is None else dict(block) for label, block in family.blocks.items()}
    outer = {key: value for key, value in stated.items() if not isinstance(value, Mapping)}
    inner = {key: value for key, value in stated.items() if isinstance(value, Mapping)}
    for label, given in inner.items():
        refuse_null(given, "rope_theta")
        if family.mla and given.get("rope_theta") is None:
            raise RopeError(
                "from_hf: a block of a layer type has no theta, and transformers uses that of other layers.",
                facts={label: dict(given)},
                cure="Add `rope_theta` to the block.",
            )
        key = family.theta_keys.get(label, "") if family.theta_keys else "rope_theta"
        default = (family.blocks.get(label) or {}) if family.theta_keys else {}
        thetas = (given.get("rope_theta"), fields.get(key), default.get("rope_theta"), family.theta)
        own = {**given, "rope_theta": next(theta for theta in thetas if theta is not None)}
        if family.slice_of:
            own.setdefault("partial_rotary_factor", 1.0)
        blocks[label] = _truncated_by(own, outer)
    for key, value in outer.items():
        if value is None and key not in _OUTER:
            blocks[key] = None
        unused = value is None or key == "truncate" or (key in ("rope_type", "type") and value == "default")
        if not unused and not (key in _OUTER and all(key in block for block in inner.values())):
            raise RopeError(
                f"from_hf: `{key}` is next to the blocks of the layer types, not in one of them.",
                facts={key: value, "layer types": sorted(inner)},
                cure="Move it into the block that it belongs to.",
            )
    return blocks


def _truncated_by(block: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block of a layer type with the `truncate` that transformers uses, next to the blocks."""
    rule = rule_of(block, {})
    if rule is None or "truncate" not in rule.optional_keys:
        return dict(block)
    kept = {key: value for key, value in block.items() if key != "truncate"}
    return {**kept, "truncate": outer["truncate"]} if "truncate" in outer else kept


def _of_family(fields: Mapping[str, Any], stated: Mapping[str, Any] | None, family: Family) -> Blocks:
    """Return the blocks of a family with several, from the older flat spelling or from its defaults."""
    blocks: Blocks = dict.fromkeys(family.blocks)
    for label, default in family.blocks.items():
        if default is not None:
            key = family.theta_keys.get(label, "")
            refuse_null(fields, key)
            own = {"rope_theta": fields[key]} if key in fields else {}
            blocks[label] = {**default, **own, **((stated or {}) if label in family.scaled else {})}
    return blocks
