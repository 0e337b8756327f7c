"""config.json of decoders, Llama's and ropewalk's own format, and of text classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.models.config import DecoderConfig, TextClassifierConfig
from ropewalk.models.encoding import EncodingConfig
from ropewalk.models.encodings import ENCODINGS
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.scaling import rule_from_dict
from ropewalk.rope.values import MOST_SIZE, check_whole, is_number

NATIVE, CLASSIFIER = "ropewalk", "ropewalk-classifier"
_OF_THEIR_OWN = {"rope", "sliding_window", "encoding", "extension"}
_OF_CLASSIFIERS = ("pooling", "max_length", "dropout", "embedding_range")


def config_to_native(config: DecoderConfig) -> dict[str, Any]:
    """Return a dict; `config_from_native` restores the config from it."""
    plain = {f.name: getattr(config, f.name) for f in fields(DecoderConfig) if f.name not in _OF_THEIR_OWN}
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
        extensions = tuple(
            one and Extension.registry[one["name"]](**_unnamed(one)) for one in config.get("extensions") or ()
        )
        return DecoderConfig(
            **{name: value for name, value in config.items() if name in named},
            rope=ropes,
            sliding_window=windows,
            encoding=_encoding_from_dict(config.get("encoding")),
            extension=extensions or None,
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RopeError(
            "load: a config of model_type ropewalk is damaged.",
            facts={"file": where, "error": f"{type(error).__name__}: {error}"},
            cure="Write it with ropewalk.save.",
        ) from error


def _encoding_to_dict(encoding: object) -> dict[str, Any] | None:
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
    values = _unnamed(content)
    if values.get("rope") is not None:
        values["rope"] = _rope_from_dict(values["rope"])
    return ENCODINGS[content["name"]](**values)


def _unnamed(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "name"}


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


def classifier_to_json(config: TextClassifierConfig) -> dict[str, Any]:
    """Return a classifier's config.json: labels in the order of the logits, and the encoder in ropewalk's own form."""
    encoder = {key: value for key, value in config_to_native(config).items() if key != "architectures"}
    return {
        "architectures": ["RopewalkTextClassifier"],
        "model_type": CLASSIFIER,
        "labels": list(config.labels),
        **{name: getattr(config, name) for name in _OF_CLASSIFIERS},
        "encoder": encoder,
    }


def classifier_from_json(content: Mapping[str, Any], where: str) -> TextClassifierConfig:
    """Return the config written by `classifier_to_json`; `where` names the file in errors."""
    try:
        encoder = config_from_native(content["encoder"], where)
        of_layers = [f.name for f in fields(DecoderConfig) if f.name not in ("residual_dropout", "tie_word_embeddings")]
        shared = {name: getattr(encoder, name) for name in of_layers}
        own = {name: content[name] for name in _OF_CLASSIFIERS}
        if isinstance(content["labels"], list):
            return TextClassifierConfig(**shared, **own, labels=content["labels"])
        reason = "`labels` is not a list"
    except (KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise RopeError(
        "TextClassifier: the config.json is damaged.",
        facts={"file": where, "error": reason},
        cure="Fetch the folder again, or train the classifier again.",
    )


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_NUMBERS = ("attention_dropout", "residual_dropout", "initializer_range")
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
    settings = {**_LLAMA, **config}
    _check_llama(settings, where)
    given = {name: value for name, value in settings.items() if name != "head_dim" or value is not None}
    sizes: dict[str, Any] = {
        name: settings.get(name, "missing") for name in (*_SIZES, "num_key_value_heads", "head_dim")
    }
    try:
        for name in _SIZES:
            check_whole("load", most=MOST_SIZE, optional=False, **{name: sizes[name]})
        numbers: dict[str, Any] = {name: _number(settings, name) for name in _NUMBERS}
        return DecoderConfig(
            **sizes,
            **numbers,
            norm_eps=_number(settings, "rms_norm_eps"),
            rope=RopeConfig.from_hf(given),
            attention_bias=bool(settings["attention_bias"]),
            mlp_bias=bool(settings["mlp_bias"]),
            tie_word_embeddings=bool(settings["tie_word_embeddings"]),
        )
    except RopeError as error:
        raise RopeError(error.rule, facts={"file": where, **error.facts}, cure=error.cure) from error


def config_to_hf(config: DecoderConfig) -> dict[str, Any]:
    """Return an equivalent config.json: Llama's if it expresses the decoder, else ropewalk's own form."""
    ropes = {_stated(rope) for rope in config.ropes}
    rope = ropes.pop()
    if ropes or rope is None or any(config.sliding_windows) or any(config.extensions):
        return config_to_native(config)
    with suppress(RopeError):  # transformers has no name for the rule, or Llama does not rotate so
        written = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **{name: getattr(config, name) for name in _SIZES},
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            "max_position_embeddings": rope.max_position_embeddings,
            "rope_parameters": rope.to_hf(),
            "tie_word_embeddings": config.tie_word_embeddings,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.mlp_bias,
            "attention_dropout": config.attention_dropout,
            "initializer_range": config.initializer_range,
            "use_cache": True,
            # our own key: transformers keeps it and ignores it
            **({"residual_dropout": config.residual_dropout} if config.residual_dropout else {}),
        }
        if config_from_hf(written, "config").rope == rope:
            return written
    return config_to_native(config)


def _stated(rope: RopeConfig | None) -> RopeConfig | None:
    """Return a rope without a length with LlamaConfig's default, unless its rule reads the length."""
    if rope is None or rope.max_position_embeddings is not None:
        return rope
    reads_length = rope.scaling is not None and rope.scaling.reads_max_length
    return rope if reads_length else replace(rope, max_position_embeddings=_LLAMA["max_position_embeddings"])


