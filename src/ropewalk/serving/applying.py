"""Apply a method to a checkpoint, and write a folder for transformers or a GGUF file."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path, may_replace, whole_folder
from ropewalk.checkpoints.gguf import PERMUTED, config_fields
from ropewalk.checkpoints.gguf_copy import copy_gguf, gguf_rope
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.load import fast_dtype, stored_dtype
from ropewalk.checkpoints.opening import fast_copy, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.layers.precision import dtype_named, slow_dtype_of
from ropewalk.methods import METHODS, Reach, required_trained_length, settled_by_length
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Positions
from ropewalk.serving.engines import READERS_OF_CONFIGS, Case, applied
from ropewalk.serving.recorded import Recorded
from ropewalk.serving.settings import ApplySettings, check_length, refuse_inexpressible
from ropewalk.serving.writable import COMPANIONS, check_writable, in_dtype, write_checkpoint

Model = Any  # a path or name that rw.load takes, a Decoder, or a reader
CHOSEN = ("method", "target", "length", "trained_length")
"""The settings that a record contains."""
CARD = "README.md"
_WEIGHTS = re.compile(
    r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|adapter_(model\.safetensors|config\.json)"
)
_WRITTEN = frozenset({"config.json", CARD, *COMPANIONS})


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export: the folder, its config.json, and the weights' dtype.

    For a GGUF file `folder` is the file, `config` its keys of the rope, and `dtype` None.
    """

    folder: Path
    config: Mapping[str, Any]
    dtype: torch.dtype | None


def _over(record: Recorded, settings: ApplySettings) -> ApplySettings:
    """Return the settings with the record's method and lengths; raise `RopeError` if they contain one of these."""
    given = {f"--{name.replace('_', '-')}": getattr(settings, name) for name in CHOSEN}
    given = {option: value for option, value in given.items() if value is not None}
    if given:
        raise RopeError(
            "extend: --from and these options are mutually exclusive; the record contains the method and the lengths.",
            facts=given,
            cure="Leave out these options, or --from.",
        )
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
    method = chosen.method or "yarn"
    refuse_inexpressible(method)
    if as_path(out, "extend").suffix == ".gguf":
        return apply_gguf(
            model, out, method, chosen, choice, overwrite=overwrite, progress=progress or SilentProgress()
        )
    source = model if isinstance(model, str | os.PathLike) else None
    place = check_out(out, source=source, overwrite=overwrite)
    reader, stored = opened(model, chosen.trained_length)
    if choice is not None:
        _check_model(choice, reader, reader.name)
    reach = reach_of(reader.positions, chosen)
    check_length(chosen.length, method, reach)
    return export(
        reader.under(METHODS[method].positions(reader.positions, reach)),
        place,
        method=method,
        reach=reach,
        source=source,
        dtype=stored if chosen.dtype is None else dtype_named(chosen.dtype),
        overwrite=overwrite,
        length=chosen.length,
    )


