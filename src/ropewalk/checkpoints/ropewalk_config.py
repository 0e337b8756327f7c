"""ropewalk's own config.json, for decoders that no Hugging Face family can say: every field of DecoderConfig by name.

`model_type` is "ropewalk"; `ropes` lists the distinct RopeConfigs and `rope_of_layer` gives each layer's number in that
list, or null. A scaling rule is its class name and its fields; so is an `encoding` other than a rope, by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ropewalk.attention.extensions import Extension
from ropewalk.encodings import ENCODINGS, EncodingConfig
from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.models.config import DecoderConfig
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import rule_from_dict

NATIVE = "ropewalk"
_OF_THEIR_OWN = {"rope", "sliding_window", "encoding", "extension"}


def config_to_native(config: DecoderConfig) -> dict[str, Any]:
    """The dict that `config_from_native` reads back as the same config."""
    plain = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in _OF_THEIR_OWN}
    distinct = list(dict.fromkeys(rope for rope in config.ropes if rope is not None))
    return {
        "architectures": ["RopewalkDecoder"],
        "model_type": NATIVE,
        **plain,
        "sliding_windows": list(config.sliding_windows),
        "ropes": [_rope_to_dict(rope) for rope in distinct],
        "rope_of_layer": [None if rope is None else distinct.index(rope) for rope in config.ropes],
        "encoding": _encoding_to_dict(config.encoding),
        "extensions": [
            None if one is None else {"name": type(one).__name__, **asdict(one)}
            for one in (config.extensions if any(config.extensions) else ())
        ],
    }


def config_from_native(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """A DecoderConfig from ropewalk's own form; `where` names it in errors."""
    named = {f.name for f in fields(DecoderConfig)} - _OF_THEIR_OWN
    try:
        distinct = [_rope_from_dict(rope) for rope in config["ropes"]]
        ropes = tuple(None if number is None else distinct[number] for number in config["rope_of_layer"])
        windows = tuple(config["sliding_windows"])
        extensions = tuple(_extension_from_dict(one) for one in config.get("extensions") or ()) or (None,)
        return DecoderConfig(
            **{name: value for name, value in config.items() if name in named},
            rope=ropes[0] if ropes and len(set(ropes)) == 1 else ropes,
            sliding_window=windows[0] if windows and len(set(windows)) == 1 else windows,
            encoding=_encoding_from_dict(config.get("encoding")),
            extension=extensions[0] if len(set(extensions)) == 1 else extensions,
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RopeError(
            "load: a config of model_type ropewalk is damaged.",
            facts={"file": where, "error": f"{type(error).__name__}: {error}"},
            cure="Write it with ropewalk.save.",
        ) from error


def _encoding_to_dict(encoding: str | EncodingConfig | None) -> dict[str, Any] | None:
    """An encoding's name and its fields; None for a rope, or for no position at all."""
    if not isinstance(encoding, EncodingConfig):
        return None
    plain = {f.name: getattr(encoding, f.name) for f in fields(encoding)}
    if isinstance(plain.get("rope"), RopeConfig):
        plain["rope"] = _rope_to_dict(plain["rope"])
    return {"name": encoding.name, **plain}


def _encoding_from_dict(content: Mapping[str, Any] | None) -> EncodingConfig | None:
    """The reverse of `_encoding_to_dict`; an unknown name or field raises KeyError or TypeError."""
    if content is None:
        return None
    values = {name: value for name, value in content.items() if name != "name"}
    if values.get("rope") is not None:
        values["rope"] = _rope_from_dict(values["rope"])
    return ENCODINGS[content["name"]](**values)


def _extension_from_dict(content: Mapping[str, Any] | None) -> Extension | None:
    """An extension from its class's name and its fields."""
    if content is None:
        return None
    return Extension.registry[content["name"]](**{name: value for name, value in content.items() if name != "name"})


def _rope_to_dict(rope: RopeConfig) -> dict[str, Any]:
    """A RopeConfig by its fields, its rule with its class name."""
    plain = {f.name: getattr(rope, f.name) for f in fields(rope) if f.name != "trained"}
    if rope.scaling is not None:
        plain["scaling"] = rope.scaling.to_dict()
    return plain if rope.trained is None else {**plain, "trained": asdict(rope.trained)}


def _rope_from_dict(content: Mapping[str, Any]) -> RopeConfig:
    """The reverse of `_rope_to_dict`; an unknown field or rule raises TypeError or KeyError."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
    rule: Mapping[str, Any] | None = content.get("scaling")
    if rule is not None:
        values["scaling"] = rule_from_dict(rule)
    if content.get("trained") is not None:
        values["trained"] = Trained(**content["trained"])
    return RopeConfig(**values)
