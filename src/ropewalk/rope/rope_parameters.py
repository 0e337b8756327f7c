"""The `rope_parameters` block of a Hugging Face config: its scaling rule, that of each layer type, and writing one."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ropewalk.errors import NoRotation, RopeError, check_kind
from ropewalk.families import FAMILIES, Family, family_named
from ropewalk.rope.scaling import RULES, Ladder, Scaling, rule_of_type
from ropewalk.rope.values import MOST_TOKENS, TRAINED_KEY, as_tuple, as_whole, number, refuse_null

COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
_PLAIN = ("default", "mrope", "axial")  # no scaling; the last two describe how axes share the pairs


def rope_types() -> tuple[str, ...]:
    """Return every known `rope_type` of a block."""
    return ("default", *(rule.hf_names[0] for rule in RULES.values() if rule.hf_names))


_FOREIGN = {
    "attn_factor": "vLLM and llama.cpp multiply YaRN's own factor by it, and `attention_factor` replaces that factor: "
    "write `attention_factor`: attn_factor * (0.1 ln(factor) + 1).",
    "extrapolation_factor": "vLLM multiplies YaRN's ramp by it; no Hugging Face key does, and 1 changes nothing.",
}
"""Keys of other programs whose nearest Hugging Face key has a different meaning."""


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known word that a name misspells: at most two letters differ, and neither the first nor a digit.

    >>> misspelt("yran", ["yarn"]), misspelt("llama4", ["llama3"]), misspelt("attn_factor", ["attention_factor"])
    ('yarn', None, None)
    """
    own = Counter(name)
    for word in difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.7):
        apart = (own - Counter(word)) + (Counter(word) - own)
        if word[0] == name[0] and apart.total() <= 2 and not any(letter.isdigit() for letter in apart):
            return word
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the word that a name misspells, or with all of them."""
    close = misspelt(name, known)
    return f"Did you mean `{close}`?" if close else f"Known: {', '.join(sorted(set(known)))}."


def rule_of(
    block: Mapping[str, Any], meanings: Mapping[str, tuple[str, str | None]] | None = None
) -> type[Scaling] | None:
    """Return the rule of a block's `rope_type`, else of its `type`; None is plain RoPE.

    `meanings` are a family's special names (see `Family.meanings`). Raises `RopeError` for an unknown name.
    """
    stated = block.get("rope_type", block.get("type", "default"))
    if not isinstance(stated, str):
        raise RopeError(
            "from_hf: `rope_type` must be a string.",
            facts={"rope_type": stated},
            cure=f"Known: {', '.join(rope_types())}.",
        )
    if stated in (meanings or {}):
        meant, key = (meanings or {})[stated]
        if key is None or block.get(key):
            return rule_of_type(meant)
    rule = rule_of_type(stated, in_hf=True)
    if rule is None and stated not in _PLAIN:
        raise RopeError(
            "from_hf: unknown `rope_type`.", facts={"rope_type": stated}, cure=nearest(stated, rope_types())
        )
    return rule


def scaling_of(
    block: Mapping[str, Any],
    rule: type[Scaling] | None,
    *,
    further_keys: Iterable[str],
    max_position_embeddings: int | None,
) -> Scaling | None:
    """Return the scaling rule of a block, or None for plain RoPE.

    `further_keys` are other allowed keys of the block. Raises `RopeError` for an unknown or a missing key, and for a
    value that the rule does not accept.
    """
    name = "default" if rule is None else rule.rope_type
    required = () if rule is None else rule.required_keys
    known = {*COMMON, *required, *(() if rule is None else rule.optional_keys), *further_keys}
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
    return None if rule is None else rule.from_block(block, max_position_embeddings)


# --- the block of each layer type

Blocks = dict[str | None, dict[str, Any] | None]
"""Flat blocks by layer type, the only key None if one describes all layers; None: its layers do not rotate."""
_OUTER = ("rope_theta", "partial_rotary_factor", "rope_type", "type", "truncate")  # keys that are no layer type
_NOT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def blocks_of_layers(fields: Mapping[str, Any], family: Family, name: str) -> Blocks:
    """Return the flat block of each layer type; raise `RopeError` for malformed blocks, and if nothing rotates."""
    types = fields.get("layer_types")
    if not (types is None or _are_names(types)):
        raise _no_name(None, types)
    if family.switch is not None:
        key, on, default = family.switch
        if fields.get(key, default) != on:
            raise NoRotation(
                f"from_hf: this {name} has no rotation: its config does not enable it.",
                facts={key: fields.get(key, default)},
                cure=f"Use rope=None for this config. A config with rotation contains {key}: {on!r}.",
            )
    stated, old = _stated(fields)
    if stated is not None and any(isinstance(value, Mapping) for value in stated.values()):
        if name in FAMILIES and not (family.blocks or family.scaled):
            raise RopeError(
                f"from_hf: transformers' {name} uses one flat block, but this config nests blocks by layer type.",
                facts={"rope block": stated},
                cure="Write one block for all layers.",
            )
        return _nested(fields, stated, family)
    block = dict(family.block) if stated is None else stated
    block = block if family.scaled else _with_length(fields, family, block)
    if stated is not None and (family.blocks or family.scaled) and not (old and family.scaled):
        raise RopeError(
            f"from_hf: {name} needs a block for each layer type, but this config has one flat block.",
            facts={"block": stated, "layer types": sorted(family.blocks or fields.get("layer_types") or ())},
            cure='Nest it: "rope_parameters": {"' + next(iter(family.blocks or family.scaled)) + '": {...}, ...}.',
        )
    if stated is not None and family.scaled and not family.thetas_on_top and "rope_type" not in stated:
        raise RopeError(
            f"from_hf: transformers' {name} needs `rope_type` in a flat block, which this one lacks.",
            facts={"block": stated},
            cure="Add `rope_type`.",
        )
    if stated is not None and family.scaled:
        stated, block = untruncated(stated), untruncated(block)
    of_layers = _by_lists(fields, family, block, name)
    if of_layers:
        return of_layers
    if family.blocks:
        return _of_family(fields, stated, family)
    rotating = _rotating_types(fields, family)
    if all(rotating.values()):
        return {None: block}
    return {label: block if rotates else None for label, rotates in rotating.items()}


def block_of_layer(fields: Mapping[str, Any], family: Family, name: str, layer_type: str | None) -> dict[str, Any]:
    """Return the flat block of the layers of `layer_type`, or of all layers.

    Raises `RopeError` if layer types differ and none is given, if it is unknown, and if it has no rotation.
    """
    if not (layer_type is None or isinstance(layer_type, str)):
        raise _no_name(layer_type, fields.get("layer_types"))
    blocks = blocks_of_layers(fields, family, name)
    flat = blocks.pop(None, None)
    layer_type = family.block_of.get(layer_type or "", layer_type)
    if flat is None:
        return _choose(fields, {str(label): block for label, block in blocks.items()}, name, layer_type)
    if layer_type is not None:
        _check_flat(fields, family, name, layer_type)
    return flat


def _with_length(fields: Mapping[str, Any], family: Family, block: dict[str, Any]) -> dict[str, Any]:
    """Return a flat block with the trained length that is next to it (Phi-3's place), which transformers prefers."""
    rule, outer = rule_of(block, family.meanings), fields.get(TRAINED_KEY, family.original_length)
    if rule is None or TRAINED_KEY not in rule.required_keys:
        return block
    refuse_null(fields, TRAINED_KEY)
    return block if outer is None else {**block, TRAINED_KEY: outer}


def _by_lists(fields: Mapping[str, Any], family: Family, block: dict[str, Any], name: str) -> Blocks:
    """Return the block of each layer type if the config lists a theta, or a fraction, for each layer; else {}."""
    lists = {
        "rope_theta": fields.get(family.thetas or ""),
        "partial_rotary_factor": fields.get(family.fractions or ""),
    }
    given = {
        key: [one if one is None else number(one, key) for one in value]
        for key, value in lists.items()
        if isinstance(value, list | tuple)
    }
    types = fields.get("layer_types")
    if not given and types and family.scaled and not family.blocks:  # only some types are scaled
        return {label: dict(block) if label in family.scaled else {} for label in types}
    if not given:
        _check_nope_from_last(types, family, name)
        return {}
    if not types:
        if all(len(set(value)) == 1 and value[0] for value in given.values()):
            return {label: {**block, **{k: v[0] for k, v in given.items()}} for label in _ATTENTION[:2]}
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
        values = {key: next(iter(values)) for key, values in own.items()}
        _check_listed_theta(fields, family, block, values, name)
        if family.scaled:  # a flat block precedes the lists, in the layers that it applies to
            own_block = {**values, **block} if label in family.scaled else values
        else:
            own_block = {**block, **values}
        blocks[label] = own_block if values.get("rope_theta", 1) else None
    return blocks


def _check_listed_theta(
    fields: Mapping[str, Any], family: Family, block: Mapping[str, Any], values: Mapping[str, Any], name: str
) -> None:
    """Raise if the class only checks whether a listed theta is 0, and the list and the config have different ones."""
    one = block.get("rope_theta", fields.get("rope_theta", family.theta))
    if family.nope_from_last and values.get("rope_theta") not in (None, 0, one):
        raise RopeError(
            f"from_hf: `{family.thetas}` and the config have different thetas; transformers' {name} ignores the list.",
            facts={str(family.thetas): values["rope_theta"], "rope_theta": one},
            cure="Make them agree, or write a RopeConfig(...) for each layer type yourself.",
        )


def _check_nope_from_last(types: Any, family: Family, name: str) -> None:
    """Raise if layer types contradict the layers that the class leaves unrotated without a list of thetas."""
    every = family.nope_from_last
    if every and types and any((t in family.nope) != (i % every == 0) for i, t in enumerate(reversed(types))):
        raise RopeError(
            f"from_hf: this class leaves every {every}-th layer from the last unrotated, unlike the layer types.",
            facts={"model": name, "layer_types": types},
            cure=f"Add `{family.thetas}` to the config: a theta for each layer, 0 for none.",
        )


def _rotating_types(fields: Mapping[str, Any], family: Family) -> dict[str, bool]:
    """Return for each layer type whether its layers rotate, in a family with one block; {} if all layers do."""
    if not family.nope:
        return {}
    types, flags = fields.get("layer_types"), fields.get(family.flags) if family.flags else None
    if isinstance(flags, list | tuple) and flags:  # one for each layer; they imply the layer types if there are none
        rotating, still = ([t for t in family.layer_types if (t in family.nope) == nope] for nope in (False, True))
        of_layer = types or [label for flag in flags for label in (rotating if flag else still)]
        return {t: any(flag for of, flag in zip(of_layer, flags, strict=False) if of == t) for t in of_layer}
    return {label: _rotates(fields, family, label) for label in types or family.layer_types}


def _rotates(fields: Mapping[str, Any], family: Family, label: str) -> bool:
    """Return whether the class rotates layers of this type under this config."""
    windowed = fields.get("sliding_window", family.sliding_window) is not None
    if family.rope_needs_window and not windowed:
        return False
    return label not in (*family.nope, *_NOT_ATTENTION) or (family.nope_needs_window and not windowed)


def _no_name(layer_type: object, types: object) -> RopeError:
    return RopeError(
        "from_hf: `layer_type` must be a string, and `layer_types` a list of strings.",
        facts={"layer_type": layer_type, "layer_types": types},
        cure='For example layer_type="sliding_attention".',
    )


def _are_names(types: object) -> bool:
    return isinstance(types, list | tuple) and all(isinstance(name, str) for name in types)


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
    for key, value in stated.items():
        if isinstance(value, Mapping):
            default = (family.blocks.get(key) or {}) if family.theta_keys else {}
            block = {
                **(default if family.filled else {}),
                **value,
                "rope_theta": _nested_theta(fields, value, default, family, key),
            }
            if family.slice_of:
                block.setdefault("partial_rotary_factor", 1.0)
            blocks[key] = untruncated(block, outer)
        elif value is None and key not in _OUTER:
            blocks[key] = None
    for key, value in outer.items():
        unused = value is None or key == "truncate" or (key in ("rope_type", "type") and value == "default")
        in_all = key in _OUTER and all(key in value for value in stated.values() if isinstance(value, Mapping))
        if not (unused or in_all):
            raise _outside(key, value, stated)
    return blocks


def untruncated(block: Mapping[str, Any], outer: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the block of a layer type with the `truncate` that transformers uses, next to the blocks."""
    read, rule = dict(block), rule_of(block)
    if rule is not None and "truncate" in rule.optional_keys:
        read.pop("truncate", None)
        read |= {key: value for key, value in outer.items() if key == "truncate"}
    return read


def _outside(key: str, value: object, stated: Mapping[str, Any]) -> RopeError:
    return RopeError(
        f"from_hf: `{key}` is next to the blocks of the layer types, not in one of them.",
        facts={key: value, "layer types": sorted(k for k, v in stated.items() if isinstance(v, Mapping))},
        cure="Move it into the block that it belongs to.",
    )


def _nested_theta(
    fields: Mapping[str, Any], block: Mapping[str, Any], default: Mapping[str, Any], family: Family, label: str
) -> Any:
    """Return the theta of a nested block: its own, or the default that transformers uses."""
    refuse_null(block, "rope_theta")
    if family.mla and block.get("rope_theta") is None:
        raise RopeError(
            "from_hf: a block of a layer type has no theta, and transformers uses that of other layers.",
            facts={label: dict(block)},
            cure="Add `rope_theta` to the block.",
        )
    key = family.theta_keys.get(label, "") if family.theta_keys else "rope_theta"
    candidates = (block.get("rope_theta"), fields.get(key), default.get("rope_theta"), family.theta)
    return next(value for value in candidates if value is not None)


def _of_family(fields: Mapping[str, Any], stated: dict[str, Any] | None, family: Family) -> Blocks:
    """Return the blocks of a family with several, from the older flat spelling or from its defaults."""
    blocks: Blocks = {}
    for label, default in family.blocks.items():
        if default is None:
            blocks[label] = None
            continue
        block = dict(default)
        key = family.theta_keys.get(label, "")
        refuse_null(fields, key)
        theta = fields.get(key)
        if theta is not None:
            block["rope_theta"] = theta
        if stated is not None and label in family.scaled:
            rule = stated.get("rope_type", stated.get("type"))
            own = {"rope_theta": block["rope_theta"]} if family.thetas_on_top else {}
            block |= {**family.scaled_block.get(str(rule), {}), **stated, **own}
        blocks[label] = block
    return blocks


def _choose(
    fields: Mapping[str, Any], blocks: Mapping[str, dict[str, Any] | None], name: str, layer_type: str | None
) -> dict[str, Any]:
    if not any(block is not None for block in blocks.values()):
        raise NoRotation(
            f"from_hf: no layer of this {name} rotates.",
            facts={"layer types": sorted(blocks), "sliding_window": fields.get("sliding_window")},
            cure="Use rope=None for all layers.",
        )
    if layer_type is None:
        distinct = {json.dumps(block and {"rope_type": "default", **block}, default=str) for block in blocks.values()}
        only = next(iter(blocks.values()))
        if len(distinct) == 1 and only is not None:
            return only
        raise RopeError(
            f"from_hf: {name} rotates its layer types differently, but `layer_type` is None.",
            facts=dict(sorted(blocks.items())),
            cure="Pass layer_type=" + " or ".join(repr(label) for label in sorted(blocks)) + ".",
        )
    block = blocks.get(layer_type)
    if block is not None:
        return block
    if layer_type in blocks or layer_type in (fields.get("layer_types") or ()):
        raise _no_rotation(name, layer_type)
    raise _unknown(layer_type, blocks)


def _check_flat(fields: Mapping[str, Any], family: Family, name: str, layer_type: str) -> None:
    """Raise if the layer type of a config with one block does not exist or does not rotate."""
    if layer_type in _NOT_ATTENTION or not _rotates(fields, family, layer_type):
        raise _no_rotation(name, layer_type)
    known = {*(fields.get("layer_types") or ()), *_ATTENTION, *family.layer_types}
    if layer_type not in known:
        raise _unknown(layer_type, known)


def _no_rotation(name: str, layer_type: str) -> RopeError:
    return RopeError(
        f"from_hf: layers of this type have no rotation in {name} (NoPE).",
        facts={"layer_type": layer_type},
        cure="Use rope=None for these layers.",
    )


def _unknown(layer_type: str, known: Iterable[str]) -> RopeError:
    return RopeError(
        "from_hf: the model has no such `layer_type`.",
        facts={"layer_type": layer_type, "layer types": sorted(known)},
        cure=nearest(layer_type, known),
    )


_WINDOWED = ("sliding", "chunked", "local")


def is_windowed(layer_type: str) -> bool:
    """Return whether layers of this type attend only to a window of the text.

    >>> is_windowed("sliding_attention"), is_windowed("full_attention")
    (True, False)
    """
    return any(word in layer_type for word in _WINDOWED)


def window_of_layer_type(config: Mapping[str, Any], layer_type: str | None) -> int | None:
    """Return the window of a layer of this type, in tokens, or None if it attends to all tokens.

    `config` is a Hugging Face config's text part; pass None as `layer_type` if all layers have one type.

    >>> window_of_layer_type({"model_type": "mistral", "sliding_window": 4096}, None)
    4096
    """
    family = family_named(config.get("model_type", ""))
    if family is None:
        return None
    mixed = len(set(config.get("layer_types") or ())) > 1
    local = family.windowed and not mixed if layer_type is None else is_windowed(layer_type)
    window = config.get(family.window_key, family.sliding_window) if local else None
    return window if 0 < (as_whole(window) or 0) <= MOST_TOKENS else None


# --- a block from the fields of a RopeConfig


def axes_from_sections(sections: Sequence[int], interleaved: bool = False) -> tuple[int, ...]:
    """Return the axis of each pair, from the number of pairs of each axis.

    **Arguments:**
    - `sections`: number of pairs of each axis.
    - `interleaved`: False: contiguous sections, as in Qwen2-VL's M-RoPE and axial 2D and 3D. True: Qwen3-VL's order
      T H W T H W ..., with the remaining pairs on the first axis. A later axis ends at the last pair, as in
      transformers and timm, so it may have fewer pairs than its section.

    **Returns:** an axis for each pair, numbered from 0.
    **Raises:** `RopeError` if an axis has no pair.
    **Source:** Wang et al. 2024, arXiv:2409.12191, section 2.1; transformers' Qwen3-VL.

    >>> axes_from_sections([2, 3, 3])
    (0, 0, 1, 1, 1, 2, 2, 2)
    >>> axes_from_sections([4, 2, 2], interleaved=True)
    (0, 1, 2, 0, 1, 2, 0, 0)
    >>> axes_from_sections([1, 3], interleaved=True)
    (0, 1, 0, 1)
    """
    check_kind("axes_from_sections", bool, "True is Qwen3-VL's order of axes.", interleaved=interleaved)
    counts = [as_whole(pairs) or 0 for pairs in as_tuple(sections)]
    if not counts or min(counts) < 1:
        raise RopeError(
            "axes_from_sections: every axis needs at least one pair.",
            facts={"sections": sections},
            cure="Pass the number of pairs of each axis, for example [16, 24, 24].",
        )
    if not interleaved:
        return tuple(axis for axis, count in enumerate(counts) for _ in range(count))
    axes = [0] * sum(counts)
    for axis in range(1, len(counts)):
        for pair in range(axis, min(len(counts) * counts[axis], len(axes)), len(counts)):
            axes[pair] = axis
    return tuple(axes)


def sections_of(axes: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys of a rope block for this order of axes; raises `RopeError` if none exist."""
    sections = [axes.count(axis) for axis in range(max(axes) + 1)]
    for interleaved in (False, True):
        try:
            same = axes_from_sections(sections, interleaved=interleaved) == axes
        except RopeError:
            same = False
        if same:
            return {"mrope_section": sections, "mrope_interleaved": interleaved}
    raise RopeError(
        "to_hf: no `mrope_section` expresses this order of axes.",
        facts={"axes": axes},
        cure="Use contiguous or interleaved sections, the only ones in transformers.",
    )


def fraction_of(rotary_dim: int, head_dim: int) -> float:
    """Return a fraction f with int(head_dim * f) == rotary_dim, as transformers rounds."""
    share = rotary_dim / head_dim
    while int(head_dim * share) < rotary_dim:
        share = math.nextafter(share, 1.0)
    return share


def write(
    *,
    scaling: Scaling | None,
    ladder: Ladder,
    head_dim: int,
    rotary_dim: int,
    axes: tuple[int, ...] | None,
    axes_restart: bool,
) -> dict[str, Any]:
    """Return the `rope_parameters` block of these fields of a RopeConfig; see `RopeConfig.to_hf`.

    `ladder` is the unscaled one that all axes share; if axes have separate ladders, only its theta is used.
    """
    if axes_restart and axes is not None:
        pairs = rotary_dim // 2
        if pairs % 2 or axes != axes_from_sections([pairs // 2] * 2) or scaling is not None:
            raise RopeError(
                "to_hf: transformers' `axial` block only expresses height and width in equal halves, unscaled.",
                facts={"axes": axes, "scaling": scaling},
                cure="This config has no block in transformers.",
            )
        return {"rope_type": "axial", "rope_theta": ladder.theta}
    block = {"rope_type": "default", "rope_theta": ladder.theta} if scaling is None else scaling.to_block(ladder)
    if rotary_dim != head_dim:
        block["partial_rotary_factor"] = fraction_of(rotary_dim, head_dim)
    if axes is not None:
        block |= sections_of(axes)
    return block
