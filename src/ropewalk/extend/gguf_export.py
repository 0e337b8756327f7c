"""`extend.apply` into a GGUF file: of another file a copy under other rope keys, of any other source newly written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_writer import architecture_of, copy_gguf, write_gguf
from ropewalk.checkpoints.load import builds
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.extend.choice import Choice
from ropewalk.extend.decoder_tuning import decoder_of, outline_of_gguf
from ropewalk.extend.export import Exported, hub_of
from ropewalk.extend.gguf_rope import gguf_rope
from ropewalk.extend.hub import refuse_inexpressible
from ropewalk.extend.job import Extended
from ropewalk.extend.outcome import record as record_of
from ropewalk.extend.settings import ApplySettings
from ropewalk.extend.source import Model, SourceModel, reach_of
from ropewalk.methods import METHODS
from ropewalk.progress import Progress
from ropewalk.readers.environment import environment_of


def is_gguf(out: str | os.PathLike[str]) -> bool:
    """Whether a path to write names a GGUF file.

    >>> is_gguf("longer.gguf"), is_gguf("longer")
    (True, False)
    """
    return Path(out).suffix == ".gguf"


def apply_gguf(
    model: Model,
    out: str | os.PathLike[str],
    settings: ApplySettings,
    choice: Choice | None,
    *,
    overwrite: bool,
    restart: bool,
    progress: Progress,
) -> Extended:
    """Put a method into a GGUF file; arguments as `extend.apply`'s.

    Weights of a GGUF source are copied block by block, and not read: memory is that of its largest tensor. Raises
    `RopeError` before any work for what llama.cpp cannot do.
    """
    place = Path(out)
    _refuse_settings(settings, restart)
    refuse_inexpressible(settings.method)
    original = _file_of(model)
    _check_place(place, original, overwrite)
    if original is not None and settings.quantization is not None:
        raise RopeError(
            "extend: the blocks of a .gguf file are copied as they are, not quantised again.",
            facts={"model": str(original), "quantization": settings.quantization},
            cure="Leave --quantization out, or give the Hugging Face folder.",
        )
    reading = choice is not None or original is None  # a record is held against the weights
    source = SourceModel.open(model if reading else outline_of_gguf(original), settings.trained_length)
    if choice is not None:
        choice.check_model(source.reader, source.name)
    reach = reach_of(source.reader, settings)
    adapted = source.reader.under(METHODS[settings.method].positions(source.reader.positions, reach))
    decoder = decoder_of(adapted)
    hub = hub_of(adapted, settings.method, reach)
    if original is not None:
        file = GGUFFile(original)
        arch = str(file.metadata["general.architecture"])
    else:
        arch = architecture_of(decoder_of(source.reader).config)
    assert hub is not None  # of a Decoder
    finetuned = any(one.scaling_is_trained is True for one in adapted.positions.present_ropes)
    rope = gguf_rope(hub, arch, settings.method, reach, finetuned=finetuned)
    if original is not None:
        same = adapted.positions == source.reader.positions
        copy_gguf(file, place, None if same else rope, progress)
    else:
        write_gguf(
            decoder_of(source.reader),
            place,
            rope,
            quantization=settings.quantization or "f16",
            name=source.name,
            progress=progress,
        )
    written: dict[str, Any] = {f"{arch}.{key}": value for key, value in rope.keys.items()}
    written |= {f"{name}.weight": list(divisors) for name, divisors in rope.divisors.items()}
    return Extended(
        exported=Exported(folder=place, config=written, rope=None, dtype=source.stored),
        record=record_of(
            model=source.name,
            method=settings.method,
            protocol=None,
            variants=[],
            config=written,
            tuning=None,
            environment=environment_of("cpu", decoder.num_parameters()),
            unscaled_tokens=0,
        ),
    )


def _refuse_settings(settings: ApplySettings, restart: bool) -> None:
    """Refuse what belongs to folders, or to measuring, whose results have no place beside one file."""
    given: Mapping[str, Any] = {
        "--native": settings.native,
        "--dtype": settings.dtype,
        "--measure": settings.measures,
        "--restart": restart,
        "--unscaled-tokens": settings.unscaled_tokens,
    }
    refused = {name: value for name, value in given.items() if value}
    if refused:
        raise RopeError(
            "extend: these options belong to folders, and would be ignored for a .gguf file.",
            facts=refused,
            cure="Leave them out, or write a folder: --out DIR.",
        )


def _file_of(model: Model) -> Path | None:
    """The GGUF file that a model is read from, of an architecture that is built here; else None."""
    if not isinstance(model, str | os.PathLike):
        return None
    path = find(model)
    return path if path.is_file() and builds(path) else None


def _check_place(place: Path, original: Path | None, overwrite: bool) -> None:
    if original is not None and place.exists() and original.resolve() == place.resolve():
        raise RopeError(
            "extend: --out is the file that the model is read from.", facts={"out": str(place)}, cure="Pass another."
        )
    if place.exists() and not (overwrite and place.is_file()):
        raise RopeError(
            "extend: the output file exists already.",
            facts={"out": str(place)},
            cure="Pass another name, or --overwrite to replace it.",
        )
