"""config.json of decoders: Llama's, and ropewalk's own format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.encoding import EncodingConfig
from ropewalk.layers.encodings import ENCODINGS
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.scaling import rule_from_dict
from ropewalk.rope.values import MOST_SIZE, as_whole, is_number

NATIVE = "ropewalk"
_OF_THEIR_OWN = {"rope", "sliding_window", "encoding", "extension"}


def config_to_native(config: DecoderConfig) -> dict[str, Any]:
    """Return a dict; `config_from_native` restores the config from it."""
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
    """Return a DecoderConfig from ropewalk's own form; `where` names it in errors."""
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
    """Return an encoding's name and fields; None for a rope, or for no positions."""
    if not isinstance(encoding, EncodingConfig):
        return None
    plain = {f.name: getattr(encoding, f.name) for f in fields(encoding)}
    if isinstance(plain.get("rope"), RopeConfig):
        plain["rope"] = _rope_to_dict(plain["rope"])
    return {"name": encoding.name, **plain}


def _encoding_from_dict(content: Mapping[str, Any] | None) -> EncodingConfig | None:
    """Return the encoding from `_encoding_to_dict`; raise KeyError or TypeError for an unknown name or field."""
    if content is None:
        return None
    values = {name: value for name, value in content.items() if name != "name"}
    if values.get("rope") is not None:
        values["rope"] = _rope_from_dict(values["rope"])
    return ENCODINGS[content["name"]](**values)


def _extension_from_dict(content: Mapping[str, Any] | None) -> Extension | None:
    """Return an extension from its class's name and its fields."""
    if content is None:
        return None
    return Extension.registry[content["name"]](**{name: value for name, value in content.items() if name != "name"})


def _rope_to_dict(rope: RopeConfig) -> dict[str, Any]:
    """Return a RopeConfig's fields, its rule with its class name."""
    plain = {f.name: getattr(rope, f.name) for f in fields(rope) if f.name != "trained"}
    if rope.scaling is not None:
        plain["scaling"] = rope.scaling.to_dict()
    return plain if rope.trained is None else {**plain, "trained": asdict(rope.trained)}


def _rope_from_dict(content: Mapping[str, Any]) -> RopeConfig:
    """Return the rope from `_rope_to_dict`; raise TypeError or KeyError for an unknown field or rule."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
    rule: Mapping[str, Any] | None = content.get("scaling")
    if rule is not None:
        values["scaling"] = rule_from_dict(rule)
    if content.get("trained") is not None:
        values["trained"] = Trained(**content["trained"])
    return RopeConfig(**values)


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_LLAMA: dict[str, Any] = {  # LlamaConfig's values of keys that a config.json leaves out
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "head_dim": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "residual_dropout": 0.0,  # our own key
}


def config_from_hf(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Return a DecoderConfig from a config.json of Llama or of ropewalk; `where` names the file in errors.

    A config's own code (`auto_map`) is never run.
    """
    if config.get("model_type") == NATIVE:
        return config_from_native(config, where)
    _check_llama(config, where)
    settings = {**_LLAMA, **config}
    _check_known(settings, where)
    sizes: dict[str, Any] = {name: _whole(settings, name, where) for name in _SIZES}
    heads, bias = settings["num_key_value_heads"], bool(settings["attention_bias"])
    return DecoderConfig(
        **sizes,
        num_key_value_heads=sizes["num_attention_heads"]
        if heads is None
        else _whole(settings, "num_key_value_heads", where),
        head_dim=None if settings["head_dim"] is None else _whole(settings, "head_dim", where),
        rope=_rope(settings, where),
        norm_eps=_number(settings, "rms_norm_eps", where),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bool(settings["mlp_bias"]),
        tie_word_embeddings=bool(settings["tie_word_embeddings"]),
        attention_dropout=_number(settings, "attention_dropout", where),
        residual_dropout=_number(settings, "residual_dropout", where),
        initializer_range=_number(settings, "initializer_range", where),
    )


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return an equivalent config.json: Llama's if loading it gives an equal config, else ropewalk's own form."""
    stated = _stated(config)
    written = _write(stated)
    if written is not None:
        with suppress(RopeError):  # Llama cannot express it
            if _layerwise(config_from_hf(written, "config")) == _layerwise(stated):
                return written
    return config_to_native(config)


def half_split(config: DecoderConfig) -> DecoderConfig:
    """Return the config of the same model with its interleaved heads re-ordered to half-split."""
    rope = config.rope
    return replace(config, rope=tuple(map(half_split_rope, rope)) if isinstance(rope, tuple) else half_split_rope(rope))


def half_split_rope(rope: RopeConfig | None) -> RopeConfig | None:
    """Return the rope of a head after re-ordering its features from interleaved to half-split; keep a partial one."""
    whole = rope is not None and rope.interleaved and rope.rotary_dim == rope.head_dim
    return replace(rope, interleaved=False) if rope is not None and whole else rope


def _check_llama(config: Mapping[str, Any], where: str) -> None:
    """Raise `RopeError` for another architecture than Llama's, whole or without its head."""
    model_type, architectures = config.get("model_type"), config.get("architectures")
    if model_type != "llama" or (architectures and architectures not in (["LlamaForCausalLM"], ["LlamaModel"])):
        own = {"auto_map": config["auto_map"]} if config.get("auto_map") else {}
        raise RopeError(
            "load: unknown architecture: rw.Decoder has Llama's layout"
            + (", and ropewalk never runs the code named in the config." if own else "."),
            facts={"file": where, "model_type": model_type, "architectures": architectures, **own},
            cure="Load it with transformers, and pass the model to rw.attach or rw.doctor.",
        )


