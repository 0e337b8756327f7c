"""Text classifiers on disk: config.json of their own, safetensors, tokenizer.json; never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import read_json, whole_folder, write_json
from ropewalk.checkpoints.decoder_config import config_from_native, config_to_native
from ropewalk.checkpoints.hugging_face import stored_tensors
from ropewalk.checkpoints.materialize import fill
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.layers.classifier import SHARED, TextClassifier, TextClassifierConfig
from ropewalk.layers.prompts import Tokenizer
from ropewalk.optional import need

CLASSIFIER, ON_CHECKPOINT = "ropewalk-classifier", "ropewalk-checkpoint-classifier"
FILES = frozenset({"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
_OWN = ("pooling", "max_length", "dropout", "embedding_range")


def config_to_json(config: TextClassifierConfig) -> dict[str, Any]:
    """Return a classifier's config.json: labels in the order of the logits, and the encoder in ropewalk's own form."""
    own = {name: getattr(config, name) for name in _OWN}
    encoder = {key: value for key, value in config_to_native(config.encoder).items() if key != "architectures"}
    return {
        "architectures": ["RopewalkTextClassifier"],
        "model_type": CLASSIFIER,
        "labels": list(config.labels),
        **own,
        "encoder": encoder,
    }


def config_from_json(content: dict[str, Any], where: str) -> TextClassifierConfig:
    """Return the config written by `config_to_json`; `where` names the file in errors."""
    if content.get("model_type") == ON_CHECKPOINT:
        raise RopeError(
            "TextClassifier: this version does not support classifiers on language models.",
            facts={"file": where},
            cure="Load it with the version that trained it (commit d970beb).",
        )
    if not is_classifier(content):
        raise RopeError(
            "TextClassifier: this is not a text classifier of ropewalk.",
            facts={"file": where, "model_type": content.get("model_type")},
            cure="Save a TextClassifier there; rw.load loads language models.",
        )
    try:
        encoder = config_from_native(content["encoder"], where)
        shared = {name: getattr(encoder, name) for name in SHARED}
        own = {name: content[name] for name in _OWN}
        encoding = encoder.encoding if encoder.rope is None else encoder.rope
        labels = content["labels"]
        if isinstance(labels, list) and not isinstance(encoding, tuple):
            return TextClassifierConfig(**shared, **own, labels=labels, encoding=encoding)
        reason = "`labels` is not a list, or the layers have different ropes"
    except (KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise RopeError(
        "TextClassifier: the config.json is damaged.",
        facts={"file": where, "error": reason},
        cure="Fetch the folder again, or train the classifier again.",
    )


def is_classifier(content: Mapping[str, Any]) -> bool:
    """Return whether a config.json describes a text classifier."""
    return content.get("model_type") in (CLASSIFIER, ON_CHECKPOINT)


def save_classifier(model: TextClassifier, folder: Path, tokenizer: Tokenizer | None) -> None:
    """Write a classifier's folder atomically; see `save`."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with whole_folder(folder, FILES) as staging:
        need("safetensors.torch").save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
        write_json(staging / "config.json", config_to_json(model.config))
        if tokenizer is not None:
            tokenizer.save(staging)


def read_classifier(folder: Path, dtype: torch.dtype | None) -> TextClassifier:
    """Return the classifier of a folder; see `load`."""
    config = config_from_json(read_json(folder / "config.json"), str(folder / "config.json"))
    with ExitStack() as open_files:
        model = fill(lambda: TextClassifier(config), stored_tensors(folder, open_files), dtype, str(folder))
    if (folder / "tokenizer.json").is_file():
        model.tokenizer = TextTokenizer.from_folder(folder)
    return model
