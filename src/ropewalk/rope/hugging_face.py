"""Hugging Face configs: `read` returns the fields of a RopeConfig, `write` its `rope_parameters` block.

Unknown keys, missing keys and impossible numbers raise. What a config omits (pairing, partial rotation, defaults)
depends on the model's class and comes from `families`. If numbers contradict each other, transformers' choice is used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from ropewalk.atomic_io import read_json
from ropewalk.errors import NoRotation, RopeError, library_errors
from ropewalk.families import (
    FAMILIES,
    NO_ROTATION,
    REFUSED,
    Family,
    described,
    family_name,
    trained_as,
    unread_keys,
)
from ropewalk.rope.rope_parameters import (
    axes_from_sections,
    block_of_layer,
    blocks_of_layers,
    misspelt,
    rule_of,
    scaling_of,
)
from ropewalk.rope.scaling import Ladder, LeRoPE, Scaling
from ropewalk.rope.values import MOST_TOKENS, as_whole, first, fraction, number, refuse_null, size

_INDEXER_FLAG = "indexer_rope_interleave"  # of GLM-5's config.json; vLLM and SGLang read it
_INDEX_HEAD_DIM = 128  # of every family with an indexer
NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_VISION_KEYS = ("patch_size", "spatial_merge_size", "depth", "in_channels", "num_channels")
_FLAGS = ("rope_interleave", "rope_interleaved")
_MROPE_KEYS = ("mrope_section", "mrope_interleaved", "interleaved")
_WAYS = {True: "(0,1), (2,3), ...", False: "(i, i + rotary_dim/2)"}


def read(
    config: str | PathLike[str] | Mapping[str, Any] | Any, *, layer_type: str | None = None, alpha: Any = None
) -> dict[str, Any]:
    """Return the fields of the `RopeConfig` of a Hugging Face config; see `RopeConfig.from_hf`."""
    return _read_one(*_described(config), layer_type, alpha)


def _read_one(
    fields: Mapping[str, Any], family: Family, name: str, layer_type: str | None, alpha: Any
) -> dict[str, Any]:
    block = block_of_layer(fields, family, name, layer_type)
    rope = _rope_fields(fields, family, name, block, layer_type, alpha)
    _warn(fields, family, name)
    return rope


def read_layer_types(
    config: str | PathLike[str] | Mapping[str, Any] | Any, *, alpha: Any = None
) -> tuple[dict[str | None, dict[str, Any] | None], bool, dict[str, Any], Family]:
    """Return the fields of each layer type's `RopeConfig`, None without rotation; see `ModelRopes.from_hf`.

    The others are whether the config has, or its class writes, a block for each layer type, its text part, and its
    family.
    """
    fields, family, name = _described(config)
    ropes = {
        label: None if block is None else _rope_fields(fields, family, name, block, label, alpha)
        for label, block in blocks_of_layers(fields, family, name).items()
    }
    _warn(fields, family, name)
    stated = fields.get("rope_parameters")
    nested = isinstance(stated, Mapping) and any(isinstance(value, Mapping) for value in stated.values())
    return ropes, nested or bool(family.blocks), fields, family


def _learned(scaling: Scaling | None, family: Family, name: str, alpha: Any) -> Scaling | None:
    """Return the scaling with learned factors on its frequencies, in a family that has them."""
    if family.learned is None and alpha is not None:
        raise RopeError(
            f"from_hf: the frequencies of {name} have no learned factors, so `alpha` would have no effect.",
            facts={"alpha": alpha},
            cure="Leave `alpha` out.",
        )
    if family.learned is None:
        return scaling
    if alpha is None:
        raise RopeError(
            f"from_hf: each frequency of {name} has a learned factor, which only the checkpoint contains (LeRoPE).",
            facts={"alpha": None, "tensor in the checkpoint": f"rotary_emb.{family.learned}"},
            cure="Pass alpha=ropewalk.checkpoints.load.read_alpha(folder), or `rotary_emb.alpha` of the live module.",
        )
    numbers = alpha.tolist() if isinstance(alpha, Tensor) and not alpha.is_meta else alpha
    return LeRoPE(tuple(numbers) if isinstance(numbers, list) else numbers, of=scaling)


def read_indexer(
    config: str | PathLike[str] | Mapping[str, Any] | Any, *, alpha: Any = None
) -> tuple[dict[str, Any], int]:
    """Return the fields of the indexer's `RopeConfig` and its offset; see `indexer_rope`."""
    fields, family, name = _described(config)
    if family.indexer is None:
        raise RopeError(
            f"indexer_rope: {name} has no indexer of sparse attention, or one that is not supported.",
            facts={"model_type": fields.get("model_type")},
            cure="RopeConfig.from_hf(config) is the rope of its attention.",
        )
    stated = fields.get(_INDEXER_FLAG)
    if stated is not None and stated != family.indexer.interleaved:
        raise RopeError(
            f"indexer_rope: `{_INDEXER_FLAG}` contradicts the pairing of transformers' {name}, which ignores this key.",
            facts={_INDEXER_FLAG: stated, "the indexer pairs": _WAYS[family.indexer.interleaved]},
            cure=f"Remove `{_INDEXER_FLAG}` for what transformers computes.",
        )
    rope = _read_one(fields, family, name, family.indexer.layer_type, alpha)
    head_dim = as_whole(fields.get("index_head_dim", _INDEX_HEAD_DIM)) or 0
    if head_dim < rope["rotary_dim"]:
        raise RopeError(
            "indexer_rope: `index_head_dim` must be at least the number of rotated features.",
            facts={"index_head_dim": fields.get("index_head_dim"), "rotated features": rope["rotary_dim"]},
            cure="Correct the config's value.",
        )
    own = {"head_dim": head_dim, "interleaved": family.indexer.interleaved}
    return {**rope, **own}, head_dim - rope["rotary_dim"] if family.indexer.last else 0


