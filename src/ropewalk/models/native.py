"""ropewalk's own config.json, for decoders that no Hugging Face family can say: every field of DecoderConfig by name.

`model_type` is "ropewalk"; `ropes` lists the distinct RopeConfigs and `rope_of_layer` gives each layer's number in that
list, or null. A scaling rule is its class name and its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.models.decoder import DecoderConfig
from ropewalk.rope import scaling
from ropewalk.rope.config import RopeConfig

NATIVE = "ropewalk"
_RULES: dict[str, type[scaling.Scaling]] = {
    rule.__name__: rule
    for rule in (
        scaling.Linear,
        scaling.NTK,
        scaling.DynamicNTK,
        scaling.YaRN,
        scaling.LongRoPE,
        scaling.Llama3,
        scaling.Proportional,
    )
}
_TUPLES = ("axes", "short_factor", "long_factor")


def config_to_native(config: DecoderConfig) -> dict[str, Any]:
    """The dict that `config_from_native` reads back as the same config."""
    plain = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in ("rope", "sliding_window")}
    distinct = list(dict.fromkeys(rope for rope in config.ropes if rope is not None))
    return {
        "architectures": ["RopewalkDecoder"],
        "model_type": NATIVE,
        **plain,
        "sliding_windows": list(config.sliding_windows),
        "ropes": [_rope_to_dict(rope) for rope in distinct],
        "rope_of_layer": [None if rope is None else distinct.index(rope) for rope in config.ropes],
    }


def config_from_native(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """A DecoderConfig from ropewalk's own form; `where` names it in errors."""
    named = {f.name for f in fields(DecoderConfig)} - {"rope", "sliding_window"}
    try:
        distinct = [_rope_from_dict(rope) for rope in config["ropes"]]
        ropes = tuple(None if number is None else distinct[number] for number in config["rope_of_layer"])
        windows = tuple(config["sliding_windows"])
        return DecoderConfig(
            **{name: value for name, value in config.items() if name in named},
            rope=ropes[0] if ropes and len(set(ropes)) == 1 else ropes,
            sliding_window=windows[0] if windows and len(set(windows)) == 1 else windows,
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RopeError(
            "load: a config of model_type ropewalk is damaged.",
            facts={"file": where, "error": f"{type(error).__name__}: {error}"},
            cure="Write it with ropewalk.save.",
        ) from error


def _rope_to_dict(rope: RopeConfig) -> dict[str, Any]:
    """A RopeConfig by its fields, its rule with its class name."""
    plain = {f.name: getattr(rope, f.name) for f in fields(rope)}
    if rope.scaling is not None:
        plain["scaling"] = {"rule": type(rope.scaling).__name__, **asdict(rope.scaling)}  # type: ignore[call-overload]
    return plain


def _rope_from_dict(content: Mapping[str, Any]) -> RopeConfig:
    """The reverse of `_rope_to_dict`; an unknown field or rule raises TypeError or KeyError."""
    values: dict[str, Any] = {name: tuple(v) if name in _TUPLES and v is not None else v for name, v in content.items()}
    rule: Mapping[str, Any] | None = values.get("scaling")
    if rule is not None:
        given = {name: tuple(v) if name in _TUPLES else v for name, v in rule.items() if name != "rule"}
        values["scaling"] = _RULES[rule["rule"]](**given)
    return RopeConfig(**values)
