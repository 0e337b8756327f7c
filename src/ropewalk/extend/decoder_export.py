"""Our `Decoder` as a folder: weights, tokenizer and more, in Hugging Face's form or in ropewalk's own."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.atomic_io import read_json, write_json
from ropewalk.checkpoints.decoder_config import config_to_hf
from ropewalk.checkpoints.hugging_face import hugging_face_form
from ropewalk.checkpoints.load import read_config
from ropewalk.checkpoints.ropewalk_config import NATIVE, config_to_native
from ropewalk.errors import RopeError
from ropewalk.families import DECODERS
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need

# a checkpoint's files beside its weights and config, which say the same of the extended one; licences travel along
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
)
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings")


def write_decoder(
    model: Decoder,
    folder: Path,
    *,
    rope_fields: Mapping[str, Any] | None,
    length: int,
    dtype: torch.dtype,
    source: Path | None,
    shard_bytes: int,
) -> dict[str, Any]:
    """Write weights, tokenizer and the files beside them; returns the content of config.json, which is not written.

    **Arguments:**
    - `folder`: exists and is empty. `dtype`: of the weights. `shard_bytes`: the largest weight file.
    - `rope_fields`: the keys of config.json that say the rope; interleaved heads are written half-split. None writes
      ropewalk's own form, which holds everything that `DecoderConfig` does.
    - `length`: tokens; a tokenizer's `model_max_length` below it is raised.
    - `source`: what the model was loaded from. Of a Hugging Face folder config.json is kept, but for the rope's keys,
      the dtype and `auto_map` (whose code is not copied), and its companions are copied.

    **Raises:** `RopeError` where no family of transformers computes this model.
    """
    native = rope_fields is None
    config, weights = (model.config, model.state_dict()) if native else hugging_face_form(model)
    kept = None if native else _config_of(source, config)
    written = config_to_native(config) if rope_fields is None else _written_config(config, kept, rope_fields)
    written |= (_special_tokens(model.tokenizer) if kept is None else {}) | {"dtype": str(dtype).removeprefix("torch.")}
    prefix = "" if native else "model."
    named = {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in weights.items()}
    write_weights(named, folder, dtype=dtype, shard_bytes=shard_bytes)
    if kept is not None and source is not None:
        _copy_companions(source, folder, length)
    elif model.tokenizer is not None:
        model.tokenizer.save(folder)
        ends = _special_tokens(model.tokenizer)
        write_json(folder / "generation_config.json", {key: ends[key] for key in ("bos_token_id", "eos_token_id")})
    return written


def write_weights(weights: Mapping[str, Tensor], folder: Path, *, dtype: torch.dtype, shard_bytes: int) -> list[Path]:
    """Write tensors as model.safetensors, or as shards of at most `shard_bytes` with an index; returns the files.

    One shard is held in memory at a time; a tensor larger than a shard has one for itself.
    """
    save_file = need("safetensors.torch").save_file
    size = torch.finfo(dtype).bits // 8
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, tensor in weights.items():
        if shards[-1] and tensor.numel() * size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= tensor.numel() * size
    paths: list[Path] = []
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        cast = {name: weights[name].detach().to("cpu", dtype).contiguous() for name in names}
        save_file(cast, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
        paths.append(folder / file)
    if len(shards) > 1:
        total = sum(tensor.numel() for tensor in weights.values()) * size
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})
    return paths


def _config_of(source: Path | None, config: DecoderConfig) -> dict[str, Any] | None:
    """The config.json to keep: that of a Hugging Face folder which describes this very model but for its ropes."""
    if source is None or not source.is_dir():
        return None
    content = read_json(source / "config.json")
    if content.get("model_type") == NATIVE:
        return None
    read = read_config(content)
    if dataclasses.replace(read, rope=None) != dataclasses.replace(config, rope=None, extension=None):
        return None  # the model was changed since it was loaded: its own config is written instead
    return content


def _written_config(
    config: DecoderConfig, kept: Mapping[str, Any] | None, rope_fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The config.json to write; raises `RopeError` where no family of transformers computes this model."""
    if kept is not None:
        left_out = (*_ROPE_KEYS, "auto_map", "torch_dtype")
        written = {key: value for key, value in kept.items() if key not in left_out}
        return {**written, "architectures": [DECODERS[str(kept["model_type"])].architecture], **rope_fields}
    written = config_to_hf(config)
    if written["model_type"] == NATIVE:
        raise RopeError(
            "extend: this model cannot be exported: none of the families that are known here computes it.",
            facts={"families": tuple(DECODERS), "norm": config.norm, "hidden_act": config.hidden_act},
            cure="Pass --native, for a folder that ropewalk alone reads.",
        )
    return {**written, **rope_fields}


def _special_tokens(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Always written, also as null: transformers would put the ids of the family's own tokenizer in their place."""
    ends = list(tokenizer.eos_ids) if tokenizer is not None else []
    return {
        "bos_token_id": None if tokenizer is None else tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": None,
    }


def _copy_companions(source: Path, folder: Path, length: int) -> None:
    """Copy the files beside a checkpoint's weights; raise `model_max_length` to `length`, or transformers warns."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    if isinstance(content.get("model_max_length"), int) and content["model_max_length"] < length:
        write_json(path, {**content, "model_max_length": length})
