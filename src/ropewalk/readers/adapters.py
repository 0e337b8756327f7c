"""Readers of models and checkpoints, from the adapters in this folder: modules with a function `adapt`."""

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
        "readers: no adapter knows this model, so it cannot be measured.",
        facts={"model": type(model).__name__},
        cure="Pass a Decoder, or an object with the methods of ropewalk.readers.reader.Reader.",
    )


def adapters() -> Iterator[Adapt]:
    """Yield the function `adapt` of every module of this folder that has one."""
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
    - `device_map`, `tp_plan`: passed to transformers' `from_pretrained`, in place of `device`, for a model that is
      larger than one device. "auto" spreads its layers over this machine's devices, or its heads over the processes of
      a launch. transformers then computes every family.

    **Raises:** `RopeError` if the checkpoint cannot be loaded.
    """
    path = find(source)
    name = display_name(source, path) if name is None else name
    options = {key: value for key, value in (("device_map", device_map), ("tp_plan", tp_plan)) if value is not None}
    if not options and builds(path):
        return reader_of(load_decoder(path, dtype=dtype).to(device), name)
    if len(options) > 1 or (options and path.is_file()):
        raise RopeError(
            "readers: to spread a model over several devices, pass a Hugging Face folder and one rule.",
            facts={"path": str(path), **options},
            cure="Pass device_map or tp_plan with a folder.",
        )
    need("transformers", "transformers")
    from ropewalk.readers.loading import load_live

    return reader_of(load_live(path, dtype, device, **options), name)
