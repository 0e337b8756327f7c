"""Readers of models and checkpoints, from the adapters in this folder: modules with a function `adapt`."""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.checkpoints.load import builds, load_decoder
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.errors import RopeError
from ropewalk.models.precision import slow_dtype
from ropewalk.optional import need
from ropewalk.readers.reader import Reader

MEMORY = 1.5  # available bytes over those of a float32 copy that `fast_copy` makes
Adapt = Callable[[object, str | None], Reader | None]


def reader_of(model: object, name: str | None = None) -> Reader:
    """Return the reader of a model; return a reader unchanged.

    **Arguments:** `model`: a `Decoder`, or a model of another adapter. `name`: its name in reports.
    **Raises:** `RopeError` for an object that no adapter supports.

    >>> from ropewalk.checkpoints.load import load
    >>> reader_of(load("tiny"), "tiny").name
    'tiny'
    """
    if isinstance(model, Reader):
        return model
    for adapt in adapters():
        reader = adapt(model, name)
        if reader is not None:
            return reader
    raise RopeError(
        "readers: no adapter supports this model, so it cannot be measured.",
        facts={"model": type(model).__name__},
        cure="Pass a Decoder, or an object with the methods of ropewalk.readers.reader.Reader.",
    )


def fast_copy(model: object) -> tuple[object, str | None]:
    """Return a float32 copy of a model with a slow dtype on this CPU, and a sentence about it.

    The model itself is not changed. It is returned with None if its dtype is fast, and with a sentence if there is not
    enough memory for the copy.

    **Arguments:** `model`: a model of transformers, a pair (model, tokenizer), or a `Decoder`.

    >>> from ropewalk.checkpoints.load import load
    >>> fast_copy(load("tiny", dtype=torch.float32))[1] is None
    True
    """
    if isinstance(model, tuple) and len(model) == 2:
        fast, sentence = fast_copy(model[0])
        return (model if fast is model[0] else (fast, model[1])), sentence
    if not isinstance(model, nn.Module):
        return model, None
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    if not any(slow_dtype(weight.dtype, str(weight.device)) for weight in weights):
        return model, None
    dtype = "bfloat16 products are slow on this CPU"
    needed = sum(4 * weight.numel() for weight in weights)
    free = int(need("psutil", "doctor").virtual_memory().available)
    plain = all(type(weight) is nn.Parameter and weight.device.type == "cpu" for weight in model.parameters())
    if not plain or free <= MEMORY * needed:
        why = f"a float32 copy needs {MEMORY * needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free"
        return (
            model,
            f"Measured in bfloat16: {dtype}, and float32 is several times faster{f'; {why}' if plain else ''}.",
        )
    return _in_float32(model), f"Measured in a float32 copy: {dtype}."


def _in_float32(model: nn.Module) -> nn.Module:
    """Return a copy with float32 weights and buffers; never twice in memory, unlike `copy.deepcopy(model).float()`."""
    wide: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach().float().clone(), requires_grad=weight.requires_grad)
        for weight in model.parameters()
        if weight.is_floating_point()
    }
    wide |= {
        id(buffer): buffer.detach().float().clone() for buffer in model.buffers() if buffer.dtype == torch.bfloat16
    }
    tokenizer = getattr(model, "tokenizer", None)  # shared: not every tokenizer can be copied
    other = copy.deepcopy(model, {**wide, id(tokenizer): tokenizer})
    config: Any = getattr(other, "config", None)
    if hasattr(config, "to_json_string"):  # transformers'
        config.dtype = torch.float32
    return other


def adapters() -> Iterator[Adapt]:
    """Yield every function `adapt` of the modules in this folder."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        adapt = getattr(importlib.import_module(f"ropewalk.readers.{module.name}"), "adapt", None)
        if adapt is not None:
            yield adapt


def open_reader(
    source: str | Path,
    *,
    name: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    device_map: str | None = None,
    tp_plan: str | None = None,
) -> Reader:
    """Return the reader of a checkpoint: a Hugging Face folder, a .gguf file, a model of the hub, or "tiny".

    Our decoder computes the families that `load` supports, and transformers all others; see `Reader.library`.

    **Arguments:**
    - `name`: in reports; defaults to that of the file or folder. `dtype`: None keeps the stored one (float32 for GGUF).
    - `device_map`, `tp_plan`: passed to transformers' `from_pretrained`, instead of `device`, for a model larger than
      one device. "auto" distributes its layers over this machine's devices, or its heads over the processes of a
      launch. With these options transformers computes every family.

    **Raises:** `RopeError` if the checkpoint cannot be loaded.
    """
    path = find(source)
    name = display_name(source, path) if name is None else name
    options = {key: value for key, value in (("device_map", device_map), ("tp_plan", tp_plan)) if value is not None}
    if not options and builds(path):
        return reader_of(load_decoder(path, dtype=dtype).to(device), name)
    if len(options) > 1 or (options and path.is_file()):
        raise RopeError(
            "readers: several devices need a Hugging Face folder and one of `device_map` and `tp_plan`.",
            facts={"path": str(path), **options},
            cure="Pass device_map or tp_plan, with a folder.",
        )
    need("transformers", "transformers")
    from ropewalk.readers.loading import load_live

    return reader_of(load_live(path, dtype, device, **options), name)
