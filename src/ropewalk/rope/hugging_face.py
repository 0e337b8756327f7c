"""Hugging Face configs: the fields of a RopeConfig.

Unknown keys, missing keys and impossible numbers raise. What a config omits (pairing, partial rotation, defaults)
depends on the model's class and comes from `families`. If numbers contradict each other, transformers' choice is used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.errors import NoRotation, RopeError, library_errors
from ropewalk.families import FAMILIES, NO_ROTATION, REFUSED, Family, described, family_name, trained_as, unread_keys
from ropewalk.families.adjustments import HEAD_DIM_KEYS, HEADS_KEYS, contradicts
from ropewalk.families.values import MOST_TOKENS, first, fraction, number, refuse_null, size, whole_or_zero
from ropewalk.rope.axes import axes_from_sections
from ropewalk.rope.rope_parameters import (
    Blocks,
    Described,
    block_of_layer,
    blocks_of_layers,
    check_keys,
    has_blocks,
    misspelt,
    rule_of,
)
from ropewalk.rope.scaling import LeRoPE, Scaling

NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_VISION_KEYS = {"patch_size", "spatial_merge_size", "depth", "in_channels", "num_channels"}
_FLAGS = ("rope_interleave", "rope_interleaved")
_MROPE_KEYS = ("mrope_section", "mrope_interleaved", "interleaved")
_WAYS = {True: "(0,1), (2,3), ...", False: "(i, i + rotary_dim/2)"}


def read(config: Any, *, layer_type: str | None = None, alpha: Any = None) -> dict[str, Any]:
    """Return the fields of the `RopeConfig` of a Hugging Face config; see `RopeConfig.from_hf`."""
    found = describe(config)
    rope = _rope(found, block_of_layer(found, layer_type), layer_type, alpha)
    _warn(found)
    return rope


def read_block(block: Mapping[str, Any], head_dim: int, max_position_embeddings: int | None) -> dict[str, Any]:
    """Return the fields of the `RopeConfig` of a bare block, as of a Llama; see `RopeConfig.from_block`."""
    fields = {"head_dim": head_dim, "max_position_embeddings": max_position_embeddings, "rope_parameters": block}
    found = Described(fields, FAMILIES["llama"], "llama")
    return _rope(found, block_of_layer(found, None), None, None)


def read_layer_types(config: Any, *, alpha: Any = None) -> tuple[Blocks, bool, dict[str, Any], Family]:
    """Return the fields of each layer type's `RopeConfig`, None without rotation; see `ModelRopes.from_hf`.

    The others are whether the config or its class has a block for each layer type, its text part, and its family.
    """
    found = describe(config)
    blocks = blocks_of_layers(found).items()
    ropes = {label: None if block is None else _rope(found, block, label, alpha) for label, block in blocks}
    _warn(found)
    nested = has_blocks(found.fields.get("rope_parameters")) or bool(found.family.blocks)
    return ropes, nested, found.fields, found.family


def read_indexer(config: Any, *, alpha: Any = None) -> tuple[dict[str, Any], int]:
    """Return the fields of the indexer's `RopeConfig` and its offset; see `indexer_rope`."""
    found = describe(config)
    fields, family, name = found
    indexer = family.module.indexer
    if indexer is None:
        raise RopeError(
            f"indexer_rope: {name} has no indexer of sparse attention, or one that is not supported.",
            facts={"model_type": fields.get("model_type")},
            cure="RopeConfig.from_hf(config) is the rope of its attention.",
        )
    interleaved = _interleaved(found, ("indexer_rope_interleave",), indexer.interleaved, False)  # of GLM-5
    rope = _rope(found, block_of_layer(found, indexer.layer_type), indexer.layer_type, alpha)
    _warn(found)
    head_dim = whole_or_zero(fields.get("index_head_dim", 128))  # the default of every family with an indexer
    if head_dim < rope["rotary_dim"]:
        raise RopeError(
            "indexer_rope: `index_head_dim` must be at least the number of rotated features.",
            facts={"index_head_dim": fields.get("index_head_dim"), "rotated features": rope["rotary_dim"]},
            cure="Correct the config's value.",
        )
    offset = head_dim - rope["rotary_dim"] if indexer.last else 0
    return {**rope, "head_dim": head_dim, "interleaved": interleaved}, offset


