"""The dtype that a checkpoint stores, and the dtype in which to load it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import reduce
from math import prod
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.classifier_files import CLASSIFIER
from ropewalk.checkpoints.decoder_config import NATIVE
from ropewalk.checkpoints.materialize import read_header
from ropewalk.checkpoints.sources import find
from ropewalk.layers.precision import is_slow, memory_for, name_of
from ropewalk.rotation.backends.widened import slow_dtype

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(path: Path) -> torch.dtype | None:
    """Return the dtype of a folder's weights; None for a GGUF file, quantized weights, and files that are damaged.

    For families of other libraries this is the dtype in config.json, which transformers takes, if there is one.

    >>> from ropewalk.checkpoints.sources import find
    >>> stored_dtype(find("tiny"))
    torch.bfloat16
    """
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    if "quantization_config" in config:
        return None
    named = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")), None)
    own = ("llama", NATIVE, CLASSIFIER)
    if config.get("model_type") not in own and isinstance(named, torch.dtype):
        return named
    dtypes = {_DTYPES.get(entry["dtype"]) for entry in _tensors(path)}
    plain = {dtype for dtype in dtypes if dtype is not None}
    return reduce(torch.promote_types, plain) if plain else None


def fast_dtype(path: Path, device: torch.device | str = "cpu") -> tuple[torch.dtype | None, str | None]:
    """Return the dtype in which to load a checkpoint if none was asked for, and a sentence if it is not the stored one.

    None is the stored dtype. float32 replaces a dtype that the CPU multiplies slowly, if memory suffices.
    """
    stored = stored_dtype(path)
    if stored is None or not slow_dtype(stored, str(device)):
        return None, None
    missing = memory_for(sum(prod(entry["shape"]) for entry in _tensors(path)))
    if missing is not None:
        return None, f"Computed in {name_of(stored)}: float32 is several times faster on this CPU, but {missing}."
    return torch.float32, f"Computed in float32: {is_slow(stored)}."


def fast_dtype_or_warn(path: Path, call: str, device: torch.device | str = "cpu") -> torch.dtype | None:
    """Return the dtype of `fast_dtype`; warn in the name of a call if it is not what the checkpoint stores.

    The built-in model is an example, for which there is no warning.
    """
    dtype, sentence = fast_dtype(path, device)
    if sentence is not None and path != find("tiny"):
        warnings.warn(f"{call}: {path.name}: {sentence} Pass `dtype` to choose.", stacklevel=3)
    return dtype


def _tensors(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the entry of each tensor in the headers of a folder's safetensors files: dtype and shape.

    The loader reports damaged files, so they are skipped here.
    """
    try:
        shards = {_SINGLE} if (folder / _SINGLE).is_file() else set(read_json(folder / _INDEX)["weight_map"].values())
        for shard in shards:
            header, _ = read_header(folder / Path(shard).name)
            yield from (entry for name, entry in header.items() if not name.endswith("rotary_emb.inv_freq"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return
