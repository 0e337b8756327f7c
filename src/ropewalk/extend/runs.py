"""Apply a method to a checkpoint, and write a folder for transformers or a GGUF file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path, may_replace
from ropewalk.checkpoints.export import check_length, refuse_inexpressible
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_keys import gguf_rope
from ropewalk.checkpoints.gguf_writer import architecture_of, copy_gguf, write_gguf
from ropewalk.checkpoints.load import builds
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.extend.card import card
from ropewalk.extend.job import Exported, Model, SourceModel, check_out, export, hub_of, reach_of
from ropewalk.extend.settings import ApplySettings
from ropewalk.extend.writable import decoder_of, outline_of_gguf
from ropewalk.methods import METHODS, Reach
from ropewalk.models.precision import dtype_named
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import WritableReader
from ropewalk.report.record import read_record, stated_length, understood

CHOSEN = ("method", "target", "length", "trained_length")
"""The settings that a record contains."""
_INSTEAD = {
    "keep": "Use the model unchanged; no files are needed.",
    "cut": "Pass the model only the last tokens, up to its trained length; no files are needed.",
    "unfit": "Measure on a text that the model can predict: ropewalk doctor MODEL --text FILE.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The recommendation of a doctor's record.

    - `settings`: the method, the target, the length to state and the trained length.
    - `model`: its name. `digest`: of the model in `dtype`.
    """

    settings: Mapping[str, Any]
    model: str
    digest: str
    dtype: torch.dtype

    @classmethod
    def read(cls, record: str | os.PathLike[str] | Mapping[str, Any]) -> Choice:
        """Load a record: a file from `ropewalk doctor --json`, or its content.

        **Raises:** `RopeError` for any other file, a record without a verdict, and an action other than "extend".
        """
        document = dict(record) if isinstance(record, Mapping) else read_record(Path(record))
        with understood(document):
            verdict = document.get("verdict")
            if verdict is None:
                raise RopeError(
                    "extend: the record is from an earlier version and contains no verdict.",
                    facts={"model": str(document["model"])},
                    cure="Measure again with ropewalk doctor MODEL --json FILE, or pass --method.",
                )
            if verdict["action"] != "extend":
                following = (verdict["next"] or {}).get("command")
                raise RopeError(
                    "extend: the doctor does not recommend extending this model.",
                    facts={"action": verdict["action"], "verdict": verdict.get("headline", verdict["sentence"])},
                    cure=_INSTEAD.get(verdict["action"])
                    or (f"Measure more: {following}" if following else "To extend it anyway, pass --method."),
                )
            environment = document["environment"]
            return cls(
                settings={
                    "method": verdict["method"],
                    "target": int(document["target"]),
                    "length": stated_length(document),
                    "trained_length": int(document["trained_length"]),
                },
                model=str(document["model"]),
                digest=str(environment["model_digest"]),
                dtype=getattr(torch, environment["dtype"]),
            )

    def over(self, settings: ApplySettings) -> ApplySettings:
        """Return these settings with the record's method and lengths.

        **Raises:** `RopeError` if `settings` contain a method or a length, which would be ignored.
        """
        fields = ApplySettings.__dataclass_fields__
        given = {name: getattr(settings, name) for name in CHOSEN if getattr(settings, name) != fields[name].default}
        if given:
            refuse_beside_a_record(given)
        return dataclasses.replace(settings, **self.settings)

    def check_model(self, reader: WritableReader, name: str) -> None:
        """Raise `RopeError` unless the model is bitwise equal to the measured one."""
        digest = reader.to(dtype=self.dtype).digest()
        if digest != self.digest:
            raise RopeError(
                "extend: the record belongs to a different model.",
                facts={"model": f"{name}, digest {digest}", "record": f"{self.model}, digest {self.digest}"},
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
    choice = None if record is None else Choice.read(record)
    chosen = settings or ApplySettings()
    chosen = chosen if choice is None else choice.over(chosen)
    if as_path(out, "extend").suffix == ".gguf":
        return apply_gguf(model, out, chosen, choice, overwrite=overwrite, progress=progress or SilentProgress())
    if chosen.quantization is not None:
        raise RopeError(
            "extend: --quantization applies only to .gguf files, and would be ignored.",
            facts={"out": str(out), "quantization": chosen.quantization},
            cure="Pass --out MODEL.gguf, or --dtype for a folder.",
        )
    is_path = isinstance(model, str | os.PathLike)
    place = check_out(out, source=model if is_path else None, overwrite=overwrite)
    source, reach, adapted = _adapted(model, chosen, choice)

    def readme(exported: Exported) -> str:
        return card(source.name, chosen.method, exported.config)

    return export(
        adapted.to(device="cpu"),
        place,
        method=chosen.method,
        reach=reach,
        source=source.place,
        dtype=source.stored if chosen.dtype is None else dtype_named(chosen.dtype),
        overwrite=overwrite,
        native=chosen.native,
        length=chosen.length,
        card=readme,
    )


def _adapted(model: Model, settings: ApplySettings, choice: Choice | None) -> tuple[SourceModel, Reach, WritableReader]:
    """Return the source, the lengths, and the model under its method; raise `RopeError` for what cannot be applied."""
    source = SourceModel.open(model, settings.trained_length)
    if choice is not None:
        choice.check_model(source.reader, source.name)
    reach = reach_of(source.reader, settings)
    check_length(settings.length, settings.method, reach)
    own = source.reader.positions
    return source, reach, source.reader.under(METHODS[settings.method].positions(own, reach))


def apply_gguf(
    model: Model,
    out: str | os.PathLike[str],
    settings: ApplySettings,
    choice: Choice | None,
    *,
    overwrite: bool,
    progress: Progress,
) -> Exported:
    """Write a GGUF file under a method; arguments as for `extend.apply`.

    Weights of a GGUF source are copied block by block, not dequantised; the largest tensor must fit into memory.

    **Raises:** `RopeError`, before any work, if llama.cpp does not support the method or the model.
    """
    place = Path(out)
    refused = {
        name: value
        for name, value in {
            "native": settings.native,
            "dtype": settings.dtype,
        }.items()
        if value
    }
    if refused:
        raise RopeError(
            "extend: these settings apply only to folders, and would be ignored for a .gguf file.",
            facts=refused,
            cure="Leave them out, or write a folder with --out DIR.",
        )
    refuse_inexpressible(settings.method)
    path = find(model) if isinstance(model, str | os.PathLike) else None
    original = path if path is not None and path.is_file() and builds(path) else None  # a file of our own families
    if original is not None and place.exists() and original.resolve() == place.resolve():
        raise RopeError(
            "extend: --out is the file of the model itself.", facts={"out": str(place)}, cure="Pass a different file."
        )
    if place.exists() and not (overwrite and place.is_file() and may_replace(place)):
        raise RopeError(
            "extend: the output file already exists.",
            facts={"out": str(place)},
            cure="Pass a different name, or --overwrite to replace an earlier export.",
        )
    if original is not None and settings.quantization is not None:
        raise RopeError(
            "extend: blocks of a .gguf file are copied and cannot be quantised again.",
            facts={"model": str(original), "quantization": settings.quantization},
            cure="Leave out --quantization, or pass the Hugging Face folder.",
        )
    needs_weights = choice is not None or original is None  # a record is compared with the weights
    source, reach, adapted = _adapted(model if needs_weights else outline_of_gguf(original), settings, choice)
    decoder_of(adapted)  # raises for a model of another library
    hub = hub_of(adapted, settings.method, reach, settings.length)
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
    return Exported(folder=place, config=written, rope=None, dtype=source.stored)