# --- the described part of a config, and its family


def text_part(config: Any) -> dict[str, Any]:
    """Return the fields of a config, of its text part if it has several; sources are those of `RopeConfig.from_hf`.

    A part without a model_type has that of the composite.
    """
    if isinstance(config, Mapping) and all(isinstance(key, str) for key in config):
        fields = dict(config)
    elif isinstance(config, (str, PathLike)) and str(config):
        file = os.path.join(config, "config.json") if os.path.isdir(config) else config
        cure = "Pass a config.json, or its folder. Fetch a damaged file again. For a model of the hub pass "
        fields = read_json(Path(file), "from_hf", cure + "transformers.AutoConfig.from_pretrained(name).")
    elif callable(getattr(config, "to_dict", None)) and not isinstance(config, type):
        cure = "Restore the config that the model was built with."
        with library_errors("from_hf: `config.to_dict()` fails.", facts={"config": type(config).__name__}, cure=cure):
            fields = dict(config.to_dict())
    else:
        raise RopeError(
            "from_hf: `config` must be a path, a dict of named values, or an object with `to_dict()`.",
            facts={"config": config},
            cure="Pass the folder of the checkpoint, its config.json, or its content.",
        )
    for key in NESTED:
        inner: Any = fields.get(key)
        if callable(getattr(inner, "to_dict", None)):
            inner = inner.to_dict()
        if isinstance(inner, Mapping):
            outer = {"model_type": fields["model_type"]} if "model_type" in fields else {}
            return text_part({**outer, **inner})
    return fields


def describe(config: Any) -> Described:
    """Return the described part of a config, in the spelling that all families share; raise if the model is unknown."""
    fields = text_part(config)
    for keys in (("num_hidden_layers", "n_layer", "n_layers", "depth"), ("hidden_size", "n_embd", "d_model")):
        size(fields, *keys)  # raises for a damaged number
    model_type = fields.get("model_type")
    name = family_name(model_type) if isinstance(model_type, str) else None
    vision = f"{model_type}_vision"  # released vision towers have their composite's model_type
    if vision in FAMILIES and "vocab_size" not in fields and _VISION_KEYS & set(fields):
        name = vision
    if name is None:
        return _unknown(fields)
    family = FAMILIES.get(name, Family(False))
    if name in REFUSED:
        rule = f"from_hf: {model_type} cannot be described by a RopeConfig: {REFUSED[name]}."
        raise RopeError(rule, facts={"model_type": model_type}, cure="Use the model's own code.")
    for key, condition in family.holds.items():
        if not condition.holds(fields.get(key)):
            raise RopeError(
                f"from_hf: this {name} cannot be described by a RopeConfig: {condition.why_not}.",
                facts={key: fields.get(key)},
                cure="Use the model's own code, or write RopeConfig(...) yourself.",
            )
    block: Any = fields.get("rope_parameters")
    is_object = not isinstance(config, (Mapping, str, PathLike)) and fields.get("partial_rotary_factor") is None
    flat = is_object and isinstance(block, Mapping) and not has_blocks(block)
    if flat and (family.slice_of or "rope_type" in block):
        fields["rope_parameters"] = {"partial_rotary_factor": 1.0, **block}  # a config object has filled its block in
    return Described(fields if family.adjust is None else family.adjust(fields, name), family, name)


