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
from ropewalk.errors import RopeError
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
from ropewalk.rope.dimensions import (
    axes_from_sections,
    axes_of,
    fraction_in_rule,
    fraction_of,
    head_dim_of,
    max_position_embeddings_of,
    rotary_dim_of,
    sections_of,
    theta_of,
)
from ropewalk.rope.layer_types import block_of_layer, blocks_of_layers, misspelt, rule_of, scaling_of
from ropewalk.rope.scaling import Ladder, LeRoPE, Scaling
from ropewalk.rope.values import as_whole, refuse_null, size

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
    fields, family, name = _described(config)
    block = block_of_layer(fields, family, name, layer_type)
    found = _learned(_rope_fields(fields, family, name, block, layer_type), family, name, alpha)
    _warn(fields, family, name)
    return found


def read_layer_types(
    config: str | PathLike[str] | Mapping[str, Any] | Any, *, alpha: Any = None
) -> dict[str | None, dict[str, Any] | None]:
    """Return the fields of each layer type's `RopeConfig`, None without rotation; see `ropes_of_layer_types`."""
    fields, family, name = _described(config)
    found = {
        label: None
        if block is None
        else _learned(_rope_fields(fields, family, name, block, label), family, name, alpha)
        for label, block in blocks_of_layers(fields, family, name).items()
    }
    _warn(fields, family, name)
    return found


def _learned(rope: dict[str, Any], family: Family, name: str, alpha: Any) -> dict[str, Any]:
    """Return the fields of a RopeConfig with learned factors on its frequencies, in a family that has them."""
    if family.learned is None and alpha is not None:
        raise RopeError(
            f"from_hf: the frequencies of {name} have no learned factors, so `alpha` would have no effect.",
            facts={"alpha": alpha},
            cure="Leave `alpha` out.",
        )
    if family.learned is None:
        return rope
    if alpha is None:
        raise RopeError(
            f"from_hf: each frequency of {name} has a learned factor, which only the checkpoint contains (LeRoPE).",
            facts={"alpha": None, "tensor in the checkpoint": f"rotary_emb.{family.learned}"},
            cure="Pass alpha=ropewalk.checkpoints.read_alpha(folder), or `rotary_emb.alpha` of the live module.",
        )
    numbers = alpha.tolist() if isinstance(alpha, Tensor) and not alpha.is_meta else alpha
    return {**rope, "scaling": LeRoPE(tuple(numbers) if isinstance(numbers, list) else numbers, of=rope["scaling"])}


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
    rope = read(config, layer_type=family.indexer.layer_type, alpha=alpha)
    head_dim = as_whole(fields.get("index_head_dim", _INDEX_HEAD_DIM)) or 0
    if head_dim < rope["rotary_dim"]:
        raise RopeError(
            "indexer_rope: `index_head_dim` must be at least the number of rotated features.",
            facts={"index_head_dim": fields.get("index_head_dim"), "rotated features": rope["rotary_dim"]},
            cure="Correct the config's value.",
        )
    own = {"head_dim": head_dim, "interleaved": family.indexer.interleaved}
    return {**rope, **own}, head_dim - rope["rotary_dim"] if family.indexer.last else 0


def is_nested(config: Any) -> bool:
    """Return whether a config has, or its class writes, a block for each layer type."""
    fields, family, _ = _described(config)
    stated = fields.get("rope_parameters")
    return bool(family.blocks) or (isinstance(stated, Mapping) and any(isinstance(v, Mapping) for v in stated.values()))


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
            f"from_hf: {'; '.join(what)}. Compare with the model's own code before you trust this rope.", stacklevel=4
        )


def text_part(config: Any) -> dict[str, Any]:
    """Return the fields of a config, of its text part if it has several; sources are those of `RopeConfig.from_hf`."""
    return _text_part(_read(config))


def _rope_fields(
    fields: Mapping[str, Any], family: Family, name: str, block: Mapping[str, Any], layer_type: str | None
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
    if family.backwards or family.one_ladder:
        return {
            "head_dim": head_dim,
            "interleaved": interleaved,
            "rotary_dim": rotary_dim,
            "inv_freq": _frequencies(theta, rotary_dim, scaling, longest, family),
            "max_position_embeddings": longest,
            "axes": axes,
        }
    known = {**fields, **block, "rope_theta": theta, "max_position_embeddings": longest}
    return {
        "head_dim": head_dim,
        "interleaved": interleaved,
        "theta": theta,
        "rotary_dim": rotary_dim,
        "scaling": scaling,
        "max_position_embeddings": longest,
        "axes": axes,
        "axes_restart": axes is not None and bool(family.axial),
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


def _read(config: Any) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    if isinstance(config, (str, PathLike)) and str(config):
        file = os.path.join(config, "config.json") if os.path.isdir(config) else config
        return read_json(Path(file), "from_hf", "Pass a config.json, or its folder. Fetch a damaged file again.")
    if callable(getattr(config, "to_dict", None)) and not isinstance(config, type):
        return dict(config.to_dict())
    raise RopeError(
        "from_hf: `config` must be a path, a dict, or an object with `to_dict()`.",
        facts={"config": config},
        cure="Pass the folder of the checkpoint, its config.json, or its content.",
    )


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the text model's config, with the composite's model_type if it states none."""
    for key in NESTED:
        inner = config.get(key)
        if inner is not None and callable(getattr(inner, "to_dict", None)):
            inner = inner.to_dict()
        if isinstance(inner, Mapping):
            outer = {"model_type": config["model_type"]} if "model_type" in config else {}
            return _text_part({**outer, **inner})
    return config


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
        raise RopeError(
            f"from_hf: this model has no rotary embedding; {model_type} uses {NO_ROTATION[model_type]}.",
            facts={"model_type": model_type},
            cure="Choose a model with rotary embeddings, such as Llama, Mistral or Qwen.",
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
