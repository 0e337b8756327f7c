"""Hugging Face configs: `read` gives the fields of a RopeConfig, `write` its `rope_parameters` block.

What a config states is read strictly: an unknown key, a missing one or an impossible number raises. What it does not
state (which features form a pair, whether a partial rotation is honoured, defaults) is decided by the model's class,
and comes from `families`. Where numbers disagree with each other, transformers' reading stands.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, NO_ROTATION, REFUSED, Family, family_name, trained_as
from ropewalk.rope.dimensions import (
    axes_from_sections,
    axes_of,
    fraction_of,
    head_dim_of,
    max_position_embeddings_of,
    rotary_dim_of,
    sections_of,
    theta_of,
)
from ropewalk.rope.layer_types import block_of_layer, blocks_of_layers, rule_of, scaling_of
from ropewalk.rope.scaling import Ladder, Scaling
from ropewalk.rope.values import TRAINED_KEY

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_VISION_KEYS = ("patch_size", "spatial_merge_size", "depth", "in_channels", "num_channels")
_FLAGS = ("rope_interleave", "rope_interleaved")
_MROPE_KEYS = ("mrope_section", "mrope_interleaved", "interleaved")
_WAYS = {True: "(0,1), (2,3), ...", False: "(i, i + rotary_dim/2)"}


def read(config: str | PathLike[str] | Mapping[str, Any] | Any, *, layer_type: str | None = None) -> dict[str, Any]:
    """The fields of the `RopeConfig` that a Hugging Face config describes; see `RopeConfig.from_hf`."""
    fields, family, name = _understood(config)
    return _rope_fields(fields, family, name, block_of_layer(fields, family, name, layer_type), layer_type)


def read_layer_types(
    config: str | PathLike[str] | Mapping[str, Any] | Any,
) -> dict[str | None, dict[str, Any] | None]:
    """The fields of each layer type's `RopeConfig`, None for one without rotation; see `ropes_of_layer_types`."""
    fields, family, name = _understood(config)
    return {
        label: None if block is None else _rope_fields(fields, family, name, block, label)
        for label, block in blocks_of_layers(fields, family, name).items()
    }


def is_nested(config: Any) -> bool:
    """Whether a config has, or its class writes, a block for each layer type."""
    fields, family, _ = _understood(config)
    stated = fields.get("rope_parameters")
    return bool(family.blocks) or (isinstance(stated, Mapping) and any(isinstance(v, Mapping) for v in stated.values()))


def _understood(config: Any) -> tuple[dict[str, Any], Family, str]:
    """The config of the part that is described, its family, and the name that it goes by."""
    fields = _text_part(_read(config))
    return fields, *_family(fields)


