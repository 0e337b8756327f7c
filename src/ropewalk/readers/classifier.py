"""Classifiers on checkpoints: the body that a reader gives, and a classifier's folder with any body in it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from ropewalk.checkpoints.load import load_classifier
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint_classifier import CheckpointClassifier, DecoderBody
from ropewalk.models.classifier import TextClassifier
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.readers.transformers import TransformersReader


def body_of(reader: Reader) -> nn.Module:
    """The model of a reader as the body of a classifier, weights shared.

    Raises `RopeError` for a reader that is neither our decoder's nor a transformers model's.

    >>> from ropewalk.readers.adapters import open_reader
    >>> body_of(open_reader("tiny")).num_layers
    6
    """
    if isinstance(reader, DecoderReader):
        return DecoderBody(reader.model)
    if isinstance(reader, TransformersReader):
        from ropewalk.readers.live.body import LiveBody

        return LiveBody(reader.model)
    raise RopeError(
        "classify: a model of this kind gives no hidden states.",
        facts={"reader": type(reader).__name__},
        cure="Pass a checkpoint that rw.load or transformers reads.",
    )


def open_classifier(
    source: str | os.PathLike[str], *, dtype: torch.dtype | None = None
) -> TextClassifier | CheckpointClassifier:
    """The classifier of a folder that `ropewalk classify train` wrote, whatever library computes it; as `rw.load`."""
    return load_classifier(source, dtype=dtype, open_body=_open_live)


def _open_live(folder: Path, dtype: torch.dtype | None) -> tuple[nn.Module, Tokenizer | None]:
    from ropewalk.readers.live.body import LiveBody
    from ropewalk.readers.live.loading import load_live

    model, tokenizer = load_live(folder, dtype, "cpu")
    return LiveBody(model), tokenizer
