"""config.json of decoders: Hugging Face's families as in transformers 5.23, and ropewalk's own format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import DECODERS, FAMILIES, DecoderShape, Trained
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.encodings import ENCODINGS, EncodingConfig
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.scaling import rule_from_dict
from ropewalk.rope.values import MOST_SIZE, MOST_TOKENS, as_whole, is_number

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
_DEFAULT_LENGTH: int = DECODERS["llama"].defaults["max_position_embeddings"]  # for a RopeConfig without a length


def config_from_hf(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Return a DecoderConfig from the contents of a config.json; `where` names the file in errors."""
    model_type = config.get("model_type")
    if model_type == NATIVE:
        return config_from_native(config, where)
    shape = _shape(config, where)
    settings = {**shape.defaults, **config}
    _check_known(settings, where)
    sizes: dict[str, Any] = {name: _whole(settings, name, where) for name in _SIZES}
    layers = sizes["num_hidden_layers"]
    heads = settings["num_key_value_heads"]
    bias = bool(settings["attention_bias"]) if shape.qkv_bias is None else shape.qkv_bias
    return DecoderConfig(
        **sizes,
        num_key_value_heads=sizes["num_attention_heads"]
        if heads is None
        else _whole(settings, "num_key_value_heads", where),
        head_dim=None if settings["head_dim"] is None else _whole(settings, "head_dim", where),
        rope=_ropes(settings, FAMILIES[str(model_type)].theta, layers, where),
        sliding_window=_windows(settings, shape, layers, where),
        norm_eps=_number(settings, "rms_norm_eps", where),
        qk_norm=shape.qk_norm,
        attention_bias=bias,
        output_bias=bias and shape.qkv_bias is None,
        mlp_bias=bool(settings["mlp_bias"]) and shape.mlp_bias,
        tie_word_embeddings=bool(settings["tie_word_embeddings"]),
        attention_dropout=_number(settings, "attention_dropout", where),
        residual_dropout=_number(settings, "residual_dropout", where),
        initializer_range=_number(settings, "initializer_range", where),
    )


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return an equivalent config.json: of the first family that can express it, else in ropewalk's own form.

    A family can express it if loading the written config gives an equal one.
    """
    stated = _stated(config)
    for model_type in DECODERS:
        written = _write(stated, model_type)
        if written is None:
            continue
        try:
            if _layerwise(config_from_hf(written, "config")) == _layerwise(stated):
                return written
        except RopeError:  # this family cannot express it
            continue
    return config_to_native(config)


def half_split(config: DecoderConfig) -> DecoderConfig:
    """Return the config of the same model with its interleaved heads re-ordered to half-split."""
    rope = config.rope
    return replace(config, rope=tuple(map(half_split_rope, rope)) if isinstance(rope, tuple) else half_split_rope(rope))


def half_split_rope(rope: RopeConfig | None) -> RopeConfig | None:
    """Return the rope of a head after re-ordering its features from interleaved to half-split; keep a partial one."""
    whole = rope is not None and rope.interleaved and rope.rotary_dim == rope.head_dim
    return replace(rope, interleaved=False) if rope is not None and whole else rope


def _shape(config: Mapping[str, Any], where: str) -> DecoderShape:
    """Return the shape of a config's family; raise `RopeError` for an unknown architecture.

    A config's own code (`auto_map`) is never run, so known families with such code are accepted.
    """
    model_type, architectures = config.get("model_type"), config.get("architectures")
    shape = DECODERS.get(model_type) if isinstance(model_type, str) else None
    if shape is None or (architectures and architectures != [shape.architecture]):
        # A bare base model's architecture ("LlamaModel") has the same weights without a head.
        base = shape is not None and architectures == [shape.architecture.removesuffix("ForCausalLM") + "Model"]
        if shape is None or not base:
            own = config.get("auto_map")
            rule = "load: unknown architecture."
            if own:
                rule = "load: unknown architecture, and ropewalk never runs the code named in the config."
            raise RopeError(
                rule,
                facts={"file": where, "model_type": model_type, "architectures": architectures}
                | ({"auto_map": own} if own else {}),
                cure=f"Choose a known one: {', '.join(f'{k} ({f.architecture})' for k, f in DECODERS.items())}.",
            )
    return shape


def _check_known(settings: Mapping[str, Any], where: str) -> None:
    """Raise `RopeError` for keys that would change the computation and are not supported."""
    if settings["hidden_act"] not in ("silu", "swish"):
        raise RopeError(
            "load: the feed-forward of these families must be gated by silu.",
            facts={"file": where, "hidden_act": settings["hidden_act"]},
            cure="Use the model's own code for a different function.",
        )
    for key in ("quantization_config", "rope_interleaved", "num_local_experts", "num_experts"):
        if settings.get(key):
            raise RopeError(
                f"load: the config's `{key}` is not supported.",
                facts={"file": where, key: settings[key]},
                cure="Use weights without quantisation or experts; GGUF files are dequantised.",
            )
    block = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    for holder in (settings, block if isinstance(block, Mapping) else {}):
        fraction = holder.get("partial_rotary_factor")
        # p-RoPE's fraction is the share of pairs that rotate in the whole head; transformers' rule has that meaning
        if fraction not in (None, 1, 1.0) and holder.get("rope_type") != "proportional":
            raise RopeError(
                "load: these families rotate the whole head, but the config rotates a part.",
                facts={"file": where, "partial_rotary_factor": fraction},
                cure="Use the model's own code; RopeConfig.from_hf supports the rope itself.",
            )


def _ropes(
    settings: Mapping[str, Any], theta: float, layers: int, where: str
) -> RopeConfig | tuple[RopeConfig | None, ...]:
    """Return the rope of every layer, or one for all."""
    config = dict(settings)
    block = config.get("rope_parameters") or config.get("rope_scaling")
    if config.get("rope_theta") is None and not (isinstance(block, Mapping) and block.get("rope_theta") is not None):
        config["rope_theta"] = theta
    if config["head_dim"] is None:
        config.pop("head_dim")
    try:
        rope = RopeConfig.from_hf(config)
    except RopeError as error:
        raise RopeError(error.rule, facts={"file": where, **error.facts}, cure=error.cure) from error
    if "no_rope_layers" not in settings:
        return rope
    return tuple(rope if rotates else None for rotates in _rotating_layers(settings, layers, where))


def _rotating_layers(settings: Mapping[str, Any], layers: int, where: str) -> list[bool]:
    """Return whether each layer of a SmolLM3 rotates; by default all but every fourth."""
    flags = settings["no_rope_layers"]
    if flags is None:
        interval = _whole(settings, "no_rope_layer_interval", where)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(flags, list) or len(flags) < layers:
        raise RopeError(
            "load: `no_rope_layers` needs one entry per layer: 1 with rope, 0 without.",
            facts={"file": where, "no_rope_layers": flags, "num_hidden_layers": layers},
            cure="Correct it, or remove it so that no_rope_layer_interval applies.",
        )
    return [bool(flag) for flag in flags[:layers]]


def _windows(
    settings: Mapping[str, Any], shape: DecoderShape, layers: int, where: str
) -> int | tuple[int | None, ...] | None:
    """Return the sliding window of every layer, or one for all."""
    kinds = settings.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise RopeError(
            "load: `layer_types` must be a list of names, one per layer.",
            facts={"file": where, "layer_types": kinds},
            cure="Correct the list in config.json.",
        )
    if shape.windows != "by layer type":
        if kinds and len(set(kinds)) > 1:
            raise RopeError(
                f"load: all layers of a {settings['model_type']} model are alike, but `layer_types` differ.",
                facts={"file": where, "layer_types": kinds},
                cure="Remove `layer_types`, or make all entries equal.",
            )
        if settings.get("sliding_window") is None or shape.windows == "none":
            return None
        return _whole(settings, "sliding_window", where, most=MOST_TOKENS)
    window = settings["sliding_window"] if settings["use_sliding_window"] else None
    if kinds is None and window is not None:
        if "no_rope_layers" in shape.defaults:
            rotating = _rotating_layers(settings, layers, where)
            kinds = ["full_attention" if rotates else "sliding_attention" for rotates in rotating]
        else:
            first = _whole(settings, "max_window_layers", where, least=0)
            kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    kinds = kinds or ["full_attention"] * layers
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise RopeError(
            "load: `layer_types` must contain full_attention or sliding_attention for each layer.",
            facts={"file": where, "layer_types": kinds, "num_hidden_layers": layers},
            cure="Correct the list in config.json.",
        )
    if "sliding_attention" not in kinds:
        return None
    if window is None:
        raise RopeError(
            "load: `layer_types` has sliding layers, but no window is set or used.",
            facts={"file": where, **{key: settings[key] for key in ("sliding_window", "use_sliding_window")}},
            cure="Set sliding_window and use_sliding_window, or make every layer full_attention.",
        )
    size = _whole(settings, "sliding_window", where, most=MOST_TOKENS)
    windows = tuple(size if kind == "sliding_attention" else None for kind in kinds)
    return windows if None in windows else size


def _whole(settings: Mapping[str, Any], name: str, where: str, *, least: int = 1, most: int = MOST_SIZE) -> int:
    """Return a whole number from `least` to `most`; raise `RopeError` with the key otherwise."""
    wanted = f"a whole number from {least} to {most:,}"
    return int(_checked(settings, name, where, lambda value: least <= (as_whole(value) or 0) <= most, wanted))


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


def _write(config: DecoderConfig, model_type: str) -> dict[str, Any] | None:
    """Return a config.json of this family for `config`, possibly incomplete; None without a rope."""
    shape, rope = DECODERS[model_type], next((rope for rope in config.ropes if rope is not None), None)
    if rope is None:
        return None
    windows = set(config.sliding_windows)
    size = next((window for window in config.sliding_windows if window is not None), None)
    written: dict[str, Any] = {
        "architectures": [shape.architecture],
        "model_type": model_type,
        **{name: getattr(config, name) for name in _SIZES},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": rope.max_position_embeddings,
        "rope_parameters": _rope_block(rope),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "use_cache": True,
    }
    if config.residual_dropout:
        written["residual_dropout"] = config.residual_dropout  # our own key: transformers keeps it and ignores it
    if shape.qkv_bias is None:
        written["attention_bias"] = config.attention_bias
    if shape.mlp_bias:
        written["mlp_bias"] = config.mlp_bias
    if shape.windows == "all":
        written["sliding_window"] = size
    if shape.windows == "by layer type":
        kinds = ["full_attention" if window is None else "sliding_attention" for window in config.sliding_windows]
        written |= {"use_sliding_window": windows != {None}, "sliding_window": size, "layer_types": kinds}
    if "no_rope_layers" in shape.defaults:
        written["no_rope_layers"] = [int(rope is not None) for rope in config.ropes]
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
        return rope if reads_length else replace(rope, max_position_embeddings=_DEFAULT_LENGTH)

    rope = config.rope
    return replace(config, rope=tuple(map(stated, rope)) if isinstance(rope, tuple) else stated(rope))


def _layerwise(config: DecoderConfig) -> dict[str, Any]:
    """Return all fields of a config, layer by layer, for comparing two configs."""
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    return {**plain, "rope": config.ropes, "sliding_window": config.sliding_windows, "extension": config.extensions}