def _rope_fields(
    fields: Mapping[str, Any], family: Family, name: str, block: Mapping[str, Any], layer_type: str | None
) -> dict[str, Any]:
    """The fields of a RopeConfig, from the block of its layers and the config around it."""
    interleaved = _interleaved(fields, family, name)
    _check_axes(block, family, name)
    longest = max_position_embeddings_of(fields, family)
    head_dim = head_dim_of(fields, family, layer_type)
    rule = rule_of(block, family.meanings)
    if fields.get(TRAINED_KEY) is not None and rule is not None and TRAINED_KEY in rule.required_keys:
        block = {**block, TRAINED_KEY: fields[TRAINED_KEY]}  # Phi-3's place for it, which transformers prefers
    further = (*family.keys, *(_MROPE_KEYS if family.mrope else ()))
    scaling = scaling_of(block, rule, further_keys=further, max_position_embeddings=longest)
    in_rule = rule is not None and "partial_rotary_factor" in rule.optional_keys  # of the pairs of the whole head
    scaled = rule is not None
    rotary_dim = head_dim if in_rule else rotary_dim_of(fields, block, family, name, head_dim, scaled=scaled)
    theta = theta_of(fields, block, family)
    if family.fixed and (scaling is not None or theta != family.theta):
        raise RopeError(
            f"from_hf: transformers' {name} reads neither a rope block nor a theta, and this config states one.",
            facts={"scaling": scaling, "theta": theta, "the class's theta": family.theta},
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
    """The frequencies of each pair where they are no ladder: below 0, or one ladder that the axes share out."""
    if scaling is not None:
        raise RopeError(
            "from_hf: the frequencies of this class are no ladder, and a scaling of them is not described.",
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
    """The `rope_parameters` block of these fields of a RopeConfig; see `RopeConfig.to_hf`.

    `ladder` is the unscaled one that all axes share (not read where they restart).
    """
    if axes_restart and axes is not None:
        pairs = rotary_dim // 2
        if pairs % 2 or axes != axes_from_sections([pairs // 2] * 2) or scaling is not None:
            raise RopeError(
                "to_hf: transformers' `axial` block says height and width in equal halves, unscaled, and nothing else.",
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
        return _read_file(Path(config))
    if callable(getattr(config, "to_dict", None)) and not isinstance(config, type):
        return dict(config.to_dict())
    raise RopeError(
        "from_hf: `config` must be a path, a dict, or an object with `to_dict()`.",
        facts={"config": config},
        cure="Pass the folder of the checkpoint, its config.json, or its content.",
    )


def _read_file(path: Path) -> dict[str, Any]:
    file = path
    try:
        file = path / "config.json" if path.is_dir() else path
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise RopeError(
            "from_hf: there is no such config file.",
            facts={"path": str(file)},
            cure="Pass a config.json or the folder that holds it.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: of JSON, of UTF-8, of a NUL in the path
        raise RopeError(
            "from_hf: the config file cannot be read as JSON.",
            facts={"path": str(file), "error": str(error)},
            cure="Download the file again.",
        ) from None
    if not isinstance(content, dict):
        raise RopeError(
            "from_hf: a config.json holds one object.",
            facts={"path": str(file), "content": type(content).__name__},
            cure="Pass the model's config.json.",
        )
    return content


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """The text model's own config; it takes the composite's model_type where it states none."""
    for key in _NESTED:
        inner = config.get(key)
        if inner is not None and callable(getattr(inner, "to_dict", None)):
            inner = inner.to_dict()
        if isinstance(inner, Mapping):
            outer = {"model_type": config["model_type"]} if "model_type" in config else {}
            return _text_part({**outer, **inner})
    return config


def _family(fields: Mapping[str, Any]) -> tuple[Family, str]:
    """The model's family, and the name it goes by; never guessed."""
    model_type = fields.get("model_type")
    name = _name_of_part(fields, model_type) if isinstance(model_type, str) else None
    if name is not None and name in REFUSED:
        raise RopeError(
            f"from_hf: {model_type} is not described by a RopeConfig: {REFUSED[name]}.",
            facts={"model_type": model_type},
            cure="Use the model's own code for it.",
        )
    if name is not None:
        _check_holds(fields, FAMILIES[name], name)
        return FAMILIES[name], name
    flag = next((fields[key] for key in _FLAGS if isinstance(fields.get(key), bool)), None)
    if flag is not None:
        return Family(interleaved=flag, partial=1.0, axial=(0, 1) if _says_axial(fields) else ()), str(model_type)
    if isinstance(model_type, str) and model_type in NO_ROTATION:
        raise RopeError(
            f"from_hf: this model has no rotary embedding; {model_type} uses {NO_ROTATION[model_type]}.",
            facts={"model_type": model_type},
            cure="Choose a model with rotary embeddings, such as Llama, Mistral or Qwen.",
        )
    close = _misspelt(model_type)
    hint = f"Did you mean `{close}`? Else add" if close else "Add"
    raise RopeError(
        "from_hf: which features this model pairs is not known, and it is never guessed.",
        facts={"model_type": model_type},
        cure=f'{hint} "rope_interleave" to the config: true for {_WAYS[True]} or false for {_WAYS[False]}; '
        "or write RopeConfig(...) yourself.",
    )


def _name_of_part(fields: Mapping[str, Any], model_type: str) -> str | None:
    """The table's name of the part that these fields describe: released vision towers carry their composite's name."""
    vision = f"{model_type}_vision"
    if vision in FAMILIES and "vocab_size" not in fields and any(key in fields for key in _VISION_KEYS):
        return vision
    return family_name(model_type)


def _says_axial(fields: Mapping[str, Any]) -> bool:
    """Whether the config's block splits the pairs between height and width."""
    block = fields.get("rope_parameters") or fields.get("rope_scaling")
    return isinstance(block, Mapping) and block.get("rope_type", block.get("type")) == "axial"


def _check_axes(block: Mapping[str, Any], family: Family, name: str) -> None:
    """Refuse a block that speaks of several axes where it is not known how the class lays them out."""
    kind = block.get("rope_type", block.get("type"))
    if (kind == "axial" and not family.axial) or (kind == "mrope" and family.mrope is None):
        raise RopeError(
            f"from_hf: the block says that positions have several axes, and how {name} lays them out is not known.",
            facts={"rope_type": kind},
            cure="Write RopeConfig(..., axes=axes_from_sections([...])) yourself; "
            "for the vision tower of a known model pass its `vision_config` as it was released.",
        )


def _check_holds(fields: Mapping[str, Any], family: Family, name: str) -> None:
    """Refuse a config for which the family's description is not true, and say why."""
    for key, condition in family.holds.items():
        if not condition.holds(fields.get(key)):
            raise RopeError(
                f"from_hf: this {name} is not described by a RopeConfig: {condition.why_not}.",
                facts={key: fields.get(key)},
                cure="Use the model's own code for it, or write RopeConfig(...) for what holds of it.",
            )


def _misspelt(model_type: object) -> str | None:
    """The family that a model_type misspells; another version or another model of a like name is not one."""
    if not isinstance(model_type, str):
        return None
    close = difflib.get_close_matches(model_type, FAMILIES, n=1, cutoff=0.87)
    bare = model_type.rstrip("0123456789._-")
    return close[0] if close and close[0].rstrip("0123456789._-") != bare else None


def _interleaved(fields: Mapping[str, Any], family: Family, name: str) -> bool:
    for key in _FLAGS:
        stated = fields.get(key)
        if stated is None or stated == family.interleaved:
            continue
        if family.reads_flag and isinstance(stated, bool):
            return stated
        raise RopeError(
            f"from_hf: `{key}` contradicts how transformers' {name} pairs features, and that class does not read it.",
            facts={key: stated, "the class pairs": _WAYS[family.interleaved]},
            cure=f"Remove `{key}` for what transformers computes, or write RopeConfig(...) yourself.",
        )
    return family.interleaved
