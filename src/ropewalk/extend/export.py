"""A decoder under an extension method as the Hugging Face folder that transformers loads: whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.extend.hub import HubRope, hub_rope, refuse_inexpressible
from ropewalk.models.checkpoint import find, hugging_face_form, read_config
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.extras import need
from ropewalk.models.families import FAMILIES, config_to_hf
from ropewalk.models.files import read_json, whole_folder, write_json
from ropewalk.models.native import NATIVE, config_to_native

SHARD_BYTES = 5_000_000_000  # of one weight file, as transformers has had it
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RECORD, LOG, CARD, FIGURE = "extend.json", "training-log.jsonl", "README.md", "extend.png"
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
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_WRITTEN = frozenset({"config.json", CARD, RECORD, LOG, FIGURE, "search.json", "search.png", *COMPANIONS})
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export wrote: the folder, the config.json, the rope in it (None: native), and the weights' dtype."""

    folder: Path
    config: Mapping[str, Any]
    rope: HubRope | None
    dtype: torch.dtype


def check_out(out: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None, overwrite: bool) -> Path:
    """The folder to write, or a `RopeError` before any work is done: it holds something, or is the model's own."""
    place = Path(out)
    if not str(out) or place.is_file():
        raise RopeError(
            "extend: --out names the folder to write.", facts={"out": str(out)}, cure="Pass a new folder: --out DIR."
        )
    if source is not None and place.exists() and find(source).resolve() == place.resolve():
        raise RopeError(
            "extend: --out is the folder that the model is read from.",
            facts={"model": str(source), "out": str(place)},
            cure="Pass another folder.",
        )
    found = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    if found and not overwrite:
        raise RopeError(
            "extend: the output folder is not empty.",
            facts={"out": str(place), "files": found[:8]},
            cure="Pass a new folder, or --overwrite to replace a checkpoint that an export wrote.",
        )
    foreign = [name for name in found if not _replaceable(name)]
    if foreign:
        raise RopeError(
            "extend: the output folder holds files that no export writes, and would lose them.",
            facts={"out": str(place), "files": foreign[:8]},
            cure="Pass a new folder.",
        )
    return place


