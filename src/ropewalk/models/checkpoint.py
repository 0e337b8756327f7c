"""Models from disk and back: Hugging Face folders, GGUF files, the built-in model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.models.assemble import FLOATS, Stored, assemble
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.extras import need
from ropewalk.models.families import config_from_hf, config_to_hf, half_split
from ropewalk.models.files import read_json, whole_folder, write_json
from ropewalk.models.native import NATIVE
from ropewalk.models.pieces import Pieces
from ropewalk.models.tokenizer import TextTokenizer
from ropewalk.rope.pairing import convert_pairing

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_OURS = frozenset({"config.json", _SINGLE, "generation_config.json", "tokenizer.json", "tokenizer_config.json"})
_THEIRS = frozenset({"special_tokens_map.json", "chat_template.jinja"})


def load(source: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Decoder:
    """A `Decoder` in eval mode, with its tokenizer, from a checkpoint on disk.

    - `source`: a Hugging Face folder (config.json and model.safetensors, single or sharded), a .gguf file, or the name
      of the built-in model, "tiny".
    - `dtype`: of the weights; None keeps what a folder stores (the widest, if it stores several) and gives float32 for
      GGUF, whose blocks are dequantised.

    Families: Llama, Mistral, Qwen2, Qwen3, SmolLM2, SmolLM3, and what `save` wrote. Weights come out half-split, as
    Hugging Face has them: a GGUF's permuted q and k are put back. They are memory-mapped: what needs no conversion is
    never copied; what does is converted tensor by tensor, so that memory peaks at little more than one copy. A file
    must not be overwritten in place while it is mapped; `save` never does. Nothing is unpickled, downloaded or run: of
    a checkpoint that brings code of its own (`auto_map`) the family's computation is what you get.

    Raises `RopeError` that names the file or the tensor: missing, truncated, unexpected, of a wrong shape; an unknown
    architecture.

    >>> load("no/such/folder")
    Traceback (most recent call last):
        ...
    ropewalk.errors.RopeError: load: no such file or folder, and no built-in model of that name.
    """
    path = find(source)
    if dtype not in (None, *FLOATS):
        raise RopeError(
            "load: `dtype` must be a floating dtype of torch, or None.",
            facts={"dtype": dtype},
            cure="For example torch.bfloat16; None keeps what is stored.",
        )
    if path.is_file():
        from ropewalk.models.gguf import load_gguf

        return load_gguf(path, dtype)
    config = read_config(path)
    with ExitStack() as open_files:
        model = assemble(config, stored_tensors(path, open_files), dtype, str(path))
    if (path / "tokenizer.json").is_file():
        model.tokenizer = TextTokenizer.from_folder(path)
    return model


def save(model: Decoder, folder: str | os.PathLike[str], *, tokenizer: TextTokenizer | None = None) -> None:
    """Write a model as a Hugging Face folder that transformers and `load` read: whole, or not at all.

    - `folder`: made, or replaced in one step if it holds a checkpoint and nothing else.
    - `tokenizer`: saved beside it; None takes `model.tokenizer`, if there is one.

    Interleaved heads are written half-split, as Hugging Face's families have them: the same function, another order of
    rows. A decoder that none of the families can say (LayerNorm, ReLU, two thetas, partial rotary, a rope that Hugging
    Face has no words for) is written as it is under `model_type` "ropewalk", which `load` reads and transformers does
    not. Weights keep their dtype. Raises `RopeError` if the folder holds files of another kind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(load("tiny"), folder + "/copy")
    ...     sorted(path.name for path in Path(folder, "copy").glob("*.safetensors"))
    ['model.safetensors']
    """
    place = _path(folder, "save")
    safetensors_torch = need("safetensors.torch")
    config, weights = hugging_face_form(model)
    written = config_to_hf(config)
    weights = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    written["dtype"] = str(model.embed_tokens.weight.dtype).removeprefix("torch.")
    tokenizer = tokenizer if tokenizer is not None else model.tokenizer
    ends = list(tokenizer.eos_ids) if tokenizer is not None else []
    # Always said, also as null: transformers would put the ids of the family's own tokenizer in their place.
    special = {
        "bos_token_id": tokenizer.bos_id if tokenizer is not None else None,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    prefix = "" if written["model_type"] == NATIVE else "model."
    with whole_folder(place, _OURS | _THEIRS) as staging:
        named = {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in weights.items()}
        safetensors_torch.save_file(named, staging / _SINGLE, metadata={"format": "pt"})
        write_json(staging / "config.json", written | special | {"pad_token_id": None})
        if tokenizer is not None:
            write_json(staging / "generation_config.json", special)
            tokenizer.save(staging)


def read_config(source: str | os.PathLike[str] | Mapping[str, Any]) -> DecoderConfig:
    """The `DecoderConfig` of a checkpoint, without its weights: a folder, config.json, .gguf file, "tiny", or dict.

    Raises `RopeError` for a config that is missing, damaged or of an unknown architecture.

    >>> read_config({"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32,
    ...              "num_hidden_layers": 2, "num_attention_heads": 2}).ropes[0].theta
    10000.0
    """
    if isinstance(source, Mapping):
        return config_from_hf(source, "the dict that was passed")
    path = find(source)
    if path.is_file() and path.suffix != ".json":
        from ropewalk.models.gguf import read_gguf_config

        return read_gguf_config(path)
    path = path if path.is_file() else path / "config.json"
    return config_from_hf(read_json(path), str(path))


def write_config(config: DecoderConfig) -> dict[str, Any]:
    """The config.json that says the same: of the first Hugging Face family that can, else of `model_type` "ropewalk".

    Families are half-split, so an interleaved config comes out as "ropewalk"; `save` re-orders the weights instead.

    >>> from ropewalk import RopeConfig
    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> write_config(config)["architectures"]
    ['LlamaForCausalLM']
    """
    return config_to_hf(config)


def find(source: str | os.PathLike[str]) -> Path:
    """The path of a checkpoint: one that exists, or the folder of the built-in model of that name."""
    try:
        path = _path(source, "load")
        if path.exists():
            return path
    except OSError as error:  # a name that is too long for the system, a folder that may not be entered
        raise RopeError(
            "load: the source cannot be looked up.",
            facts={"source": str(source), "error": error.strerror},
            cure="Pass the path of a checkpoint that can be read.",
        ) from error
    if isinstance(source, str) and source.isidentifier():
        builtin = files("ropewalk.models") / "builtin" / source
        if isinstance(builtin, Path) and (builtin / "config.json").is_file():
            return builtin
    raise RopeError(
        "load: no such file or folder, and no built-in model of that name.",
        facts={"source": str(source)},
        cure='Nothing is downloaded here: fetch the checkpoint first (hf download ... --local-dir DIR), or use "tiny".',
    )


def _path(source: object, where: str) -> Path:
    """A path that names something: an empty one would quietly be the current folder, which is called "."."""
    if not isinstance(source, str | os.PathLike) or not str(source):
        raise RopeError(
            f"{where}: a path is a string or a pathlib.Path, and not empty.",
            facts={"path": source},
            cure='The current folder is ".".',
        )
    return Path(source)


def stored_tensors(folder: Path, open_files: ExitStack) -> dict[str, Stored]:
    """The tensors of a folder's safetensors files, keyed by the Decoder's names."""
    stored: dict[str, Stored] = {}
    for path, names in _shards(folder).items():
        file, pieces = _open(path, open_files), Pieces(path)
        for name in sorted(names if names is not None else file.keys()):
            if name not in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                raise RopeError(
                    "load: the index names a tensor that its file does not hold.",
                    facts={"file": str(path), "tensor": name},
                    cure="Fetch the file again.",
                )
            ours = name.removeprefix("model.")
            if ours.endswith("rotary_emb.inv_freq"):  # a buffer of old Llama checkpoints: the config says it better
                continue
            part = file.get_slice(name)
            if ours in stored:
                raise RopeError(
                    "load: a tensor is stored twice.",
                    facts={"file": str(path), "tensor": name},
                    cure="Keep the shards of one checkpoint in the folder, and remove others.",
                )
            dtype = _DTYPES.get(part.get_dtype(), torch.int8)
            read = partial(_read, file, name, dtype, pieces)
            stored[ours] = Stored(name, tuple(part.get_shape()), dtype, read)
    return _without_tied_head(folder, stored)


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def _read(file: Any, name: str, stored: torch.dtype, pieces: Pieces, dtype: torch.dtype | None) -> Tensor:
    """A tensor of an open safetensors file: a view of the mapping, unless its dtype must change."""
    if dtype is not None and dtype != stored:
        return pieces.read(name, tuple(file.get_slice(name).get_shape()), stored, dtype)
    tensor: Tensor = file.get_tensor(name)
    return tensor


def _without_tied_head(folder: Path, stored: dict[str, Stored]) -> dict[str, Stored]:
    """Leave out a head that repeats the embedding of a tied model; one that differs is an error."""
    head, embedding = stored.get("lm_head.weight"), stored.get("embed_tokens.weight")
    if head is None or embedding is None or not read_config(folder).tie_word_embeddings:
        return stored
    if head.shape != embedding.shape or not torch.equal(head.read(None), embedding.read(None)):
        raise RopeError(
            "load: the config ties the head to the embedding, yet the checkpoint holds a head of its own.",
            facts={"folder": str(folder), "tensor": head.name},
            cure="Set tie_word_embeddings to false in config.json if the head is meant.",
        )
    return {name: tensor for name, tensor in stored.items() if name != "lm_head.weight"}


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """The weight files of a folder and the tensors to take from each (None: all)."""
    if (folder / _SINGLE).is_file():
        return {folder / _SINGLE: None}
    if not (folder / _INDEX).is_file():
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        raise RopeError(
            "load: the folder has no safetensors weights.",
            facts={"folder": str(folder), "looked for": (_SINGLE, _INDEX), **({"pickles": pickles} if pickles else {})},
            cure="Pickled weights can run code and are refused; convert them with transformers' save_pretrained."
            if pickles
            else "Fetch model.safetensors beside config.json.",
        )
    index = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise RopeError(
            "load: the index has no `weight_map`.",
            facts={"file": str(folder / _INDEX)},
            cure="Download the index file again.",
        )
    shards: dict[Path, set[str] | None] = {}
    for shard in sorted(set(index.values())):
        path = folder / shard
        if Path(shard).name != shard or not path.is_file():
            raise RopeError(
                "load: a shard that the index names is not in the folder.",
                facts={"folder": str(folder), "shard": shard},
                cure="Fetch the missing file.",
            )
        shards[path] = {name for name, place in index.items() if place == shard}
    return shards


def _open(path: Path, open_files: ExitStack) -> Any:
    """An open safetensors file, or a RopeError that names it."""
    safetensors = need("safetensors")
    try:
        return open_files.enter_context(safetensors.safe_open(path, framework="pt"))
    except (OSError, safetensors.SafetensorError) as error:
        raise RopeError(
            "load: a safetensors file cannot be read: it is truncated or damaged.",
            facts={"file": str(path), "bytes": path.stat().st_size, "error": str(error)},
            cure="Fetch the file again.",
        ) from error


def hugging_face_form(model: Decoder) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """Config and weights to write: half-split if a family can say the model then, else as they are."""
    config, weights = model.config, dict(model.state_dict())
    half = half_split(config)
    if half == config or config_to_hf(half)["model_type"] == NATIVE:
        return config, weights
    for layer, (old, new) in enumerate(zip(config.ropes, half.ropes, strict=True)):
        if old != new and old is not None:
            start = f"layers.{layer}.self_attn."
            own = {name: tensor for name, tensor in weights.items() if name.startswith(start)}
            weights |= convert_pairing(own, to="half", head_dim=old.head_dim)
    return half, weights