def apply_gguf(
    model: Model,
    out: str | os.PathLike[str],
    method: str,
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
    check_length(settings.length, method, reach)
    changed = METHODS[method].positions(own, reach)
    rope = gguf_rope(changed.present_ropes[0], arch, method, reach, length=settings.length)
    copy_gguf(file, place, None if changed == own else rope, progress)
    written: dict[str, Any] = {f"{arch}.{key}": value for key, value in rope.keys.items()}
    written |= {f"{name}.weight": list(divisors) for name, divisors in rope.divisors.items()}
    return Exported(folder=place, config=written, dtype=None)


def opened(model: Model, trained_length: int | None = None) -> tuple[Reader, torch.dtype]:
    """Return the reader of a model, and the dtype in which it is written: the one that a checkpoint stores.

    The check by forwards runs in float32 if that dtype is slow. `trained_length`: tokens. It also settles whether the
    model was trained with its scaling, if that is unknown. Raises `RopeError` as `rw.load`.
    """
    if isinstance(model, str | os.PathLike):
        path = find(model)
        stored = stored_dtype(path)
        reader = open_reader(Path(model) if isinstance(model, os.PathLike) else model,
                             dtype=fast_dtype(path)[0] or stored)  # fmt: skip
        stored = reader.dtype if stored is None else stored
    else:
        reader, stored = _live(model)
    return reader.under(settled_by_length(reader.positions, trained_length)), stored


def _live(model: Model) -> tuple[Reader, torch.dtype]:
    """Return the reader of a loaded model, or of a float32 copy that is faster to check, and the model's dtype."""
    reader = reader_of(fast_copy(model)[0])
    weights = model[0] if isinstance(model, tuple) else model
    slow = slow_dtype_of(weights) if isinstance(weights, torch.nn.Module) else None
    return reader, slow or reader.dtype


def reach_of(positions: Positions, settings: ApplySettings) -> Reach:
    """Return the lengths of the settings; the target defaults to four times the trained length.

    Raises `RopeError` if the model has no rope, or if neither it nor the settings state the trained length.
    """
    trained = required_trained_length(positions, settings.trained_length)
    return Reach(trained, 4 * trained if settings.target is None else settings.target)


def check_out(out: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None, overwrite: bool) -> Path:
    """Return the folder to write; raise `RopeError` if it has other content or is the model's own."""
    place = as_path(out, "extend")
    if place.is_file():
        raise RopeError(
            "extend: --out must be a folder, but it is a file.",
            facts={"out": str(out)},
            cure="Pass a new folder: --out DIR.",
        )
    if source is not None and place.exists() and find(source).resolve() == place.resolve():
        raise RopeError(
            "extend: --out is the folder of the model itself.",
            facts={"model": str(source), "out": str(place)},
            cure="Pass another folder.",
        )
    files = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    if files and not overwrite:
        raise RopeError(
            "extend: the output folder is not empty.",
            facts={"out": str(place), "files": files[:8]},
            cure="Pass a new folder, or --overwrite to replace an earlier export.",
        )
    foreign = [name for name in files if name not in _WRITTEN and not _WEIGHTS.fullmatch(name)]
    if foreign or (files and not may_replace(place / "README.md")):
        raise RopeError(
            "extend: the output folder contains files that are not from an export; they would be deleted.",
            facts={"out": str(place), "files": (foreign or files)[:8]},
            cure="Pass a new folder.",
        )
    return place


def export(
    reader: Reader,
    out: str | os.PathLike[str],
    *,
    method: str,
    reach: Reach,
    source: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    length: int | None = None,
) -> Exported:
    """Write a model as a Hugging Face folder for transformers, with the same logits.

    **Arguments:**
    - `reader`: the model, already under the positions of `method`.
    - `method`, `reach`: the applied method and its lengths.
    - `source`: the model's path or name. Its other files are copied from a folder.
    - `dtype`: of the weights; defaults to the model's own.
    - `length`: the stated length in tokens, instead of the target; the frequencies are those of the target.

    **Returns:** an `Exported`.
    **Raises:** `RopeError` if no config of transformers expresses the method or the model, and as `check_out`.

    The folder is written under a temporary name and then renamed, so it is either complete or absent.
    """
    place = check_out(out, source=source, overwrite=overwrite)
    check_writable(reader, method, reach, length)
    chosen = reader.dtype if dtype is None else dtype
    names = {str(path.name) for path in place.iterdir()} if place.is_dir() else set()
    with whole_folder(place, frozenset(names) if overwrite else frozenset()) as staging:
        written = write_checkpoint(
            reader,
            staging,
            length=length or reach.target,
            dtype=chosen,
            source=None if source is None else find(source),
        )
        (staging / CARD).write_text(card(reader.name, method, written), encoding="utf-8")
    return Exported(folder=place, config=written, dtype=chosen)


def card(model: str, method: str, config: Mapping[str, Any]) -> str:
    """Return the model card of an extension in Markdown, from the names of model and method and the written config."""
    config = config.get("text_config") or config
    block, name = config["rope_parameters"], plain_text(model)
    keys = {"rope_parameters": block, "max_position_embeddings": config["max_position_embeddings"]}
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [ropewalk, long-context]",
        "---",
        "",
        f"# {name}, extended",
        "",
        f"Made from {name} by `ropewalk extend`: {plain_text(method)}, written to config.json. "
        f"Its licence is that of {name}.",
        "",
        "```json",
        json.dumps(keys, indent=2),
        "```",
        "",
        "## Programs that load it",
        "",
        *_readers(config),
        "",
        "Nothing was measured. To measure it, run `ropewalk doctor`.",
    ]
    return "\n".join(lines) + "\n"


def _readers(config: Mapping[str, Any]) -> list[str]:
    """Return one line for each program that loads the folder, by the rule of `serve-config`."""
    case = Case(block=config["rope_parameters"], model_type=str(config.get("model_type", "")), converted=True)
    former = (
        "version 4 does not"
        if case.several and case.model_type != "olmo3"
        else "version 4 `rope_scaling` and `rope_theta`; the folder has both"
    )
    lines = [f"- transformers 5 applies `rope_parameters`, {former}."]
    for engine, title in READERS_OF_CONFIGS.items():
        answer = applied(engine, case)
        notes = [one.text for one in answer.caveats if one.effect == "differs" and one.before is None]
        lost = f"not applied: {answer.reason}." if answer.state == "lost" else ""
        lines.append(f"- {title}: {lost or ' '.join(notes) or 'the same frequencies and temperature.'}")
    return [*lines, "", "The statements about other programs are from their sources, not from a run."]


def plain_text(text: str) -> str:
    r"""Escape a name for one line of Markdown.

    >>> print(plain_text("a*b\n# <c>"))
    a\*b \# \<c\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))
