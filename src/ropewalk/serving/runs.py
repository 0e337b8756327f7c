"""Apply a method to a checkpoint, and write a folder for transformers or a GGUF file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path, may_replace
from ropewalk.checkpoints.export import check_length, hub_rope, refuse_inexpressible
from ropewalk.checkpoints.gguf import PERMUTED, config_fields
from ropewalk.checkpoints.gguf_copy import copy_gguf, gguf_rope
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.layers.precision import dtype_named
from ropewalk.methods import METHODS, Reach, settled_by_length
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Positions
from ropewalk.serving.job import Exported, Model, card, check_out, export, opened, reach_of
from ropewalk.serving.recorded import Recorded
from ropewalk.serving.settings import ApplySettings
from ropewalk.serving.writable import in_dtype

CHOSEN = ("method", "target", "length", "trained_length")
"""The settings that a record contains."""


def _over(record: Recorded, settings: ApplySettings) -> ApplySettings:
    """Return the settings with the record's method and lengths; raise `RopeError` if they contain one of these."""
    fields = ApplySettings.__dataclass_fields__
    given = {name: getattr(settings, name) for name in CHOSEN if getattr(settings, name) != fields[name].default}
    if given:
        refuse_beside_a_record(given)
    lengths = {name: getattr(record, name) for name in CHOSEN if name != "method"}
    return dataclasses.replace(settings, method=record.recommended("extend"), **lengths)


def _check_model(record: Recorded, reader: Reader, name: str) -> None:
    """Raise `RopeError` unless the model is bitwise equal to the measured one."""
    digest = in_dtype(reader, dtype_named(record.dtype)).digest()
    if digest != record.digest:
        raise RopeError(
            "extend: the record belongs to a different model.",
            facts={"model": f"{name}, digest {digest}", "record": f"{record.model}, digest {record.digest}"},
            cure="Pass the model of the record, or measure this one.",
        )


def refuse_beside_a_record(given: Mapping[str, Any]) -> None:
    """Raise `RopeError` for settings that the record also contains."""
    raise RopeError(
        "extend: --from and these options are mutually exclusive; the record contains the method and the lengths.",
        facts={f"--{name.replace('_', '-')}": value for name, value in given.items()},
        cure="Leave out these options, or --from.",
    )


def apply(
    model: Model,
    out: str | os.PathLike[str],
    settings: ApplySettings | None = None,
    *,
    record: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Apply an extension method to a checkpoint, and write a folder for transformers or a GGUF file.

    **Arguments:**
    - `model`: a path or name as for `rw.load`, a `Decoder`, or a reader; it does not change.
    - `out`: the folder, or a file name with the ending .gguf; it appears when it is complete. `overwrite`: replace an
      earlier export.
    - `record`: the doctor's record with the method and the lengths, a file or `Diagnosis.to_json()`.

    **Returns:** an `Exported`.
    **Raises:** `RopeError`, before any work, for settings that conflict with the model, methods that config.json (or
    llama.cpp) cannot express, and a record of a different model or without a recommendation to extend.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = apply("tiny", folder + "/longer", ApplySettings(method="ntk"))
    ...     done.config["max_position_embeddings"]
    1024
    """
    choice = None if record is None else Recorded.read(record)
    chosen = settings or ApplySettings()
    chosen = chosen if choice is None else _over(choice, chosen)
    if as_path(out, "extend").suffix == ".gguf":
        return apply_gguf(model, out, chosen, choice, overwrite=overwrite, progress=progress or SilentProgress())
    is_path = isinstance(model, str | os.PathLike)
    place = check_out(out, source=model if is_path else None, overwrite=overwrite)
    stored, reach, adapted = _adapted(model, chosen, choice)

    def readme(exported: Exported) -> str:
        return card(adapted.name, chosen.method, exported.config)

    return export(
        adapted,
        place,
        method=chosen.method,
        reach=reach,
        source=model if is_path else None,
        dtype=stored if chosen.dtype is None else dtype_named(chosen.dtype),
        overwrite=overwrite,
        length=chosen.length,
        card=readme,
    )


def _adapted(model: Model, settings: ApplySettings, choice: Recorded | None) -> tuple[torch.dtype, Reach, Reader]:
    """Return the stored dtype, the lengths, and the model under its method; raise `RopeError` if it does not apply."""
    reader, stored = opened(model, settings.trained_length)
    if choice is not None:
        _check_model(choice, reader, reader.name)
    reach = reach_of(reader.positions, settings)
    check_length(settings.length, settings.method, reach)
    return stored, reach, reader.under(METHODS[settings.method].positions(reader.positions, reach))


def apply_gguf(
    model: Model,
    out: str | os.PathLike[str],
    settings: ApplySettings,
    choice: Recorded | None,
    *,
    overwrite: bool,
    progress: Progress,
) -> Exported:
    """Copy a GGUF file with the rope of a method; arguments as for `serving.apply`.

    Weights are copied block by block, not dequantised; the largest tensor must fit into memory.

    **Raises:** `RopeError`, before any work, for a model that is not a .gguf file, and if llama.cpp does not support
    the method or the model.
    """
    place = Path(out)
    if settings.dtype is not None:
        raise RopeError(
            "extend: the dtype applies only to folders, and would be ignored for a .gguf file.",
            facts={"dtype": settings.dtype},
            cure="Leave it out, or write a folder with --out DIR.",
        )
    refuse_inexpressible(settings.method)
    path = find(model) if isinstance(model, str | os.PathLike) else None
    if path is None or not path.is_file():
        raise RopeError(
            "extend: a .gguf file is written only as a copy of a .gguf file with other keys of the rope.",
            facts={"model": str(path) if path else type(model).__name__, "out": str(place)},
            cure=f"Convert the folder first, with llama.cpp: python convert_hf_to_gguf.py FOLDER --outfile {place}",
        )
    if place.exists() and path.resolve() == place.resolve():
        raise RopeError(
            "extend: --out is the file of the model itself.", facts={"out": str(place)}, cure="Pass a different file."
        )
    if place.exists() and not (overwrite and place.is_file() and may_replace(place)):
        raise RopeError(
            "extend: the output file already exists.",
            facts={"out": str(place)},
            cure="Pass a different name, or --overwrite to replace an earlier export.",
        )
    file = GGUFFile(path)
    arch = str(file.metadata.get("general.architecture"))
    if arch not in PERMUTED:
        raise file.error(
            "the rope keys of this architecture are unknown.",
            facts={"general.architecture": arch, "known": sorted(PERMUTED)},
            cure="Apply the method to the model's Hugging Face folder, and convert that with llama.cpp.",
        )
    if choice is not None:
        reader, _ = opened(path)
        _check_model(choice, reader, reader.name)
    one_layer = Positions((RopeConfig.from_hf(config_fields(file)),), (None,), (None,))  # all that rotate are alike
    own = settled_by_length(one_layer, settings.trained_length)
    reach = reach_of(own, settings)
    check_length(settings.length, settings.method, reach)
    changed = METHODS[settings.method].positions(own, reach)
    hub = hub_rope(changed.ropes, settings.method, reach, length=settings.length)
    finetuned = any(one.scaling_is_trained is True for one in changed.present_ropes)
    rope = gguf_rope(hub, arch, settings.method, reach, finetuned=finetuned)
    copy_gguf(file, place, None if changed == own else rope, progress)
    written: dict[str, Any] = {f"{arch}.{key}": value for key, value in rope.keys.items()}
    written |= {f"{name}.weight": list(divisors) for name, divisors in rope.divisors.items()}
    return Exported(folder=place, config=written, dtype=None)
