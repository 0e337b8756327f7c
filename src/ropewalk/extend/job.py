"""One extension: the source model, the folder of unfinished work, and the output folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ropewalk.atomic_io import remove_folder, whole_folder, write_json
from ropewalk.checkpoints.export import (
    COMPANIONS,
    SHARD_BYTES,
    HubRope,
    check_length,
    compared_lengths,
    hub_rope,
    refuse_inexpressible,
    same_rope,
)
from ropewalk.checkpoints.load import builds
from ropewalk.checkpoints.sources import find
from ropewalk.checkpoints.stored_dtype import fast_dtype, stored_dtype
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.errors import RopeError
from ropewalk.extend.card import card, record
from ropewalk.extend.diagnoses import diagnose
from ropewalk.extend.settings import MethodSettings, OutputSettings
from ropewalk.extend.writable import WritableLive, writable
from ropewalk.figures.style import render
from ropewalk.measure.plan import trained_length_of
from ropewalk.measure.scaling import GIVEN
from ropewalk.methods import METHODS, Reach, settled, settled_by_length, unsettled
from ropewalk.models.config import Positions
from ropewalk.models.precision import dtype_named, slow_dtype_of
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress
from ropewalk.readers.adapters import fast_copy, open_reader, reader_of
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader, WritableReader
from ropewalk.rope.config import ropes_of_layer_types
from ropewalk.training.settings import on_machine

Model = Any  # a path or name that rw.load takes, a Decoder, or a reader


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model to extend: its reader, its name in reports, its path or name if any, and the dtype of its weights."""

    reader: WritableReader
    name: str
    place: str | os.PathLike[str] | None
    stored: torch.dtype

    @classmethod
    def open(cls, model: Model, trained_length: int | None = None) -> SourceModel:
        """Load a checkpoint by its path or name, or use a loaded model; raise `RopeError` as `rw.load`.

        `trained_length`: tokens. It also settles whether the model was trained with its scaling, if that is unknown.
        """
        place = model if isinstance(model, str | os.PathLike) else None
        opened, stored = _live(model) if place is None else _checkpoint(place)
        reader = writable(opened)
        unknown = unsettled(reader.positions)
        answer = None if unknown is None or trained_length is None else settled_by_length(unknown, trained_length)
        if answer is not None:
            reader = reader.under(settled(reader.positions, answer, GIVEN))
        return cls(reader=reader, name=reader.name, place=place, stored=stored)

    def in_float32(self, device: str, dtype: torch.dtype = torch.float32) -> SourceModel:
        """Return a copy on a device, in float32 or a different dtype, to measure."""
        return replace(self, reader=self.reader.to(device=device, dtype=dtype))

    def tokenizer(self, work: str) -> Tokenizer:
        """Return the model's tokenizer; raise `RopeError` if it has none. `work`: a participle for the message."""
        if self.reader.tokenizer is None:
            raise RopeError(
                f"extend: the checkpoint has no tokenizer, so no text can be {work}.",
                facts={"model": self.name},
                cure="Put its tokenizer.json into the folder of the weights.",
            )
        return self.reader.tokenizer


def _checkpoint(place: str | os.PathLike[str]) -> tuple[Reader, torch.dtype]:
    """Return the reader of a checkpoint, and the dtype that it stores, in which it is written.

    Our own families are read in that dtype: to write them computes nothing. Others are checked by forwards, which run
    in float32 if the stored dtype is slow.
    """
    source = Path(place) if isinstance(place, os.PathLike) else place
    path = find(source)
    stored = stored_dtype(path)
    dtype = stored if builds(path) else fast_dtype(path)[0] or stored
    reader = open_reader(source, dtype=dtype)
    return reader, reader.dtype if stored is None else stored


def _live(model: Model) -> tuple[Reader, torch.dtype]:
    """Return the reader of a loaded model, or of a float32 copy that is faster to check, and the model's dtype."""
    reader = reader_of(fast_copy(model)[0])
    weights = model[0] if isinstance(model, tuple) else model
    slow = slow_dtype_of(weights) if isinstance(weights, torch.nn.Module) else None
    return reader, slow or reader.dtype


def reach_of(reader: Reader, settings: OutputSettings) -> Reach:
    """Return the lengths of the settings; the target defaults to four times the trained length.

    Raises `RopeError` if the model has no rope, or if neither it nor the settings state the trained length.
    """
    trained = trained_length_of(reader, settings.trained_length)
    return Reach(trained, 4 * trained if settings.target is None else settings.target, settings.unscaled_tokens)


MARKER, TRAINER, LOSSES = "tuning.json", "trainer", "losses"
_OURS = (MARKER, TRAINER, LOSSES)
_LOCK = ".lock"
_KIND = "unfinished work of ropewalk extend"