def _described(config: Any) -> tuple[dict[str, Any], Family, str]:
    """Return the config of the described part, its family, and the family's name."""
    fields = text_part(config)
    for keys in (("num_hidden_layers", "n_layer", "n_layers", "depth"), ("hidden_size", "n_embd", "d_model")):
        size(fields, *keys)  # raises for a damaged number
    family, name = _family(fields)
    block = fields.get("rope_parameters")
    is_object = not isinstance(config, (Mapping, str, PathLike)) and fields.get("partial_rotary_factor") is None
    if is_object and isinstance(block, Mapping) and (family.slice_of or "rope_type" in block):
        fields["rope_parameters"] = {"partial_rotary_factor": 1.0, **block}  # a config object has filled its block in
    return fields, family, name


def _warn(fields: Mapping[str, Any], family: Family, name: str) -> None:
    """Warn once about unused keys, and about a model with an unknown type."""
    unread = unread_keys(fields, family)
    unknown = isinstance(fields.get("model_type"), str) and name not in FAMILIES
    if unread or unknown:
        what = [f"`model_type` {name!r} is unknown, and only its pairing is stated"] if unknown else []
        what += [f"these keys are not used: {described(unread)}"] if unread else []
        warnings.warn(
            f"from_hf: {'; '.join(what)}. Compare with the model's own code before you trust this rope.", stacklevel=5
        )


def text_part(config: Any) -> dict[str, Any]:
    """Return the fields of a config, of its text part if it has several; sources are those of `RopeConfig.from_hf`.

    A part without a model_type has that of the composite.
    """
    fields = _read(config)
    for key in NESTED:
        inner = fields.get(key)
        if inner is not None and callable(getattr(inner, "to_dict", None)):
            inner = inner.to_dict()
        if isinstance(inner, Mapping):
            outer = {"model_type": fields["model_type"]} if "model_type" in fields else {}
            return text_part({**outer, **inner})
    return fields


