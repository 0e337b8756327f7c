"""A reader of any model that one of this folder's adapters knows: each is one file with a function `adapt`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ropewalk.checkpoints.load import builds, load_decoder
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.errors import RopeError
from ropewalk.optional import need
from ropewalk.readers.reader import Reader

Adapt = Callable[[object, str | None], Reader | None]


def reader_of(model: object, name: str | None = None) -> Reader:
    """The reader of a model; a reader is returned as it is.

    - `model`: a `Decoder`, or what another adapter knows. `name`: what reports call it.

    Raises `RopeError` for an object that no adapter knows.

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
        "readers: no adapter knows this model, so it cannot be measured.",
        facts={"model": type(model).__name__},
        cure="Pass a Decoder, or an object with the methods of ropewalk.readers.reader.Reader.",
    )


def adapters() -> Iterator[Adapt]:
    """The function `adapt` of every module of this folder that has one."""
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
    """The reader of a checkpoint, on its device: a Hugging Face folder, a .gguf file, a model of the hub, or "tiny".

    Families that are built here are read by our decoder, all others by transformers: `Reader.library` says which.

    - `name`: in reports; None: that of the file or folder. `dtype`: None keeps what is stored (float32 for GGUF).
    - `device_map`, `tp_plan`: passed to transformers' `from_pretrained`, in place of `device`, for a model that is
      larger than one device: "auto" spreads its layers over this machine's devices, or its heads over the processes of
      a launch. transformers computes it then, whatever its family.

    Raises `RopeError` where it cannot be loaded.
    """
    path = find(source)
    name = display_name(source, path) if name is None else name
    if device_map is not None or tp_plan is not None:
        return reader_of(_spread(path, dtype, device_map=device_map, tp_plan=tp_plan), name)
    if builds(path):
        return reader_of(load_decoder(path, dtype=dtype).to(device), name)
    need("transformers", "transformers")
    from ropewalk.readers.loading import load_live

    return reader_of(load_live(path, dtype, device), name)


def _spread(path: Path, dtype: torch.dtype | None, **options: str | None) -> Any:
    """A folder's model over several devices, and its tokenizer."""
    given = {option: value for option, value in options.items() if value is not None}
    if len(given) > 1 or path.is_file():
        raise RopeError(
            "readers: a model is put on several devices from a Hugging Face folder, by one rule.",
            facts={"path": str(path), **given},
            cure="Pass device_map or tp_plan with a folder.",
        )
    need("transformers", "transformers")
    from ropewalk.readers.loading import load_spread

    return load_spread(path, dtype, **given)
