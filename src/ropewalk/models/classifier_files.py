"""Text classifiers on disk: config.json of their own, safetensors, tokenizer.json; never a pickle."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopeError
from ropewalk.models.assemble import fill
from ropewalk.models.checkpoint import stored_tensors
from ropewalk.models.classifier import SHARED, TextClassifier, TextClassifierConfig
from ropewalk.models.extras import need
from ropewalk.models.files import read_json, whole_folder, write_json
from ropewalk.models.native import config_from_native, config_to_native
from ropewalk.models.tokenizer import TextTokenizer

CLASSIFIER = "ropewalk-classifier"
FILES = frozenset({"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
_OWN = ("pooling", "max_length", "dropout", "embedding_range")


def config_to_json(config: TextClassifierConfig) -> dict[str, Any]:
    """The config.json of a classifier: the labels in the order of the logits, and the encoder as `native` writes it."""
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
    """The reverse of `config_to_json`; `where` names it in errors."""
    if content.get("model_type") != CLASSIFIER:
        raise RopeError(
            "TextClassifier: this is no text classifier of ropewalk's.",
            facts={"file": where, "model_type": content.get("model_type")},
            cure="Make one with `ropewalk classify train`; rw.load reads language models.",
        )
    try:
        encoder = config_from_native(content["encoder"], where)
        shared = {name: getattr(encoder, name) for name in SHARED}
        own = {name: content[name] for name in _OWN}
        encoding = encoder.encoding if encoder.rope is None else encoder.rope
        labels = content["labels"]
        if isinstance(labels, list) and not isinstance(encoding, tuple):
            return TextClassifierConfig(**shared, **own, labels=labels, encoding=encoding)
        found = "`labels` is no list, or the layers have different ropes"
    except (KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
    raise RopeError(
        "TextClassifier: the config.json is damaged.",
        facts={"file": where, "error": found},
        cure="Fetch the folder again, or train it anew.",
    )


def save_classifier(model: TextClassifier, folder: str | os.PathLike[str]) -> None:
    """Write a classifier's folder, whole or not at all; see `TextClassifier.save`."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with whole_folder(Path(folder), FILES) as staging:
        need("safetensors.torch").save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
        write_json(staging / "config.json", config_to_json(model.config))
        if model.tokenizer is not None:
            model.tokenizer.save(staging)


def load_classifier(folder: str | os.PathLike[str], dtype: torch.dtype | None = None) -> TextClassifier:
    """Read a classifier's folder; see `TextClassifier.load`."""
    path = Path(folder)
    if not path.is_dir():
        raise RopeError(
            "TextClassifier: there is no such folder.",
            facts={"folder": str(path)},
            cure="Pass the --out of `ropewalk classify train`.",
        )
    config = config_from_json(read_json(path / "config.json"), str(path / "config.json"))
    with ExitStack() as open_files:
        model = fill(lambda: TextClassifier(config), stored_tensors(path, open_files), dtype, str(path))
    if (path / "tokenizer.json").is_file():
        model.tokenizer = TextTokenizer.from_folder(path)
    return model
