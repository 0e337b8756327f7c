"""Hugging Face configs: `from_hf` reads one, `to_hf` writes its `rope_parameters` block.

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
from ropewalk.rope.config import RopeConfig, axes_from_sections
from ropewalk.rope.dimensions import (
    axes_of,
    fraction_of,
    head_dim_of,
    max_position_embeddings_of,
    rotary_dim_of,
    sections_of,
    theta_of,
)
from ropewalk.rope.families import FAMILIES, REFUSED, Family, family_name
from ropewalk.rope.layer_types import block_of_layer
from ropewalk.rope.rope_parameters import block_of, rope_type_of, scaling_of

_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_FLAGS = ("rope_interleave", "rope_interleaved")
_TRAINED = "original_max_position_embeddings"
_MROPE_KEYS = ("mrope_section", "mrope_interleaved", "interleaved")
_WAYS = {True: "(0,1), (2,3), ...", False: "(i, i + rotary_dim/2)"}


def from_hf(config: str | PathLike[str] | Mapping[str, Any] | Any, *, layer_type: str | None = None) -> RopeConfig:
    """Read a Hugging Face config into a `RopeConfig`.

    - `config`: the path of a config.json or of its folder, a dict, or any object with `to_dict()` (a transformers
      config). Of a composite (multimodal) config the text part is read; for a vision tower pass its `vision_config`,
      with the model_type that transformers 5 writes there, such as "qwen2_vl_vision".
    - `layer_type`: chooses among the layer types of a model with several thetas, for example "sliding_attention".

    Pairing follows `model_type` as in transformers; with `"rope_interleave": true` or `false` in the config it may be
    any. For multi-head latent attention (DeepSeek) the result describes the slice of qk_rope_head_dim features.
    Raises `RopeError` for anything unknown, missing or impossible, and for a layer without rotation. What acts in
    attention and not in the rotation (DeepSeek's softmax mscale, Ministral's llama_4_scaling_beta) is not described.
    Source: transformers 5.23, `modeling_rope_utils` and each model's own class.

    >>> rope = from_hf({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048})
    >>> rope.head_dim, rope.rotary_dim, rope.interleaved
    (256, 64, True)
    """
    fields = _text_part(_read(config))
    family, name = _family(fields)
    interleaved = _interleaved(fields, family, name)
    block = block_of_layer(fields, family, name, layer_type)
    longest = max_position_embeddings_of(fields, family)
    head_dim = head_dim_of(fields, family, layer_type)
    rope_type = rope_type_of(block, yarn_is_longrope=family.yarn_is_longrope, dynamic_alpha=family.dynamic_alpha)
    if fields.get(_TRAINED) is not None and rope_type in ("yarn", "longrope", "llama3"):
        block = {**block, _TRAINED: fields[_TRAINED]}  # Phi-3's place for it, which transformers prefers
    further = (*family.keys, *(_MROPE_KEYS if family.mrope else ()))
    scaling = scaling_of(block, rope_type, further_keys=further, max_position_embeddings=longest)
    in_rule = rope_type == "proportional"  # its fraction leaves the pairs of the whole head as they are
    rotary_dim = head_dim if in_rule else rotary_dim_of(fields, block, family, name, head_dim)
    return RopeConfig(
        head_dim=head_dim,
        interleaved=interleaved,
        theta=theta_of(fields, block, family),
        rotary_dim=rotary_dim,
        scaling=scaling,
        max_position_embeddings=longest,
        axes=axes_of(block, family, name, rotary_dim // 2),
        axes_restart=family.axial,
    )


def to_hf(config: RopeConfig) -> dict[str, Any]:
    """The `rope_parameters` block (transformers 5 spelling) that says what `config` says.

    The block holds theta, the scaling rule, `partial_rotary_factor` where only a part turns, and `mrope_section` with
    `mrope_interleaved` where several axes share a ladder. Pairing, head_dim and max_position_embeddings have other
    places in a config.json, so the way back is `from_hf({**base_config, "rope_parameters": block})`; for a model with
    several thetas the block goes under its layer type. NTK, ABF, Resonance, the paper's YaRN and its dynamic NTK have
    no name in transformers: they become the block that computes the same frequencies there.
    Raises `RopeError` for what no block can say.

    >>> to_hf(RopeConfig(head_dim=128, interleaved=False, theta=1e6, rotary_dim=64))
    {'rope_type': 'default', 'rope_theta': 1000000.0, 'partial_rotary_factor': 0.5}
    """
    if config.axes_restart and config.axes is not None:
        if config.pairs % 2 or config.axes != axes_from_sections([config.pairs // 2] * 2) or config.scaling is not None:
            raise RopeError(
                "to_hf: transformers' `axial` block says height and width in equal halves, unscaled, and nothing else.",
                facts={"axes": config.axes, "scaling": config.scaling},
                cure="This config has no block in transformers.",
            )
        return {"rope_type": "axial", "rope_theta": config.theta}
    rotary_dim = 2 * config.pairs
    block = block_of(config.scaling, config.theta, rotary_dim, config.max_position_embeddings)
    if rotary_dim != config.head_dim:
        block["partial_rotary_factor"] = fraction_of(rotary_dim, config.head_dim)
    if config.axes is not None:
        block |= sections_of(config.axes, config.num_axes)
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
    name = family_name(model_type) if isinstance(model_type, str) else None
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
        return Family(interleaved=flag, partial=1.0), str(model_type)
    close = _misspelt(model_type)
    hint = f"Did you mean `{close}`? Else add" if close else "Add"
    raise RopeError(
        "from_hf: which features this model pairs is not known, and it is never guessed.",
        facts={"model_type": model_type},
        cure=f'{hint} "rope_interleave" to the config: true for {_WAYS[True]} or false for {_WAYS[False]}; '
        "or write RopeConfig(...) yourself.",
    )


def _check_holds(fields: Mapping[str, Any], family: Family, name: str) -> None:
    """Refuse a config for which the family's description is not true, and say why."""
    for key, (fits, why_not) in family.holds.items():
        if not fits(fields.get(key)):
            raise RopeError(
                f"from_hf: this {name} is not described by a RopeConfig: {why_not}.",
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