def _rope_fields(
    fields: Mapping[str, Any], family: Family, name: str, block: Mapping[str, Any], layer_type: str | None, alpha: Any
) -> dict[str, Any]:
    """Return the fields of a RopeConfig, from the block of its layers and the rest of the config."""
    interleaved = _interleaved(fields, family, name)
    _check_axes(block, family, name)
    longest = max_position_embeddings_of(fields, family)
    head_dim = head_dim_of(fields, family, layer_type)
    rule = rule_of(block, family.meanings)
    in_rule = rule is not None and "partial_rotary_factor" in rule.optional_keys  # a fraction of all pairs
    if in_rule and family.mla:
        raise RopeError(
            f"from_hf: the class of {name} applies `proportional` to whole heads, but only a slice rotates.",
            facts={"rope block": dict(block)},
            cure="Use a different rule.",
        )
    if in_rule:
        block = {**block, "partial_rotary_factor": fraction_in_rule(fields, block, family)}
    further = (*family.keys, *(_MROPE_KEYS if family.mrope else ()))
    scaling = scaling_of(block, rule, further_keys=further, max_position_embeddings=longest)
    scaled = rule is not None
    rotary_dim = head_dim if in_rule else rotary_dim_of(fields, block, family, name, head_dim, scaled=scaled)
    theta = theta_of(fields, block, family)
    unread = block.get("rope_theta") or (None if "rope_theta" in family.top_thetas else fields.get("rope_theta"))
    if family.fixed and (scaling is not None or unread not in (None, theta)):
        raise RopeError(
            f"from_hf: transformers' {name} ignores rope blocks and `rope_theta`, but this config states one.",
            facts={"scaling": scaling, "rope_theta": unread, "the class's theta": theta},
            cure="Remove it for what transformers computes, or write RopeConfig(...) yourself.",
        )
    axes = axes_of(block, family, name, rotary_dim // 2)
    common = {
        "head_dim": head_dim,
        "interleaved": interleaved,
        "rotary_dim": rotary_dim,
        "max_position_embeddings": longest,
        "axes": axes,
    }
    learned = _learned(scaling, family, name, alpha)
    if family.backwards or family.one_ladder:
        return {**common, "inv_freq": _frequencies(theta, rotary_dim, scaling, longest, family)}
    known = {**fields, **block, "rope_theta": theta, "max_position_embeddings": longest}
    return {
        **common,
        "theta": theta,
        "scaling": learned,
        "axes_restart": axes is not None and bool(family.axial),
        "axis_blocks": family.axis_blocks,
        "trained": trained_as(name, "default" if rule is None else rule.rope_type, known),
    }


def _frequencies(
    theta: float, rotary_dim: int, scaling: Scaling | None, longest: int | None, family: Family
) -> tuple[float, ...]:
    """Return explicit frequencies: negative ones, or one ladder dealt out to the axes."""
    if scaling is not None:
        raise RopeError(
            "from_hf: the frequencies of this class are not a ladder, and scaling them is not supported.",
            facts={"scaling": scaling},
            cure="Remove the scaling, or write RopeConfig(..., inv_freq=...) yourself.",
        )
    ladder = Ladder(theta, rotary_dim, tuple(range(rotary_dim // 2)), longest).inv_freq()
    if family.backwards:
        return tuple(-frequency for frequency in ladder)
    return tuple(f for axis in range(len(family.axial)) for f in ladder[axis :: len(family.axial)])


def _read(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping) and all(isinstance(key, str) for key in config):
        return dict(config)
    if isinstance(config, (str, PathLike)) and str(config):
        file = os.path.join(config, "config.json") if os.path.isdir(config) else config
        cure = "Pass a config.json, or its folder. Fetch a damaged file again. For a model of the hub pass "
        return read_json(Path(file), "from_hf", cure + "transformers.AutoConfig.from_pretrained(name).")
    if callable(getattr(config, "to_dict", None)) and not isinstance(config, type):
        cure = "Restore the config that the model was built with."
        with library_errors("from_hf: `config.to_dict()` fails.", facts={"config": type(config).__name__}, cure=cure):
            return dict(config.to_dict())
    raise RopeError(
        "from_hf: `config` must be a path, a dict of named values, or an object with `to_dict()`.",
        facts={"config": config},
        cure="Pass the folder of the checkpoint, its config.json, or its content.",
    )


def _family(fields: Mapping[str, Any]) -> tuple[Family, str]:
    """Return the model's family and its name; raise if the family is unknown."""
    model_type = fields.get("model_type")
    name = _name_of_part(fields, model_type) if isinstance(model_type, str) else None
    if name is not None and name in REFUSED:
        raise RopeError(
            f"from_hf: {model_type} cannot be described by a RopeConfig: {REFUSED[name]}.",
            facts={"model_type": model_type},
            cure="Use the model's own code.",
        )
    if name is not None:
        _check_holds(fields, FAMILIES[name], name)
        return FAMILIES[name], name
    if isinstance(model_type, str) and model_type in NO_ROTATION:
        without_effect = {
            key: fields[key] for key in ("rope_theta", "rope_parameters", "rope_scaling") if fields.get(key)
        }
        raise NoRotation(
            f"from_hf: this model has no rotary embedding; {model_type} uses {NO_ROTATION[model_type]}.",
            facts={"model_type": model_type, **{f"{key}, unused": value for key, value in without_effect.items()}},
            cure="Use rope=None for its layers, or choose a model with rotary embeddings, such as Llama or Qwen.",
        )
    unread = unread_keys(fields, None)
    if unread:
        raise RopeError(
            "from_hf: this model is unknown, and its config has position settings that are not supported.",
            facts={"model_type": model_type, **unread},
            cure="The model may not use RoPE. Check its own code; if it does, write RopeConfig(...) yourself.",
        )
    flag = next((fields[key] for key in _FLAGS if isinstance(fields.get(key), bool)), None)
    if flag is not None:
        return Family(interleaved=flag, partial=1.0, axial=(0, 1) if _is_axial(fields) else ()), str(model_type)
    close = misspelt(model_type, FAMILIES) if isinstance(model_type, str) else None
    hint = f"Did you mean `{close}`? Else add" if close else "If the model's own code rotates queries and keys, add"
    raise RopeError(
        "from_hf: the pairing of this model is unknown, and it is never guessed.",
        facts={"model_type": model_type},
        cure=f'{hint} "rope_interleave" to the config: true for {_WAYS[True]} or false for {_WAYS[False]}; '
        "or write RopeConfig(...) yourself. Other encodings, such as PaTH and FoX, have no RopeConfig.",
    )


def _name_of_part(fields: Mapping[str, Any], model_type: str) -> str | None:
    """Return the table's name of the described part; released vision towers have their composite's model_type."""
    vision = f"{model_type}_vision"
    if vision in FAMILIES and "vocab_size" not in fields and any(key in fields for key in _VISION_KEYS):
        return vision
    return family_name(model_type)


def _is_axial(fields: Mapping[str, Any]) -> bool:
    """Return whether the config's block splits the pairs between height and width."""
    block = fields.get("rope_parameters") or fields.get("rope_scaling")
    return isinstance(block, Mapping) and block.get("rope_type", block.get("type")) == "axial"


def _check_axes(block: Mapping[str, Any], family: Family, name: str) -> None:
    """Raise if the block has several axes and their order in the class is unknown."""
    kind = block.get("rope_type", block.get("type"))
    if (kind == "axial" and not family.axial) or (kind == "mrope" and family.mrope is None):
        raise RopeError(
            f"from_hf: the block has several axes, and their order in {name} is unknown.",
            facts={"rope_type": kind},
            cure="Write RopeConfig(..., axes=axes_from_sections([...])) yourself; "
            "for the vision tower of a known model pass its `vision_config` as released.",
        )


def _check_holds(fields: Mapping[str, Any], family: Family, name: str) -> None:
    """Raise if the family's description does not apply to this config."""
    for key, condition in family.holds.items():
        if not condition.holds(fields.get(key)):
            raise RopeError(
                f"from_hf: this {name} cannot be described by a RopeConfig: {condition.why_not}.",
                facts={key: fields.get(key)},
                cure="Use the model's own code, or write RopeConfig(...) yourself.",
            )


def _interleaved(fields: Mapping[str, Any], family: Family, name: str) -> bool:
    for key in _FLAGS:
        if family.reads_flag:
            refuse_null(fields, key)
        stated = fields.get(key)
        if stated is None or stated == family.interleaved:
            continue
        if family.reads_flag and isinstance(stated, bool):
            return stated
        raise RopeError(
            f"from_hf: `{key}` contradicts the pairing of transformers' {name}, which ignores this key.",
            facts={key: stated, "the class pairs": _WAYS[family.interleaved]},
            cure=f"Remove `{key}` for what transformers computes, or write RopeConfig(...) yourself.",
        )
    return family.interleaved


# --- sizes outside the block: head_dim, rotary_dim, theta, lengths, axes

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_num_attention_heads")


def max_position_embeddings_of(fields: Mapping[str, Any], family: Family) -> int | None:
    """Return the config's maximal length in tokens, under any of its spellings."""
    # Command R has 131,072 there, and 8,192 under the usual key
    own = ("model_max_length",) if str(fields.get("model_type")).startswith("cohere") else ()
    spellings = (*own, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")
    stated = size(fields, *spellings, most=MOST_TOKENS)
    if stated is None and family.max_position_embeddings is not None:
        refuse_null(fields, *spellings)
    return family.max_position_embeddings if stated is None else stated


def theta_of(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family) -> float:
    """Return the block's theta (unless the class reads no block), else the config's, else the family's.

    The config's keys are the family's `top_thetas`; DBRX has it in `attn_config`. ChatGLM multiplies it by a ratio.
    """
    inner = fields.get("attn_config")
    stated = None if family.fixed else first(block, "rope_theta")
    if not family.fixed:
        refuse_null(block, "rope_theta")
    if family.thetas_on_top and not family.blocks:
        stated = first(fields, family.top_thetas[0]) or stated
    stated = stated or first(fields, *family.top_thetas)
    if stated is None and isinstance(inner, Mapping):
        stated = first(inner, "rope_theta")
    if stated is None:
        refuse_null(fields, *family.top_thetas)
    ratio = first(fields, family.theta_ratio) if family.theta_ratio is not None else None
    theta = family.theta if stated is None else number(stated[1], stated[0])
    return theta if ratio is None else theta * number(ratio[1], ratio[0])


def head_dim_of(fields: Mapping[str, Any], family: Family, layer_type: str | None) -> int:
    """Return the features of one head; for multi-head latent attention, of its rotated slice."""
    if layer_type is not None:
        own = _per_layer(fields, layer_type, "qk_rope_head_dim" if family.mla else "head_dim")
        if own is not None:
            return own
        if layer_type in family.head_dim_of:
            key, default = family.head_dim_of[layer_type]
            refuse_null(fields, key)
            return size(fields, key) or default
    if family.mla:
        refuse_null(fields, "qk_rope_head_dim")
        return size(fields, "qk_rope_head_dim", "head_dim") or family.head_dim or 64
    if family.whole_width:
        return size(fields, "hidden_size") or _derived_head_dim(fields, family)
    stated = size(fields, *family.head_dim_keys)
    if stated is not None:
        return stated
    if family.head_dim is not None:
        refuse_null(fields, "head_dim")
        return family.head_dim
    return family.head_width * _derived_head_dim({**family.sizes, **fields}, family)


def _derived_head_dim(fields: Mapping[str, Any], family: Family) -> int:
    width_keys = ("embed_dim", "hidden_size") if family.axial else ("hidden_size", "n_embd", "d_model")
    if family.axial:
        refuse_null(fields, "embed_dim")
    width = size(fields, *((family.width_key,) if family.width_key else width_keys))
    heads = size(fields, *((family.heads_key,) if family.heads_key else _HEADS))
    if heads is not None and family.divisor_key is not None:
        heads *= size(fields, family.divisor_key) or 1
    facts = {"hidden_size": width, "num_attention_heads": heads}
    if width is None or heads is None:
        raise RopeError(
            "from_hf: the config contains neither `head_dim` nor the two numbers to derive it from.",
            facts=facts,
            cure="Add `head_dim` to the config.",
        )
    if width % heads:
        raise RopeError(
            "from_hf: `hidden_size` is not a multiple of `num_attention_heads`, so head_dim cannot be derived.",
            facts=facts,
            cure="Add `head_dim` to the config.",
        )
    return width // heads


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


def rotary_dim_of(
    fields: Mapping[str, Any], block: Mapping[str, Any], family: Family, name: str, head_dim: int, *, scaled: bool
) -> int:
    """Return the number of rotated features; raise if a stated fraction contradicts the class.

    The order of precedence is the block's `partial_rotary_factor`, the config's, `rotary_pct` (the only key of
    GPT-NeoX), `rotary_dim` (MiniMax-M2) and the family's default. GPT-J has only `rotary_dim`. Multi-head latent
    attention rotates its slice; a stated fraction must agree, as one of the slice or of the whole head.

    `scaled`: whether the block names a scaling rule.
    """
    if family.axial:
        return _axial_dim(fields, block, family, name, head_dim)
    in_block = first(block, "partial_rotary_factor")
    if scaled or family.partial is not None or family.slice_of:
        refuse_null(block, "partial_rotary_factor")
    if in_block is None and family.partial is not None:
        refuse_null(fields, *family.fraction_keys)
    entries = (in_block or first(fields, "partial_rotary_factor"), first(fields, "rotary_pct"))
    fractions = {entry[0]: fraction(entry[1], entry[0]) for entry in entries if entry is not None}
    stated = {key: int(head_dim * share) for key, share in fractions.items()}
    if family.mla and family.slice_of:
        width = sum(size({**family.sizes, **fields}, key) or 0 for key in family.slice_of)
        share = next(iter(fractions.values()), head_dim / (width or 1) if family.partial is None else family.partial)
        if int(width * share) != head_dim:
            facts = {"qk_rope_head_dim": head_dim, " + ".join(family.slice_of): width, "partial_rotary_factor": share}
            raise _contradicts("qk_rope_head_dim", head_dim, name, int(width * share), facts)
        return head_dim
    if family.mla:
        heads = (size(fields, "qk_nope_head_dim") or 0) + head_dim, size(fields, "head_dim") or 0
        for key, share in fractions.items():
            of_slice = family.partial is not None or (scaled and not family.blocks)  # not of the whole head
            if stated[key] != head_dim and (of_slice or head_dim not in [int(dim * share) for dim in heads]):
                facts = {key: share, "qk_rope_head_dim": head_dim}
                raise _contradicts(key, stated[key], name, head_dim, facts)
        return head_dim
    dim = size(fields, "rotary_dim")
    if dim is not None:
        stated["rotary_dim"] = dim
    partial = family.scaled_partial if scaled and family.scaled_partial is not None else family.partial
    rotated = head_dim if partial is None else int(head_dim * partial)
    if family.projected is not None:
        sized = {**family.sizes, **fields}
        each = (size(sized, "projection_dim") or 0) // (2 * (size(sized, "num_attention_heads") or 1))
        rotated = max(each, family.projected)
    elif family.rotary_dim is not None:
        refuse_null(fields, "rotary_dim")
        rotated = stated.get("rotary_dim", family.rotary_dim)
    elif family.partial is not None and stated:
        keys = (*family.fraction_keys, *(() if in_block is None else ("partial_rotary_factor",)))
        rotated = next((count for key, count in stated.items() if key in keys), rotated)
    for key, count in stated.items():
        if count != rotated:
            raise _contradicts(key, count, name, rotated, {key: block.get(key, fields.get(key)), "head_dim": head_dim})
    return rotated


def fraction_in_rule(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family) -> Any:
    """Return the fraction of the `proportional` rule: the block's, else the config's or the class's."""
    refuse_null(block, "partial_rotary_factor")
    stated = first(block, "partial_rotary_factor") or first(fields, *family.fraction_keys)
    defaults = (None if stated is None else stated[1], family.scaled_partial, family.partial, 1.0)
    return next(value for value in defaults if value is not None)


def _contradicts(key: str, count: int, name: str, rotated: int, facts: Mapping[str, Any]) -> RopeError:
    return RopeError(
        f"from_hf: `{key}` means {count} rotated features, but transformers' {name} rotates {rotated}.",
        facts=facts,
        cure=f"Remove `{key}` for what transformers computes, or write RopeConfig(...) yourself."
        + (" If it is right, write it as `partial_rotary_factor`." if key == "rotary_dim" else ""),
    )


def _axial_dim(fields: Mapping[str, Any], block: Mapping[str, Any], family: Family, name: str, head_dim: int) -> int:
    """Return the rotated features of a vision tower: the same number of whole pairs for each axis."""
    axes = len(family.axial)
    stated = first(block, "partial_rotary_factor") or first(fields, "partial_rotary_factor")
    if stated is not None:
        heads = (size(fields, *_HEADS) or 1) if family.whole_width else 1
        share = fraction(stated[1], stated[0], heads)  # of one head, though all heads rotate together
        count = int(head_dim // heads * share) * (axes if family.whole_width else 1)
        if count != head_dim:
            facts = {"partial_rotary_factor": stated[1], "head_dim": head_dim}
            raise _contradicts("partial_rotary_factor", count, name, head_dim, facts)
    if axes == 2 and head_dim % 4:
        raise RopeError(
            "from_hf: a vision head splits its pairs between height and width, so their number must be even.",
            facts={"pairs": head_dim // 2},
            cure="Check hidden_size and num_heads.",
        )
    return 2 * axes * (head_dim // (2 * axes))


def axes_of(block: Mapping[str, Any], family: Family, name: str, pairs: int) -> tuple[int, ...] | None:
    """Return the axis of each pair: M-RoPE's time 0, height 1, width 2; a vision tower's height 0, width 1."""
    if family.axial:
        of_each = pairs // len(family.axial)
        return family.axial * of_each if family.in_turn else tuple(a for a in family.axial for _ in range(of_each))
    if family.mrope is None:
        return None
    if family.mrope == "alternating":
        if pairs % 2:
            raise RopeError(
                "from_hf: pairs alternate between row and column, so their number must be even.",
                facts={"pairs": pairs},
                cure="Check head_dim and partial_rotary_factor.",
            )
        return (0, 1) * (pairs // 2)
    stated = block.get("mrope_interleaved", block.get("interleaved"))
    if stated is not None and bool(stated) != (family.mrope == "interleaved"):
        raise RopeError(
            f"from_hf: `mrope_interleaved` contradicts the order of axes in transformers' {name}.",
            facts={"mrope_interleaved": stated, "the class": family.mrope},
            cure="Remove the key, or write RopeConfig(..., axes=...) yourself.",
        )
    refuse_null(block, "mrope_section")
    sections = block.get("mrope_section") or family.mrope_section
    whole = isinstance(sections, (list, tuple)) and all(isinstance(s, int) and s > 0 for s in sections)
    if not whole or len(sections) != 3 or sum(sections) != pairs:
        raise RopeError(
            "from_hf: `mrope_section` must be three whole numbers that sum to the number of pairs.",
            facts={"mrope_section": sections, "pairs": pairs},
            cure="Pass the number of pairs of time, height and width.",
        )
    if family.mrope != "ernie":
        return axes_from_sections(sections, interleaved=family.mrope == "interleaved")
    height, width, temporal = sections
    if height != width:
        raise RopeError(
            "from_hf: ERNIE's height and width alternate, so their sections must be equal.",
            facts={"mrope_section": sections},
            cure="Correct the config's value.",
        )
    return (1, 2) * int(height) + (0,) * int(temporal)
