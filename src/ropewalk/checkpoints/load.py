"""`load` and `save` for decoders and classifiers, and the configs of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path, read_json
from ropewalk.checkpoints.classifier_files import is_classifier, read_classifier, save_classifier
from ropewalk.checkpoints.decoder_config import config_from_hf, config_to_hf
from ropewalk.checkpoints.hugging_face import read_decoder, save_decoder
from ropewalk.checkpoints.materialize import FLOATS
from ropewalk.checkpoints.sources import find, refuse_bare_weights
from ropewalk.checkpoints.stored_dtype import fast_dtype_or_warn
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError, check_kind
from ropewalk.layers.classifier import TextClassifier
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder


def load(source: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Any:
    """Load a `Decoder` or `TextClassifier` in eval mode, with its tokenizer.

    **Arguments:**
    - `source`: a folder in Llama's layout (config.json and model.safetensors, single or sharded), a folder that `save`
      wrote, a model of the hub as OWNER/NAME, or the built-in "tiny". transformers loads all others.
    - `dtype`: of the weights. None keeps what a folder stores (the widest, if it stores several), except that float32
      replaces bfloat16 and float16 if this CPU multiplies them slowly; a warning names both.

    Weights are half-split as in Hugging Face's files. They are memory-mapped. A tensor that needs no conversion is
    never copied. Others are converted one by one, so the peak memory is little more than one copy. Do not overwrite a
    file in place while it is mapped; `save` never does. Nothing is unpickled, and a checkpoint's own code (`auto_map`)
    is never run.

    **Raises:** `RopeError`, with the name of the file or tensor, if it is missing, truncated, unexpected or of a wrong
    shape, or if the architecture is unknown.

    >>> load("no/such/folder")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: load: no such file or folder.
    """
    path = find(source)
    if path.is_dir() and (path / "config.json").is_file() and is_classifier(read_json(path / "config.json")):
        return load_classifier(path, dtype=dtype)
    _check_dtype(dtype)
    return load_decoder(path, dtype=fast_dtype_or_warn(path, "load") if dtype is None else dtype)


def load_decoder(source: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Decoder:
    """Load a language model like `load`, but in the stored dtype by default; raise `RopeError` for a classifier."""
    path = find(source)
    _check_dtype(dtype)
    _refuse_gguf(path)
    content = read_json(path / "config.json")
    if is_classifier(content):
        raise RopeError(
            "load: this folder contains a text classifier, but a language model is needed.",
            facts={"source": str(source)},
            cure="Use rw.load, which loads both.",
        )
    return read_decoder(path, config_from_hf(content, str(path / "config.json")), dtype)


def _refuse_gguf(path: Path) -> None:
    if path.is_file() and path.suffix != ".json":
        raise RopeError(
            "load: rw.Decoder reads folders, and this is a file.",
            facts={"file": str(path)},
            cure="transformers computes it: ropewalk.readers.loading.load_gguf(path) returns its model and tokenizer.",
        )


def load_classifier(source: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> TextClassifier:
    """Load a text classifier like `load`; raise `RopeError` for anything else."""
    _check_dtype(dtype)
    path = Path(as_path(source, "load"))
    refuse_bare_weights(path)
    if not path.is_dir():
        raise RopeError(
            "load: there is no such folder.",
            facts={"folder": str(path)},
            cure="Pass a folder that `save` wrote of a TextClassifier.",
        )
    return read_classifier(path, fast_dtype_or_warn(path, "load") if dtype is None else dtype)


def save(
    model: Decoder | TextClassifier,
    folder: str | os.PathLike[str],
    *,
    tokenizer: TextTokenizer | None = None,
) -> None:
    """Write a model as a folder for `load`, atomically. transformers also loads a decoder's folder.

    **Arguments:**
    - `folder`: created, or replaced in one step if it contains only a checkpoint.
    - `tokenizer`: saved in the same folder; defaults to `model.tokenizer`.

    A decoder's interleaved heads are written half-split, as in Llama: the same function with its
    rows in a different order. A decoder that Llama cannot express (LayerNorm, ReLU, windows, two thetas, partial
    rotary, a rope without a Hugging Face form) is written unchanged with `model_type` "ropewalk", which `load` supports
    and transformers does not. Weights keep their dtype.

    **Raises:** `RopeError` if the folder contains other files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(load("tiny"), folder + "/copy")
    ...     sorted(path.name for path in Path(folder, "copy").glob("*.safetensors"))
    ['model.safetensors']
    """
    place = as_path(folder, "save")
    check_kind("save", torch.nn.Module, "Pass the model first: save(model, folder).", model=model)
    chosen = model.tokenizer if tokenizer is None else tokenizer
    if isinstance(model, TextClassifier):
        save_classifier(model, place, chosen)
    else:
        save_decoder(model, place, chosen)


def _check_dtype(dtype: torch.dtype | None) -> None:
    if dtype not in (None, *FLOATS):
        raise RopeError(
            "load: `dtype` must be a floating dtype of torch, or None.",
            facts={"dtype": dtype},
            cure="Pass for example torch.bfloat16, or None to keep the stored dtype.",
        )


def read_config(source: str | os.PathLike[str] | Mapping[str, Any]) -> DecoderConfig:
    """Return the `DecoderConfig` of a checkpoint without its weights: a folder, config.json, "tiny", or dict.

    **Raises:** `RopeError` for a missing or damaged config, or an unknown architecture.

    >>> read_config({"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32,
    ...              "num_hidden_layers": 2, "num_attention_heads": 2}).ropes[0].theta
    10000.0
    """
    if isinstance(source, Mapping):
        return config_from_hf(source, "the dict that was passed")
    path = find(source)
    _refuse_gguf(path)
    path = path if path.is_file() else path / "config.json"
    return config_from_hf(read_json(path), str(path))


def write_config(config: DecoderConfig) -> dict[str, Any]:
    """Return an equivalent config.json: of Llama if it can express it, else of "ropewalk".

    Llama is half-split, so an interleaved config becomes `model_type` "ropewalk"; `save` re-orders the weights.

    >>> from ropewalk import RopeConfig
    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> write_config(config)["architectures"]
    ['LlamaForCausalLM']
    """
    return config_to_hf(config)
