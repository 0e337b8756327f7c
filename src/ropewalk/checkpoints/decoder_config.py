"""config.json of decoders, Llama's and ropewalk's own format, and of text classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from ropewalk.checkpoints.sources import CLASSIFIER, NATIVE
from ropewalk.errors import RopeError, library_errors
from ropewalk.families import Trained
from ropewalk.models.config import SIZES, DecoderConfig, TextClassifierConfig
from ropewalk.models.encodings import ENCODINGS
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.scaling import rule_from_dict
from ropewalk.rope.values import MOST_SIZE, check_whole, number

_OF_THEIR_OWN = {"rope", "sliding_window", "encoding", "extension"}
_OF_CLASSIFIERS = ("labels", "pooling", "max_length", "dropout", "embedding_range")


def config_to_native(config: DecoderConfig) -> dict[str, Any]:
    """Return a dict; `config_from_native` restores the config from it."""
    distinct = list(dict.fromkeys(rope for rope in config.ropes if rope is not None))
    return {
        "architectures": ["RopewalkDecoder"],
        "model_type": NATIVE,
        **{f.name: getattr(config, f.name) for f in fields(DecoderConfig) if f.name not in _OF_THEIR_OWN},
        "sliding_windows": list(config.sliding_windows),
        "ropes": [_to_dict(rope) for rope in distinct],
        "rope_of_layer": [None if rope is None else distinct.index(rope) for rope in config.ropes],
        "encoding": _to_dict(config.encoding),
        "extensions": [_to_dict(one) for one in (config.extensions if any(config.extensions) else ())],
    }


def config_from_native(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Return a DecoderConfig from ropewalk's own form; `where` names it in errors."""
    named = {f.name for f in fields(DecoderConfig)} - _OF_THEIR_OWN
    rule = "load: a config of model_type ropewalk is damaged."
    with library_errors(rule, facts={"file": where}, cure="Write it with ropewalk.save."):
        distinct = [rope_from_dict(rope) for rope in config["ropes"]]
        extensions = tuple(_from_dict(one, Extension.registry) for one in config.get("extensions") or ())
        return DecoderConfig(
            **{name: value for name, value in config.items() if name in named},
            rope=tuple(None if number is None else distinct[number] for number in config["rope_of_layer"]),
            sliding_window=tuple(config["sliding_windows"]),
            encoding=_from_dict(config.get("encoding"), ENCODINGS),
            extension=extensions or None,
        )


def _to_dict(record: Any) -> Any:
    """Return the fields of a rope, and of an encoding or an extension with its name; None for None."""
    if record is None:
        return None
    content = {f.name: getattr(record, f.name) for f in fields(record)}
    if not isinstance(record, RopeConfig):
        rope = {"rope": _to_dict(content["rope"])} if "rope" in content else {}
        return {"name": getattr(record, "name", type(record).__name__), **content, **rope}
    content["scaling"] = record.scaling and record.scaling.to_dict()
    trained = content.pop("trained")
    return content if trained is None else {**content, "trained": asdict(trained)}


def _from_dict(content: Mapping[str, Any] | None, known: Mapping[str, Any]) -> Any:
    """Return the encoding or extension of `_to_dict`."""
    if content is None:
        return None
    values = {name: value for name, value in content.items() if name != "name"}
    if values.get("rope") is not None:
        values["rope"] = rope_from_dict(values["rope"])
    return known[content["name"]](**values)