def half_split(config: DecoderConfig) -> DecoderConfig:
    """Return the config of the same model with its interleaved heads re-ordered to half-split."""
    rope = config.rope
    return replace(config, rope=tuple(map(half_split_rope, rope)) if isinstance(rope, tuple) else half_split_rope(rope))


def half_split_rope(rope: RopeConfig | None) -> RopeConfig | None:
    """Return the rope of a head after re-ordering its features from interleaved to half-split; keep a partial one."""
    whole = rope is not None and rope.interleaved and rope.rotary_dim == rope.head_dim
    return replace(rope, interleaved=False) if rope is not None and whole else rope


def _check_llama(settings: Mapping[str, Any], where: str) -> None:
    """Raise `RopeError` for another architecture than Llama's, whole or without its head, and for unknown parts."""

    def refuse(rule: str, cure: str, *keys: str) -> None:
        facts = {"file": where, **{key: settings.get(key) for key in keys}}
        raise RopeError(f"load: {rule}", facts=facts, cure=cure)

    model_type, architectures = settings.get("model_type"), settings.get("architectures")
    if model_type != "llama" or (architectures and architectures not in (["LlamaForCausalLM"], ["LlamaModel"])):
        code = bool(settings.get("auto_map"))
        refuse(
            "unknown architecture: rw.Decoder has Llama's layout"
            + (", and ropewalk never runs the code named in the config." if code else "."),
            "Load it with transformers, and pass the model to rw.attach or rw.doctor.",
            *("model_type", "architectures", *(["auto_map"] if code else [])),
        )
    if settings["hidden_act"] not in ("silu", "swish"):
        cure = "Use the model's own code for a different function."
        refuse("the feed-forward must be gated by silu.", cure, "hidden_act")
    for key in ("quantization_config", "rope_interleaved", "num_local_experts", "num_experts"):
        if settings.get(key):
            refuse(f"the config's `{key}` is not supported.", "Load it with transformers.", key)
    kinds = settings.get("layer_types")
    if kinds and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
        cure = "Remove `layer_types`, or load the model with transformers."
        refuse("all layers of a Llama attend to all earlier tokens, but `layer_types` differ.", cure, "layer_types")
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


def _number(settings: Mapping[str, Any], name: str) -> float:
    """Return a number, 0 for null (dropouts); raise `RopeError` with the key otherwise."""
    value = settings[name]
    if value is not None and not is_number(value):
        raise RopeError(
            f"load: the config's `{name}` must be a finite number.",
            facts={name: value},
            cure="Correct the key in config.json, or download the file again.",
        )
    return float(value or 0.0)
