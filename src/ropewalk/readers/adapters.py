"""A reader of any model that one of this folder's adapters knows: each is one file with a function `adapt`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

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
) -> Reader:
    """The reader of a checkpoint, on its device: a Hugging Face folder, a .gguf file, a model of the hub, or "tiny".

    Families that are built here are read by our decoder, all others by transformers: `Reader.library` says which.

    - `name`: in reports; None: that of the file or folder. `dtype`: None keeps what is stored (float32 for GGUF).

    Raises `RopeError` where it cannot be loaded.
    """
    path = find(source)
    name = display_name(source, path) if name is None else name
    if builds(path):
        return reader_of(load_decoder(path, dtype=dtype).to(device), name)
    need("transformers", "transformers")
    from ropewalk.readers.live.loading import load_live

    return reader_of(load_live(path, dtype, device), name)