def _check_known(settings: Mapping[str, Any], where: str) -> None:
    """Raise `RopeError` for keys that would change the computation and are not supported."""
    if settings["hidden_act"] not in ("silu", "swish"):
        raise RopeError(
            "load: the feed-forward must be gated by silu.",
            facts={"file": where, "hidden_act": settings["hidden_act"]},
            cure="Use the model's own code for a different function.",
        )
    for key in ("quantization_config", "rope_interleaved", "num_local_experts", "num_experts"):
        if settings.get(key):
            raise RopeError(
                f"load: the config's `{key}` is not supported.",
                facts={"file": where, key: settings[key]},
                cure="Load it with transformers.",
            )
    kinds = settings.get("layer_types")
    if kinds and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
        raise RopeError(
            "load: all layers of a Llama attend to all earlier tokens, but `layer_types` differ.",
            facts={"file": where, "layer_types": kinds},
            cure="Remove `layer_types`, or load the model with transformers.",
        )
    block = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    for holder in (settings, block if isinstance(block, Mapping) else {}):
        fraction = holder.get("partial_rotary_factor")
        # p-RoPE's fraction is the share of pairs that rotate in the whole head; transformers' rule has that meaning
        if fraction not in (None, 1, 1.0) and holder.get("rope_type") != "proportional":
            raise RopeError(
                "load: Llama rotates the whole head, but the config rotates a part.",
                facts={"file": where, "partial_rotary_factor": fraction},
                cure="Use the model's own code; RopeConfig.from_hf supports the rope itself.",
            )


def _rope(settings: Mapping[str, Any], where: str) -> RopeConfig:
    """Return the rope of every layer."""
    config = dict(settings)
    if config["head_dim"] is None:
        config.pop("head_dim")
    try:
        return RopeConfig.from_hf(config)
    except RopeError as error:
        raise RopeError(error.rule, facts={"file": where, **error.facts}, cure=error.cure) from error


def _whole(settings: Mapping[str, Any], name: str, where: str) -> int:
    """Return a whole number from 1; raise `RopeError` with the key otherwise."""
    wanted = f"a whole number from 1 to {MOST_SIZE:,}"
    return int(_checked(settings, name, where, lambda value: 1 <= (as_whole(value) or 0) <= MOST_SIZE, wanted))


def _number(settings: Mapping[str, Any], name: str, where: str) -> float:
    """Return a number, 0 for null (dropouts); raise `RopeError` with the key otherwise."""
    value = _checked(settings, name, where, lambda v: v is None or is_number(v), "a finite number")
    return float(value or 0.0)


def _checked(settings: Mapping[str, Any], name: str, where: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    value = settings.get(name)
    if isinstance(value, bool) or not fits(value):
        raise RopeError(
            f"load: the config's `{name}` must be {wanted}.",
            facts={"file": where, name: value if name in settings else "missing"},
            cure="Correct the key in config.json, or download the file again.",
        )
    return value


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    """Return a config.json of Llama for `config`, possibly incomplete; None without a rope."""
    rope = next((rope for rope in config.ropes if rope is not None), None)
    if rope is None:
        return None
    written: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{name: getattr(config, name) for name in _SIZES},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": rope.max_position_embeddings,
        "rope_parameters": _rope_block(rope),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "use_cache": True,
    }
    if config.residual_dropout:
        written["residual_dropout"] = config.residual_dropout  # our own key: transformers keeps it and ignores it
    return written


def _rope_block(rope: RopeConfig) -> dict[str, Any] | None:
    """Return `rope_parameters`, or None if Hugging Face has no form for this rope."""
    try:
        return rope.to_hf()
    except RopeError:
        return None


def _stated(config: DecoderConfig) -> DecoderConfig:
    """Return `config` with LlamaConfig's default length in ropes without one, if that changes nothing."""

    def stated(rope: RopeConfig | None) -> RopeConfig | None:
        if rope is None or rope.max_position_embeddings is not None:
            return rope
        reads_length = rope.scaling is not None and rope.scaling.reads_max_length
        return rope if reads_length else replace(rope, max_position_embeddings=_LLAMA["max_position_embeddings"])

    rope = config.rope
    return replace(config, rope=tuple(map(stated, rope)) if isinstance(rope, tuple) else stated(rope))


def _layerwise(config: DecoderConfig) -> dict[str, Any]:
    """Return all fields of a config, layer by layer, for comparing two configs."""
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    return {**plain, "rope": config.ropes, "sliding_window": config.sliding_windows, "extension": config.extensions}
