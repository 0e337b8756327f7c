"""The readers of loaded models and of checkpoints."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.checkpoints.decoder_config import half_split
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.checkpoints.stored_dtype import fast_dtype_or_warn
from ropewalk.errors import RopeError
from ropewalk.layers.decoder import Decoder
from ropewalk.layers.precision import is_slow, memory_for, name_of, slow_dtype_of
from ropewalk.optional import need
from ropewalk.readers.reader import Reader
from ropewalk.readers.transformers import TransformersReader, adapt


def reader_of(model: object, name: str | None = None) -> Reader:
    """Return the reader of a model; return a reader unchanged.

    **Arguments:**
    - `model`: of transformers, a pair (model, tokenizer), or a `Decoder` in Llama's layout.
    - `name`: in reports.

    **Raises:** `RopeError` for any other object.

    >>> from ropewalk.checkpoints.load import load
    >>> reader_of(load("tiny"), "tiny").name
    'tiny'
    """
    if isinstance(model, Reader):
        return model
    if isinstance(model, Decoder):
        need("transformers", "transformers")
        from ropewalk.readers.loading import as_transformers

        live = TransformersReader(*as_transformers(model), name or "decoder")
        return live.under(half_split(model.config).positions)
    reader = adapt(model, name)
    if reader is None:
        raise RopeError(
            "readers: this object cannot be measured.",
            facts={"model": type(model).__name__},
            cure="Pass a model of transformers, a Decoder, or an object with the methods of "
            "ropewalk.readers.reader.Reader.",
        )
    return reader


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
    slow = slow_dtype_of(model)
    if slow is None:
        return model, None
    plain = all(type(weight) is nn.Parameter and weight.device.type == "cpu" for weight in model.parameters())
    missing = memory_for(sum(weight.numel() for weight in model.parameters() if weight.is_floating_point()))
    if not plain or missing is not None:
        why = f"; a float32 copy {missing}" if plain else ""
        return model, f"Measured in {name_of(slow)}: {is_slow(slow)}, and float32 is several times faster{why}."
    return _in_float32(model), f"Measured in a float32 copy: {is_slow(slow)}."


def _in_float32(model: nn.Module) -> nn.Module:
    """Return a copy with float32 weights and buffers; never twice in memory, unlike `copy.deepcopy(model).float()`."""
    wide: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach().float().clone(), requires_grad=weight.requires_grad)
        for weight in model.parameters()
        if weight.is_floating_point()
    }
    wide |= {  # frequencies that a cast has rounded stay as they are: `attach` replaces them by their dtype
        id(buffer): buffer.detach().float().clone()
        for name, buffer in model.named_buffers()
        if buffer.dtype in (torch.bfloat16, torch.float16) and "inv_freq" not in name
    }
    tokenizer = getattr(model, "tokenizer", None)  # shared: not every tokenizer can be copied
    other = copy.deepcopy(model, {**wide, id(tokenizer): tokenizer})
    config: Any = getattr(other, "config", None)
    if hasattr(config, "to_json_string"):  # transformers'
        config.dtype = torch.float32
    return other


def open_reader(
    source: str | Path,
    *,
    name: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    device_map: str | None = None,
) -> Reader:
    """Return the reader of a checkpoint: a Hugging Face folder, a .gguf file, a model of the hub, or "tiny".

    transformers computes the model, with our exact rotation and our attention kernel attached.

    **Arguments:**
    - `name`: in reports; defaults to that of the file or folder.
    - `dtype`: None is that of `load`: the stored one, or float32 if this CPU multiplies the stored one slowly.
    - `device_map`: passed to transformers' `from_pretrained`, in place of `device`, for a model that is larger than one
      device. "auto" spreads its layers over this machine's devices.

    **Raises:** `RopeError` if the checkpoint cannot be loaded.
    """
    path = find(source)
    name = display_name(source, path) if name is None else name
    options = {} if device_map is None else {"device_map": device_map}
    on_cpu = torch.device(device).type == "cpu" and not (options and torch.accelerator.is_available())
    if dtype is None and on_cpu:
        dtype = fast_dtype_or_warn(path, "open_reader")
    if options and path.is_file():
        raise RopeError(
            "readers: several devices need a Hugging Face folder.",
            facts={"path": str(path), **options},
            cure="Pass `device_map` with a folder.",
        )
    need("transformers", "transformers")
    from ropewalk.readers.loading import load_live

    return reader_of(load_live(path, dtype, device, **options), name)