class WorkFolder:
    """The folder `OUT.tuning` of unfinished work.

    `tuning.json` marks it and contains the recipe of its tuning, `trainer/` the tuning's checkpoints, and `losses/` the
    doctor's results so far. It is used only to tune or measure.
    """

    def __init__(self, out: Path) -> None:
        resolved = out.resolve()
        self.path = resolved.with_name(f"{resolved.name}.tuning")
        self.marker, self.trainer, self.losses = (self.path / name for name in _OURS)

    def begun(self) -> Mapping[str, Any] | None:
        """Return the recipe of the stopped tuning in the folder; None if there is none."""
        recipe = _content(self.marker).get("recipe")
        return recipe if isinstance(recipe, dict) else None

    def check(self, recipe: Mapping[str, Any] | None, *, restart: bool) -> None:
        """Raise `RopeError` for foreign files, or (without `restart`) for a stopped tuning with another recipe.

        `recipe`: of the tuning, as JSON; None if nothing is tuned.
        """
        names = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        names = [name for name in names if name != _LOCK]
        foreign = [name for name in names if name not in _OURS and not name.startswith(f".{MARKER}.")]
        if names and not foreign and _content(self.marker).get("kind") != _KIND:
            foreign = names
        if self.path.is_symlink() or self.path.is_file():
            foreign = [self.path.name]
        if foreign:
            raise RopeError(
                "extend: the folder for unfinished work next to --out contains other files.",
                facts={"folder": str(self.path), "files": foreign[:8]},
                cure="Pass a different --out, or move the folder.",
            )
        begun = self.begun()
        if begun is None or restart:
            return
        if recipe is None:
            raise RopeError(
                "extend: there is a stopped tuning of a different command next to --out.",
                facts={"folder": str(self.path), "its method": begun.get("method")},
                cure="Pass a different --out, rerun its own command to resume it, or pass --restart to discard it.",
            )
        now = json.loads(json.dumps(recipe))
        pairs = {name: (begun.get(name), now.get(name)) for name in {**begun, **now}}
        changed = {name: f"{old}, now {new}" for name, (old, new) in pairs.items() if old != new}
        if changed:
            raise RopeError(
                "extend: there is a stopped tuning with other settings next to --out.",
                facts={"folder": str(self.path), **changed},
                cure="Rerun its command to resume it, or pass --restart to discard it.",
            )

    @contextmanager
    def claimed(self, recipe: Mapping[str, Any] | None, *, restart: bool) -> Iterator[None]:
        """Claim the folder for the block, and remove the work afterwards.

        If the block raises, finished work is kept. `restart` discards a stopped tuning.

        **Raises:** `RopeError` as `check`.
        """
        self.check(recipe, restart=restart)
        was_empty = self.path.is_dir() and not any(self.path.iterdir())
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / _LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise RopeError(
                "extend: another process is using this --out.",
                facts={"folder": str(self.path)},
                cure="Wait for it, or pass a different --out.",
            ) from error
        if restart and self.trainer.is_dir():
            remove_folder(self.trainer)
        write_json(self.marker, {"kind": _KIND, "recipe": recipe})
        try:
            yield
        except BaseException:
            lock.release()
            if not any(any(folder.rglob("*")) for folder in (self.trainer, self.losses)):
                self._remove(keep=was_empty)  # nothing was done
            raise
        lock.release()
        self._remove(keep=was_empty)

    def _remove(self, *, keep: bool) -> None:
        """Remove the work, and the folder unless it is to be kept."""
        for folder in (self.trainer, self.losses):
            if folder.is_dir():
                remove_folder(folder)
        for file in (self.marker, self.path / _LOCK):
            file.unlink(missing_ok=True)
        if not keep:
            with suppress(OSError):  # another process wrote into it
                self.path.rmdir()