def export(
    model: Decoder,
    out: str | os.PathLike[str],
    *,
    method: str,
    trained_length: int,
    target: int,
    source: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    native: bool = False,
    further: Callable[[Exported], Mapping[str, str | bytes]] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Write a model as a Hugging Face folder that transformers loads, with the same logits.

    **Arguments:**
    - `model`: with the ropes of `method` already applied (`model.with_rope`); interleaved heads are written half-split.
    - `method`, `trained_length`, `target` (tokens): what was applied; see `hub_rope`.
    - `source`: what the model was loaded from. Of a Hugging Face folder config.json is kept, but for the rope's keys,
      the dtype and `auto_map` (whose code is not copied), and the tokenizer's files and generation_config.json are
      copied. Of a GGUF file, of ropewalk's own folders and of None they are written anew.
    - `dtype`: of the weights; None is the model's own.
    - `native`: ropewalk's own form instead, which holds every method and which only `ropewalk.load` reads.
    - `further`: called with what was written, gives more files of the folder by name: README.md, extend.json, ...
    - `shard_bytes`: the largest weight file; beyond it there are several, and an index.

    **Returns:** an `Exported`.
    **Raises:** `RopeError` where a config of transformers cannot say the method or the model, and as `check_out`.
    The folder is written under a temporary name beside and then renamed, so that it is whole or not there.

    >>> import tempfile
    >>> from ropewalk.models.checkpoint import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(load("tiny"), folder + "/x", method="plain", trained_length=256, target=256, source="tiny").dtype
    torch.bfloat16
    """
    place = check_out(out, source=source, overwrite=overwrite)
    hub = None if native else hub_of(model, method, trained_length=trained_length, target=target)
    config, weights = (model.config, model.state_dict()) if hub is None else hugging_face_form(_renamed(model, hub))
    origin = None if source is None or native else find(source)
    kept = _config_of(origin, config)
    chosen = model.embed_tokens.weight.dtype if dtype is None else dtype
    written = config_to_native(config) if hub is None else _written_config(config, kept, hub)
    written |= (_special_tokens(model) if kept is None else {}) | {"dtype": str(chosen).removeprefix("torch.")}
    names = {str(path.name) for path in place.iterdir()} if place.is_dir() else set()
    with whole_folder(place, frozenset(names) if overwrite else frozenset()) as staging:
        prefix = "" if native else "model."
        named = {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in weights.items()}
        write_weights(named, staging, dtype=chosen, shard_bytes=shard_bytes)
        longest = target if hub is None else hub.max_position_embeddings
        _write_companions(staging, None if kept is None else origin, model, longest)
        found = Exported(folder=place, config=written, rope=hub, dtype=chosen)
        for name, content in (further(found) if further is not None else {}).items():
            (staging / name).write_bytes(content.encode() if isinstance(content, str) else content)
        write_json(staging / "config.json", written)
    return found


def hub_of(model: Decoder, method: str, *, trained_length: int, target: int) -> HubRope:
    """`hub_rope` of a model, which must have no extension in attention; raises `RopeError` where it cannot be said."""
    refuse_inexpressible(method)
    extension = next((found for found in model.config.extensions if found is not None), None)
    if extension is not None:
        raise RopeError(
            "extend: an extension in attention cannot be exported: no config.json describes one.",
            facts={"extension": extension},
            cure="Export a method that acts on frequencies; or pass --native, for a folder that ropewalk alone reads.",
        )
    return hub_rope(model.config.ropes, method, trained_length=trained_length, target=target)


def write_weights(
    weights: Mapping[str, Tensor], folder: Path, *, dtype: torch.dtype, shard_bytes: int = SHARD_BYTES
) -> list[Path]:
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


def _replaceable(name: str) -> bool:
    return name in _WRITTEN or _WEIGHTS.fullmatch(name) is not None


def _renamed(model: Decoder, hub: HubRope) -> Decoder:
    """The model with each rope as the config says it; interleaved heads stay so until they are re-ordered."""
    present = [rope for rope in model.config.ropes if rope is not None]
    rope = dataclasses.replace(hub.rope, interleaved=present[0].interleaved)
    return model.with_extension(None).with_rope(rope)


def _config_of(origin: Path | None, config: DecoderConfig) -> dict[str, Any] | None:
    """The config.json to keep: that of a Hugging Face folder which describes this very model but for its ropes."""
    if origin is None or not origin.is_dir():
        return None
    content = read_json(origin / "config.json")
    if content.get("model_type") == NATIVE:
        return None
    read = read_config(content)
    if dataclasses.replace(read, rope=None) != dataclasses.replace(config, rope=None):
        return None  # the model was changed since it was loaded: its own config is written instead
    return content


def _written_config(config: DecoderConfig, kept: Mapping[str, Any] | None, hub: HubRope) -> dict[str, Any]:
    """The config.json to write; raises `RopeError` where no family of transformers computes this model."""
    if kept is not None:
        left_out = (*_ROPE_KEYS, "auto_map", "torch_dtype")
        written = {key: value for key, value in kept.items() if key not in left_out}
        return {**written, "architectures": [FAMILIES[str(kept["model_type"])].architecture], **hub.fields()}
    written = config_to_hf(config)
    if written["model_type"] == NATIVE:
        raise RopeError(
            "extend: this model cannot be exported: none of the families that are known here computes it.",
            facts={"families": tuple(FAMILIES), "norm": config.norm, "hidden_act": config.hidden_act},
            cure="Pass --native, for a folder that ropewalk alone reads.",
        )
    return {**written, **hub.fields()}


def _special_tokens(model: Decoder) -> dict[str, Any]:
    """Always said, also as null: transformers would put the ids of the family's own tokenizer in their place."""
    tokenizer = model.tokenizer
    ends = list(tokenizer.eos_ids) if tokenizer is not None else []
    return {
        "bos_token_id": None if tokenizer is None else tokenizer.bos_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": None,
    }


def _write_companions(folder: Path, origin: Path | None, model: Decoder, length: int) -> None:
    """The tokenizer and the generation config: copied where they are Hugging Face's, else written."""
    if origin is not None:
        for name in COMPANIONS:
            if (origin / name).is_file():
                shutil.copyfile(origin / name, folder / name)
        _lengthen(folder / "tokenizer_config.json", length)
    elif model.tokenizer is not None:
        model.tokenizer.save(folder)
        ends = _special_tokens(model)
        write_json(folder / "generation_config.json", {key: ends[key] for key in ("bos_token_id", "eos_token_id")})


def _lengthen(path: Path, length: int) -> None:
    """Raise a tokenizer's `model_max_length` to the new length: transformers warns of every longer text."""
    said = read_json(path) if path.is_file() else {}
    if isinstance(said.get("model_max_length"), int) and said["model_max_length"] < length:
        write_json(path, {**said, "model_max_length": length})