def _unknown(fields: dict[str, Any]) -> Described:
    """Describe a model that the table does not contain, if its config states the pairing; else raise."""
    model_type = fields.get("model_type")
    if isinstance(model_type, str) and model_type in NO_ROTATION:
        unused = [key for key in ("rope_theta", "rope_parameters", "rope_scaling") if fields.get(key)]
        raise NoRotation(
            f"from_hf: this model has no rotary embedding; {model_type} uses {NO_ROTATION[model_type]}.",
            facts={"model_type": model_type, **{f"{key}, unused": fields[key] for key in unused}},
            cure="Use rope=None for its layers, or choose a model with rotary embeddings, such as Llama or Qwen.",
        )
    if unread := unread_keys(fields, None):
        raise RopeError(
            "from_hf: this model is unknown, and its config has position settings that are not supported.",
            facts={"model_type": model_type, **unread},
            cure="The model may not use RoPE. Check its own code; if it does, write RopeConfig(...) yourself.",
        )
    flag = next((fields[key] for key in _FLAGS if isinstance(fields.get(key), bool)), None)
    if flag is not None:
        block = fields.get("rope_parameters") or fields.get("rope_scaling")
        axial = isinstance(block, Mapping) and block.get("rope_type", block.get("type")) == "axial"
        return Described(fields, Family(flag, partial=1.0, axial=(0, 1) if axial else ()), str(model_type))
    close = misspelt(model_type, FAMILIES) if isinstance(model_type, str) else None
    hint = f"Did you mean `{close}`? Else add" if close else "If the model's own code rotates queries and keys, add"
    raise RopeError(
        "from_hf: the pairing of this model is unknown, and it is never guessed.",
        facts={"model_type": model_type},
        cure=f'{hint} "rope_interleave" to the config: true for {_WAYS[True]} or false for {_WAYS[False]}; '
        "or write RopeConfig(...) yourself. Other encodings, such as PaTH and FoX, have no RopeConfig.",
    )


def _warn(config: Described) -> None:
    """Warn once about unused keys, and about a model with an unknown type."""
    fields, family, name = config
    unread = unread_keys(fields, family)
    unknown = isinstance(fields.get("model_type"), str) and name not in FAMILIES
    if unread or unknown:
        what = [f"`model_type` {name!r} is unknown, and only its pairing is stated"] if unknown else []
        what += [f"these keys are not used: {described(unread)}"] if unread else []
        compare = "Compare with the model's own code before you trust this rope."
        warnings.warn(f"from_hf: {'; '.join(what)}. {compare}", stacklevel=4)


# --- the rope of a block


