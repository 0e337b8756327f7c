"""Decoders in Hugging Face folders: read and write their safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.atomic_io import read_json, whole_folder, write_json
from ropewalk.checkpoints.decoder_config import NATIVE, config_to_hf, half_split
from ropewalk.checkpoints.materialize import Stored, Widened, materialize
from ropewalk.checkpoints.sources import no_safetensors
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder
from ropewalk.layers.prompts import Tokenizer
from ropewalk.optional import need
from ropewalk.rope.pairing import convert_pairing

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_OURS = frozenset({"config.json", _SINGLE, "generation_config.json", "tokenizer.json", "tokenizer_config.json"})
_THEIRS = frozenset({"special_tokens_map.json", "chat_template.jinja"})


def read_decoder(folder: Path, config: DecoderConfig, dtype: torch.dtype | None) -> Decoder:
    """Return the `Decoder` of a Hugging Face folder, built from its `config`; see `load`."""
    with ExitStack() as open_files:
        stored = stored_tensors(folder, open_files)
        if config.tie_word_embeddings:
            stored = _without_tied_head(folder, stored)
        model = materialize(config, stored, dtype, str(folder))
    if (folder / "tokenizer.json").is_file():
        model.tokenizer = TextTokenizer.from_folder(folder)
    return model


def save_decoder(model: Decoder, folder: Path, tokenizer: Tokenizer | None) -> None:
    """Write a decoder's folder atomically; see `save`."""
    config, weights = hugging_face_form(model)
    written = config_to_hf(config) | special_ids(tokenizer)
    written["dtype"] = str(model.embed_tokens.weight.dtype).removeprefix("torch.")
    named = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    with whole_folder(folder, _OURS | _THEIRS) as staging:
        named = stored_names(named, native=written["model_type"] == NATIVE)
        need("safetensors.torch").save_file(named, staging / _SINGLE, metadata={"format": "pt"})
        write_json(staging / "config.json", written)
        save_tokenizer(tokenizer, staging)


def special_ids(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the special ids for config.json, with null for none: transformers would use its family's defaults."""
    ends = list(tokenizer.eos_ids) if tokenizer is not None else []
    return {
        "bos_token_id": None if tokenizer is None else tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": None,
    }


def save_tokenizer(tokenizer: Tokenizer | None, folder: Path) -> None:
    """Write a tokenizer, if there is one, and its bos and eos ids to generation_config.json."""
    if tokenizer is not None:
        tokenizer.save(folder)
        ids = special_ids(tokenizer)
        write_json(folder / "generation_config.json", {key: ids[key] for key in ("bos_token_id", "eos_token_id")})


def stored_names(weights: Mapping[str, Tensor], *, native: bool) -> dict[str, Tensor]:
    """Return the weights keyed by their names in a file: with the prefix "model." except in ropewalk's own form."""
    prefix = "" if native else "model."
    return {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in weights.items()}


def stored_tensors(folder: Path, open_files: ExitStack) -> dict[str, Stored]:
    """Return the tensors of a folder's safetensors files, keyed by the Decoder's names."""
    stored: dict[str, Stored] = {}
    for path, names in _shards(folder).items():
        file, widened = open_safetensors(path, open_files), Widened(path)
        for name in sorted(names if names is not None else file.keys()):
            if name not in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                raise RopeError(
                    "load: the index names a tensor that is missing from its file.",
                    facts={"file": str(path), "tensor": name},
                    cure="Fetch the file again.",
                )
            ours = name.removeprefix("model.")
            if ours.endswith("rotary_emb.inv_freq"):  # a buffer of old Llama checkpoints; the config is more exact
                continue
            part = file.get_slice(name)
            if ours in stored:
                raise RopeError(
                    "load: a tensor is stored twice.",
                    facts={"file": str(path), "tensor": name},
                    cure="Keep the shards of one checkpoint in the folder, and remove others.",
                )
            dtype = _DTYPES.get(part.get_dtype(), torch.int8)
            read = partial(_read, file, name, dtype, widened)
            stored[ours] = Stored(name, tuple(part.get_shape()), dtype, read)
    return stored


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def _read(file: Any, name: str, stored: torch.dtype, widened: Widened, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor of an open safetensors file: a view of the mapping, unless its dtype must change."""
    if dtype is not None and dtype != stored:
        return widened.read(name, tuple(file.get_slice(name).get_shape()), stored, dtype)
    tensor: Tensor = file.get_tensor(name)
    return tensor


def _without_tied_head(folder: Path, stored: dict[str, Stored]) -> dict[str, Stored]:
    """Return the tensors without a tied head; raise `RopeError` if the head differs from the embedding."""
    head, embedding = stored.get("lm_head.weight"), stored.get("embed_tokens.weight")
    if head is None or embedding is None:
        return stored
    if head.shape != embedding.shape or not torch.equal(head.read(None), embedding.read(None)):
        raise RopeError(
            "load: the config ties the head to the embedding, but the checkpoint contains a separate head.",
            facts={"folder": str(folder), "tensor": head.name},
            cure="Set tie_word_embeddings to false in config.json to use that head.",
        )
    return {name: tensor for name, tensor in stored.items() if name != "lm_head.weight"}


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """Return the weight files of a folder and the tensors to take from each (None: all)."""
    if (folder / _SINGLE).is_file():
        return {folder / _SINGLE: None}
    if not (folder / _INDEX).is_file():
        raise no_safetensors(folder)
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
                "load: a shard in the index is missing from the folder.",
                facts={"folder": str(folder), "shard": shard},
                cure="Fetch the missing file.",
            )
        shards[path] = {name for name, place in index.items() if place == shard}
    return shards


def open_safetensors(path: Path, open_files: ExitStack) -> Any:
    """Open a safetensors file; raise `RopeError` with its name if it is damaged."""
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
    """Return the config and weights to write: half-split if a family can then express the model, else unchanged."""
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