def rope_from_dict(content: Mapping[str, Any]) -> RopeConfig:
    """Return the rope of `_to_dict`; raise TypeError or KeyError for an unknown field or rule."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
    for name, read in (("scaling", rule_from_dict), ("trained", lambda facts: Trained(**facts))):
        if values.get(name) is not None:
            values[name] = read(values[name])
    return RopeConfig(**values)


def classifier_to_json(config: TextClassifierConfig) -> dict[str, Any]:
    """Return a classifier's config.json: labels in the order of the logits, and the encoder in ropewalk's own form."""
    encoder = {key: value for key, value in config_to_native(config).items() if key != "architectures"}
    own = {name: getattr(config, name) for name in _OF_CLASSIFIERS}
    own["labels"] = list(config.labels)
    return {"architectures": ["RopewalkTextClassifier"], "model_type": CLASSIFIER, **own, "encoder": encoder}


def classifier_from_json(content: Mapping[str, Any], where: str) -> TextClassifierConfig:
    """Return the config written by `classifier_to_json`; `where` names the file in errors."""
    rule, cure = "TextClassifier: the config.json is damaged.", "Fetch the folder again, or train the classifier again."
    with library_errors(rule, facts={"file": where}, cure=cure):
        encoder = config_from_native(content["encoder"], where)
        own = {name: content[name] for name in _OF_CLASSIFIERS}
        if not isinstance(own["labels"], list):
            raise RopeError(rule, facts={"file": where, "labels": own["labels"]}, cure=cure)
        shared = {
            f.name: getattr(encoder, f.name) for f in fields(TextClassifierConfig) if f.init and f.name not in own
        }
        return TextClassifierConfig(**shared, **own)


_NUMBERS = ("attention_dropout", "residual_dropout", "initializer_range")
_FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings")
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
_UNSUPPORTED = ("quantization_config", "rope_interleaved", "num_local_experts", "num_experts")
_ELSEWHERE = "Load it with transformers, and pass the model to rw.attach or rw.doctor."


def config_from_hf(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Return a DecoderConfig from a config.json of Llama or of ropewalk; `where` names the file in errors.

    A config's own code (`auto_map`) is never run.
    """
    if config.get("model_type") == NATIVE:
        return config_from_native(config, where)
    settings = {**_LLAMA, **config}
    _check_llama(settings, where)
    given = {name: value for name, value in settings.items() if name != "head_dim" or value is not None}
    try:
        check_whole("load", most=MOST_SIZE, optional=False, **{name: settings.get(name, "missing") for name in SIZES})
        values: dict[str, Any] = {name: settings[name] for name in (*SIZES, "num_key_value_heads", "head_dim")}
        values |= {name: bool(settings[name]) for name in _FLAGS}
        for name in (*_NUMBERS, "rms_norm_eps"):
            values[name] = 0.0 if settings[name] is None else number(settings[name], name)
        return DecoderConfig(norm_eps=values.pop("rms_norm_eps"), rope=RopeConfig.from_hf(given), **values)
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
            **{name: getattr(config, name) for name in (*SIZES, "num_key_value_heads", "head_dim")},
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            "max_position_embeddings": rope.max_position_embeddings,
            "rope_parameters": rope.to_hf(),
            **{name: getattr(config, name) for name in ("tie_word_embeddings", "attention_bias", "mlp_bias")},
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
    """Return a rope without a length with LlamaConfig's default, unless its frequencies depend on lengths."""
    if rope is None or rope.max_position_embeddings is not None or rope.needs_seq_len:
        return rope
    return replace(rope, max_position_embeddings=_LLAMA["max_position_embeddings"])


def half_split(config: DecoderConfig) -> DecoderConfig:
    """Return the config of the same model with its interleaved heads re-ordered to half-split."""
    rope = config.rope
    ropes = [one and one.half_split for one in (rope if isinstance(rope, tuple) else [rope])]
    return replace(config, rope=tuple(ropes) if isinstance(rope, tuple) else ropes[0])


def _check_llama(settings: Mapping[str, Any], where: str) -> None:
    """Raise `RopeError` for another architecture than Llama's, whole or without its head, and for unknown parts."""
    model_type, architectures = settings.get("model_type"), settings.get("architectures")
    if model_type != "llama" or (architectures and architectures not in (["LlamaForCausalLM"], ["LlamaModel"])):
        code = ", and ropewalk never runs the code named in the config" if settings.get("auto_map") else ""
        raise RopeError(
            f"load: unknown architecture: rw.Decoder has Llama's layout{code}.",
            facts={"file": where, "model_type": model_type, "architectures": architectures}
            | ({"auto_map": settings["auto_map"]} if code else {}),
            cure=_ELSEWHERE,
        )
    wrong = {key: settings[key] for key in _UNSUPPORTED if settings.get(key)}
    if settings["hidden_act"] not in ("silu", "swish"):
        wrong["hidden_act"] = settings["hidden_act"]
    kinds = settings.get("layer_types")
    if kinds and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
        wrong["layer_types"] = kinds
    block = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    for holder in (settings, block if isinstance(block, Mapping) else {}):
        fraction = holder.get("partial_rotary_factor")
        # p-RoPE's fraction is the share of pairs that rotate in the whole head; transformers' rule has that meaning
        if fraction not in (None, 1) and holder.get("rope_type") != "proportional":
            wrong["partial_rotary_factor"] = fraction
    if wrong:
        raise RopeError(
            f"load: rw.Decoder does not support the config's {', '.join(f'`{key}`' for key in wrong)}. Its layers are "
            "Llama's: whole heads rotate, all earlier tokens are visible, and silu gates the feed-forward.",
            facts={"file": where, **wrong},
            cure=_ELSEWHERE,
        )