def _rope(config: Described, block: Mapping[str, Any], layer_type: str | None, alpha: Any) -> dict[str, Any]:
    """Return the fields of a RopeConfig, from the block of its layers and the rest of the config."""
    fields, family, name = config
    interleaved = _interleaved(config, _FLAGS, family.interleaved, family.reads_flag)
    kind = block.get("rope_type", block.get("type"))
    if (kind == "axial" and not family.axial) or (kind == "mrope" and family.mrope is None):
        raise RopeError(
            f"from_hf: the block has several axes, and their order in {name} is unknown.",
            facts={"rope_type": kind},
            cure="Write RopeConfig(..., axes=axes_from_sections([...])) yourself; "
            "for the vision tower of a known model pass its `vision_config` as released.",
        )
    longest = _max_position_embeddings(fields, family)
    head_dim = head_dim_of(fields, family, layer_type)
    rule = rule_of(block, family.meanings)
    in_rule = rule is not None and "partial_rotary_factor" in rule.optional_keys  # a fraction of all pairs
    if in_rule:
        if family.mla:
            raise RopeError(
                f"from_hf: the class of {name} applies `proportional` to whole heads, but only a slice rotates.",
                facts={"rope block": dict(block)},
                cure="Use a different rule.",
            )
        refuse_null(block, "partial_rotary_factor")
        stated = first(block, "partial_rotary_factor") or first(fields, *family.fraction_keys)
        block = {**block, "partial_rotary_factor": stated[1] if stated else family.partial or 1.0}
    check_keys(block, rule, (*family.module.block_keys, *(_MROPE_KEYS if family.mrope else ())))
    scaling = None if rule is None else rule.from_block(block, longest)
    rotary_dim = head_dim if in_rule else _rotary_dim(config, block, head_dim, scaled=rule is not None)
    theta = _theta(fields, block, family)
    unread = block.get("rope_theta") or (None if "rope_theta" in family.top_thetas else fields.get("rope_theta"))
    if family.fixed and (scaling is not None or unread not in (None, theta)):
        raise RopeError(
            f"from_hf: transformers' {name} ignores rope blocks and `rope_theta`, but this config states one.",
            facts={"scaling": scaling, "rope_theta": unread, "the class's theta": theta},
            cure="Remove it for what transformers computes, or write RopeConfig(...) yourself.",
        )
    if family.module.learned is not None or alpha is not None:
        scaling = _learned(scaling, family, name, alpha)
    known = {**fields, **block, "rope_theta": theta, "max_position_embeddings": longest}
    rope = {
        "head_dim": head_dim,
        "interleaved": interleaved,
        "rotary_dim": rotary_dim,
        "max_position_embeddings": longest,
        "axes": _axes(block, family, name, rotary_dim // 2),
        "theta": theta,
        "scaling": scaling,
        "axes_restart": bool(family.axial),
        "trained": trained_as(name, "default" if rule is None else rule.rope_type, known),
    }
    return rope if family.finish is None else family.finish(rope)


def _learned(scaling: Scaling | None, family: Family, name: str, alpha: Any) -> Scaling:
    """Return the scaling with learned factors on its frequencies, in a family that has them."""
    if family.module.learned is None:
        raise RopeError(
            f"from_hf: the frequencies of {name} have no learned factors, so `alpha` would have no effect.",
            facts={"alpha": alpha},
            cure="Leave `alpha` out.",
        )
    if alpha is None:
        raise RopeError(
            f"from_hf: each frequency of {name} has a learned factor, which only the checkpoint contains (LeRoPE).",
            facts={"alpha": None, "tensor in the checkpoint": f"rotary_emb.{family.module.learned}"},
            cure="Pass alpha=ropewalk.checkpoints.load.read_alpha(folder), or `rotary_emb.alpha` of the live module.",
        )
    # a tensor with values becomes numbers; LeRoPE refuses one without, and what is no tensor has no such attribute
    return LeRoPE(alpha if getattr(alpha, "is_meta", True) else tuple(alpha.tolist()), of=scaling)


def _interleaved(config: Described, keys: Iterable[str], own: bool, reads_flag: bool) -> bool:
    """Return the class's own pairing, which the keys must not contradict; with `reads_flag` they choose it."""
    fields, _, name = config
    for key in keys:
        if reads_flag:
            refuse_null(fields, key)
        stated = fields.get(key)
        if stated is None or stated == own:
            continue
        if reads_flag and isinstance(stated, bool):
            return stated
        raise RopeError(
            f"from_hf: `{key}` contradicts the pairing of transformers' {name}, which ignores this key.",
            facts={key: stated, "the class pairs": _WAYS[own]},
            cure=f"Remove `{key}` for what transformers computes, or write RopeConfig(...) yourself.",
        )
    return own


# --- sizes outside the block: head_dim, rotary_dim, theta, lengths, axes


def _max_position_embeddings(fields: Mapping[str, Any], family: Family) -> int | None:
    """Return the config's maximal length in tokens, under any of its spellings."""
    # Command R has 131,072 there, and 8,192 under the usual key
    own = ("model_max_length",) if str(fields.get("model_type")).startswith("cohere") else ()
    spellings = (*own, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")
    return size(fields, *spellings, most=MOST_TOKENS, default=family.defaults.get("max_position_embeddings"))


def _theta(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family) -> float:
    """Return the block's theta (unless the class reads no block), else the config's, else the family's.

    The config's keys are the family's `top_thetas`; DBRX has it in `attn_config`.
    """
    read, inner = {} if family.fixed else block, fields.get("attn_config")
    inner = inner if isinstance(inner, Mapping) else {}
    refuse_null(read, "rope_theta")
    stated = first(read, "rope_theta") or first(fields, *family.top_thetas) or first(inner, "rope_theta")
    if stated is None:
        refuse_null(fields, *family.top_thetas)
    return family.theta if stated is None else number(stated[1], stated[0])


def head_dim_of(fields: Mapping[str, Any], family: Family, layer_type: str | None) -> int:
    """Return the features of one head; for multi-head latent attention, of its rotated slice."""
    if layer_type is not None:
        own = _per_layer(fields, layer_type, "qk_rope_head_dim" if family.mla else "head_dim")
        if own is not None:
            return own
        if layer_type in family.head_dim_of:
            key, default = family.head_dim_of[layer_type]
            return size(fields, key, default=default) or default
    if family.mla:
        refuse_null(fields, "qk_rope_head_dim")
    stated = size(fields, *(("qk_rope_head_dim", "head_dim") if family.mla else HEAD_DIM_KEYS))
    if stated is None and family.head_dim is not None and not family.mla:
        refuse_null(fields, "head_dim")
    width = stated or family.head_dim
    if width:
        return width
    fields = {**family.defaults, **fields}
    if family.axial:
        refuse_null(fields, "embed_dim")
    width = size(fields, *(("embed_dim", "hidden_size") if family.axial else ("hidden_size", "n_embd", "d_model")))
    heads = size(fields, *HEADS_KEYS)
    if width and heads and width % heads == 0:
        return width // heads
    why = "the config contains neither `head_dim` nor the two numbers to derive it from."
    if width and heads:
        why = "`hidden_size` is not a multiple of `num_attention_heads`, so head_dim cannot be derived."
    facts = {"hidden_size": width, "num_attention_heads": heads}
    raise RopeError(f"from_hf: {why}", facts=facts, cure="Add `head_dim` to the config.")


def _per_layer(fields: Mapping[str, Any], layer_type: str, key: str) -> int | None:
    """Return a width in transformers' `per_layer_config` (overrides by layer index), or None without one."""
    overrides, types = fields.get("per_layer_config"), fields.get("layer_types")
    if not isinstance(overrides, Mapping) or not types:
        return None
    for index, label in enumerate(types):
        override = overrides.get(str(index), overrides.get(index))
        if label == layer_type and isinstance(override, Mapping) and key in override:
            return size(override, key)
    return size(fields, key)


def _rotary_dim(config: Described, block: Mapping[str, Any], head_dim: int, *, scaled: bool) -> int:
    """Return the number of rotated features; raise if a stated fraction contradicts the class.

    The order of precedence is the block's `partial_rotary_factor`, the config's, `rotary_pct` (the only key of
    GPT-NeoX), `rotary_dim` (MiniMax-M2) and the family's default. Multi-head latent attention rotates its slice; a
    stated fraction must agree, as one of the slice or of the whole head. A vision tower rotates the same number of
    whole pairs for each axis. `scaled`: the block names a scaling rule.
    """
    fields, family, name = config
    key, partial, others = "partial_rotary_factor", family.partial, fields
    if family.axial:  # the whole head, and no other key
        partial, scaled, others = None, False, {}
    in_block = first(block, key)
    if scaled or partial is not None or family.slice_of:
        refuse_null(block, key)
    if in_block is None and partial is not None:
        refuse_null(fields, *family.fraction_keys)
    fractions, stated = dict[str, float](), dict[str, int]()
    for own, value in filter(None, (in_block or first(fields, key), first(others, "rotary_pct"))):
        fractions[own] = fraction(value, own)
        stated[own] = int(head_dim * fractions[own])
    if family.mla and family.slice_of:
        width = sum(size({**family.defaults, **fields}, of) or 0 for of in family.slice_of)
        share = next(iter(fractions.values()), head_dim / (width or 1) if partial is None else partial)
        if int(width * share) != head_dim:
            facts = {"qk_rope_head_dim": head_dim, " + ".join(family.slice_of): width, key: share}
            raise contradicts("qk_rope_head_dim", head_dim, name, int(width * share), facts)
        return head_dim
    if family.mla:
        heads = (size(fields, "qk_nope_head_dim") or 0) + head_dim, size(fields, "head_dim") or 0
        for own, share in fractions.items():
            of_slice = partial is not None or (scaled and not family.blocks)  # not of the whole head
            if stated[own] != head_dim and (of_slice or head_dim not in [int(dim * share) for dim in heads]):
                raise contradicts(own, stated[own], name, head_dim, {own: share, "qk_rope_head_dim": head_dim})
        return head_dim
    dim = size(others, "rotary_dim")
    stated |= {} if dim is None else {"rotary_dim": dim}
    rotated = head_dim if partial is None else int(head_dim * partial)
    if "rotary_dim" in family.defaults:
        refuse_null(fields, "rotary_dim")
        rotated = stated.get("rotary_dim", family.defaults["rotary_dim"])
    elif partial is not None and stated:
        keys = (*family.fraction_keys, *(() if in_block is None else (key,)))
        rotated = next((count for own, count in stated.items() if own in keys), rotated)
    for own, count in stated.items():
        if count != rotated:
            facts = dict(filter(None, (first(fields, own), first(block, own))))
            raise contradicts(own, count, name, rotated, {**facts, "head_dim": head_dim})
    axes = len(family.axial) or 1
    if (axes == 2 and rotated % 4) or (family.mrope == "alternating" and rotated // 2 % 2):
        raise RopeError(
            "from_hf: pairs are divided between row and column, so their number must be even.",
            facts={"pairs": rotated // 2},
            cure="Check the size of a head and the rotated fraction.",
        )
    return rotated if axes == 1 else 2 * axes * (rotated // (2 * axes))


def _axes(block: Mapping[str, Any], family: Family, name: str, pairs: int) -> tuple[int, ...] | None:
    """Return the axis of each pair: M-RoPE's time 0, height 1, width 2; a vision tower's height 0, width 1."""
    if family.axial:
        return tuple(axis for axis in family.axial for _ in range(pairs // len(family.axial)))
    if family.mrope is None:
        return None
    if family.mrope == "alternating":
        return (0, 1) * (pairs // 2)
    stated = block.get("mrope_interleaved", block.get("interleaved"))
    if stated is not None and bool(stated) != (family.mrope == "interleaved"):
        raise RopeError(
            f"from_hf: `mrope_interleaved` contradicts the order of axes in transformers' {name}.",
            facts={"mrope_interleaved": stated, "the class": family.mrope},
            cure="Remove the key, or write RopeConfig(..., axes=...) yourself.",
        )
    refuse_null(block, "mrope_section")
    sections: Any = block.get("mrope_section") or family.defaults.get("mrope_section")
    whole = isinstance(sections, (list, tuple)) and all(isinstance(s, int) and s > 0 for s in sections)
    ernie = family.mrope == "ernie"
    if not whole or len(sections) != 3 or sum(sections) != pairs or (ernie and sections[0] != sections[1]):
        raise RopeError(
            "from_hf: `mrope_section` must be three whole numbers that sum to the number of pairs"
            f"{', with equal height and width, which alternate in ERNIE' if ernie else ''}.",
            facts={"mrope_section": sections, "pairs": pairs},
            cure=f"Pass the number of pairs of {'height, width and time' if ernie else 'time, height and width'}.",
        )
    if ernie:
        return (1, 2) * int(sections[0]) + (0,) * int(sections[2])
    return axes_from_sections(sections, interleaved=family.mrope == "interleaved")