def _content(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {}."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


RECORD, LOG, CARD, FIGURE = "extend.json", "training-log.jsonl", "README.md", "extend.png"
_WEIGHTS = re.compile(
    r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|adapter_(model\.safetensors|config\.json)"
)
_WRITTEN = frozenset({"config.json", CARD, RECORD, LOG, FIGURE, "search.json", "search.png", *COMPANIONS})  # two of old


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export: the folder, its config.json, the rope in it, and the weights' dtype.

    `rope` is None for a native folder and for families that are not ropewalk's own. For a GGUF file `folder` is the
    file and `config` its keys of the rope.
    """

    folder: Path
    config: Mapping[str, Any]
    rope: HubRope | None
    dtype: torch.dtype


def check_out(out: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None, overwrite: bool) -> Path:
    """Return the folder to write; raise `RopeError` if it has other content or is the model's own."""
    place = Path(out)
    if place.suffix == ".gguf":
        raise RopeError(
            "extend: only `extend apply` writes .gguf files.",
            facts={"out": str(place)},
            cure="Write a folder, then run: ropewalk extend apply FOLDER --method as-is --out MODEL.gguf",
        )
    if not str(out) or place.is_file():
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
    written = {*_WRITTEN, f"{place.name}.gguf"}
    foreign = [name for name in files if name not in written and not _WEIGHTS.fullmatch(name)]
    if foreign:
        raise RopeError(
            "extend: the output folder contains files that are not from an export; they would be deleted.",
            facts={"out": str(place), "files": foreign[:8]},
            cure="Pass a new folder.",
        )
    return place


def export(
    reader: WritableReader,
    out: str | os.PathLike[str],
    *,
    method: str,
    reach: Reach,
    source: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    native: bool = False,
    length: int | None = None,
    more_files: Callable[[Exported], Mapping[str, str | bytes]] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Write a model as a Hugging Face folder for transformers, with the same logits.

    **Arguments:**
    - `reader`: the model, already under the positions of `method`; interleaved heads are written half-split.
    - `method`, `reach`: the applied method and its lengths; see `hub_rope`.
    - `source`: the model's path or name. Its config.json is kept except for the rope's keys, and its other files are
      copied. For a GGUF file, ropewalk's own folders and None, they are written from the model.
    - `dtype`: of the weights; defaults to the model's own.
    - `native`: write ropewalk's own form, which expresses every method, but only `ropewalk.load` supports it.
    - `length`: the stated length in tokens, instead of the target; the frequencies are those of the target.
    - `more_files`: called with the result; returns more files of the folder by name: README.md, extend.json, ...
    - `shard_bytes`: largest size of a weight file; larger weights are split into several files with an index.

    **Returns:** an `Exported`.
    **Raises:** `RopeError` if no config of transformers expresses the method or the model, and as `check_out`.

    The folder is written under a temporary name and then renamed, so it is either complete or absent.

    >>> import tempfile
    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.extend.writable import WritableDecoder
    >>> tiny = WritableDecoder(load("tiny"))
    >>> how = {"method": "plain", "reach": Reach(256, 256), "dtype": torch.bfloat16}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(tiny, folder + "/x", source="tiny", **how).dtype
    torch.bfloat16
    """
    place = check_out(out, source=source, overwrite=overwrite)
    hub = None if native else hub_of(reader, method, reach, length)
    chosen = reader.dtype if dtype is None else dtype
    names = {str(path.name) for path in place.iterdir()} if place.is_dir() else set()
    with whole_folder(place, frozenset(names) if overwrite else frozenset()) as staging:
        written = (reader if hub is None else reader.under(_positions_of(reader.positions, hub))).write_checkpoint(
            staging,
            rope_fields=None if native else {} if hub is None else hub.fields(),
            length=(length or reach.target) if hub is None else hub.max_position_embeddings,
            dtype=chosen,
            source=None if source is None or native else find(source),
            shard_bytes=shard_bytes,
        )
        if hub is None and not native and length is not None:  # transformers wrote it
            written = _stating(written, length, reach)
        exported = Exported(folder=place, config=written, rope=hub, dtype=chosen)
        for name, content in (more_files(exported) if more_files is not None else {}).items():
            (staging / name).write_bytes(content.encode() if isinstance(content, str) else content)
        write_json(staging / "config.json", written)
    return exported


def _stating(config: Mapping[str, Any], length: int, reach: Reach) -> dict[str, Any]:
    """Return a config with `length` instead of the target; raise `RopeError` if this changes its ropes."""
    inner = config.get("text_config", config)
    if inner.get("max_position_embeddings") != reach.target:
        return dict(config)
    shorter = {**inner, "max_position_embeddings": length}
    after = ropes_of_layer_types(shorter)
    for label, rope in ropes_of_layer_types(inner).items():
        other = after.get(label)
        if rope != other and not (rope and other and same_rope(other, rope, compared_lengths(reach))):
            raise RopeError(
                "extend: this family computes its frequencies from the stated length, so it must be the target.",
                facts={"length": length, "target": reach.target},
                cure="Leave out the length, and pass the model at most this many tokens.",
            )
    return {**config, "text_config": shorter} if "text_config" in config else shorter


def hub_of(reader: Reader, method: str, reach: Reach, length: int | None = None) -> HubRope | None:
    """Return `hub_rope` of a model without an extension in attention; None for a model that writes its own block.

    Raises `RopeError` if there is no block.
    """
    refuse_inexpressible(method)
    if isinstance(reader, WritableLive):
        reader.check_writable(method, reach)
        return None
    extension = next((one for one in reader.positions.extensions if one is not None), None)
    if extension is not None:
        raise RopeError(
            "extend: config.json cannot express an extension in attention.",
            facts={"extension": extension},
            cure="Export a method that scales frequencies, or set `native` for a folder that only ropewalk loads.",
        )
    return hub_rope(reader.positions.ropes, method, reach, length=length)


def _positions_of(positions: Positions, hub: HubRope) -> Positions:
    """Return each rope as the config expresses it; heads stay interleaved until they are re-ordered."""
    rope = replace(hub.rope, interleaved=positions.present_ropes[0].interleaved)
    ropes = tuple(None if one is None else rope for one in positions.ropes)
    return Positions(ropes, (None,) * len(ropes), positions.sliding_windows)


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A finished extension.

    - `exported`: the output. `record`: the content of extend.json.
    - `diagnoses`: the doctor's, by `diagnoses.APPLIED`.
    """

    exported: Exported
    record: Mapping[str, Any]
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)


class ExtendJob:
    """One extension. The constructor makes all checks.

    - `source`: the model. `adapted`: the model under its method. Both are in float32 if they are measured.
    - `length`: the stated length in tokens; None: the target.
    - `out`: the output folder. `work`: the folder of unfinished work.
    - `diagnoses`: the doctor's diagnoses so far.
    """

    def __init__(
        self,
        model: Model,
        out: str | os.PathLike[str],
        settings: MethodSettings,
        *,
        length: int | None = None,
        overwrite: bool = False,
        restart: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.length, self.settings, self.overwrite, self.progress = length, settings, overwrite, progress
        works = settings.measures
        if restart and not works:
            raise RopeError(
                "extend: --restart applies only to work that can be resumed, and would be ignored.",
                facts={"restart": True},
                cure="Pass --measure, or leave out --restart.",
            )
        is_path = isinstance(model, str | os.PathLike)
        self.out = check_out(out, source=model if is_path else None, overwrite=overwrite)
        self.work = WorkFolder(self.out)
        if works:
            self.work.check(None, restart=restart)
        self.device, _ = on_machine(settings.device, "float32")
        self.source = SourceModel.open(model, settings.trained_length)
        self.reach = reach_of(self.source.reader, settings)
        check_length(length, settings.method, self.reach)
        self.adapted = self._under_method()
        if not settings.native:
            hub_of(self.adapted, settings.method, self.reach, length)  # raises before the work, not after it
        self.diagnoses: dict[str, Diagnosis] = {}
        if works:
            self.source = self.source.in_float32(self.device)
            self.adapted = self._under_method()
            self.source.tokenizer("measured")

    def _under_method(self) -> WritableReader:
        reader = self.source.reader
        return reader.under(METHODS[self.settings.method].positions(reader.positions, self.reach))

    def diagnose(self, name: str) -> None:
        """Store the doctor's diagnosis under a name (`diagnoses.TITLES`), if the settings measure."""
        settings = self.settings
        if settings.measures:
            self.diagnoses[name] = diagnose(
                self.source.reader,
                method=settings.method,
                reach=self.reach,
                engine="python" if settings.native else None,
                text=settings.validation,
                windows=settings.windows,
                seed=settings.seed,
                state=self.work.losses,
                progress=self.progress,
            )

    def export(self, final: WritableReader) -> Extended:
        """Write the folder; it appears when it is complete."""
        records: list[dict[str, Any]] = []
        settings = self.settings

        def more_files(exported: Exported) -> dict[str, str | bytes]:
            records.append(
                record(
                    model=self.source.name,
                    method=settings.method,
                    config=exported.config,
                    environment=environment_of(self.device, self.source.reader.parameters),
                    diagnoses=self.diagnoses,
                    unscaled_tokens=self.reach.unscaled_tokens,
                )
            )
            return self._files(records[0])

        exported = export(
            final.to(device="cpu"),
            self.out,
            method=settings.method,
            reach=self.reach,
            source=self.source.place,
            dtype=self.source.stored if settings.dtype is None else dtype_named(settings.dtype),
            overwrite=self.overwrite,
            native=settings.native,
            length=self.length,
            more_files=more_files,
        )
        return Extended(exported=exported, record=records[0], diagnoses=self.diagnoses)

    def _files(self, document: Mapping[str, Any]) -> dict[str, str | bytes]:
        """Return README.md, and if something was measured, extend.json and the doctor's figure."""
        files: dict[str, str | bytes] = {}
        if self.diagnoses and find_spec("matplotlib"):
            files[FIGURE] = render([*self.diagnoses.values()][-1].figure("loss"), "png")
        files[CARD] = card(
            document,
            self.diagnoses,
            figure=FIGURE if FIGURE in files else None,
            numbers=RECORD if self.diagnoses else None,
        )
        if self.diagnoses:
            files[RECORD] = json.dumps(document, indent=1, allow_nan=False) + "\n"
        return files
