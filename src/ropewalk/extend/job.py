"""One extension, applied or tuned: the source model, the folder of unfinished work, and the folder that is written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ropewalk import ledger as ledgers
from ropewalk.atomic_io import remove_folder, sha256, whole_folder, write_json
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.export import (
    COMPANIONS,
    HubRope,
    check_length,
    compared_lengths,
    hub_rope,
    refuse_inexpressible,
    same_rope,
)
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.extend.measurement import (
    HeldOutText,
    Variant,
    after,
    before,
    card,
    measure,
    record,
    refuse_seen,
    untuned_crop,
)
from ropewalk.extend.settings import MethodSettings, OutputSettings
from ropewalk.extend.tunable import WritableLive, tunable
from ropewalk.extend.tuning import TuningRecipe
from ropewalk.measure.plan import KIND, Plan, trained_length_of
from ropewalk.measure.scaling import GIVEN
from ropewalk.methods import METHODS, Reach, settled, settled_by_length, unsettled
from ropewalk.models.config import Positions
from ropewalk.models.precision import dtype_named
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader, TunableReader
from ropewalk.rope.config import ropes_of_layer_types
from ropewalk.training.run_folder import RUN, RunFolder
from ropewalk.training.settings import on_machine

Model = Any  # a path or name that rw.load takes, a Decoder, or a reader


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model to extend: its reader, its name in reports, its path or name if it has one, the dtype of its weights."""

    reader: TunableReader
    name: str
    place: str | os.PathLike[str] | None
    stored: torch.dtype

    @classmethod
    def open(cls, model: Model, trained_length: int | None = None) -> SourceModel:
        """Load a checkpoint by its path or name, or take a loaded model; raise `RopeError` as `rw.load`.

        `trained_length`: tokens. It also settles whether the model was trained with its scaling, if that is unknown.
        """
        place = model if isinstance(model, str | os.PathLike) else None
        reader = tunable(
            reader_of(model) if place is None else open_reader(Path(place) if isinstance(place, os.PathLike) else place)
        )
        unknown = unsettled(reader.positions)
        answer = None if unknown is None or trained_length is None else settled_by_length(unknown, trained_length)
        if answer is not None:
            reader = reader.under(settled(reader.positions, answer, GIVEN))
        return cls(reader=reader, name=reader.name, place=place, stored=reader.dtype)

    def in_float32(self, device: str, dtype: torch.dtype = torch.float32) -> SourceModel:
        """Return a copy in float32, or in another dtype, on a device, to measure and tune."""
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


def reach_of(reader: Reader, settings: OutputSettings) -> Reach:
    """Return the lengths of the settings; the target defaults to four times the trained length.

    Raises `RopeError` if the model has no rope, or if neither it nor the settings state the trained length.
    """
    trained = trained_length_of(reader, settings.trained_length)
    return Reach(trained, 4 * trained if settings.target is None else settings.target, settings.unscaled_tokens)


_RUN, _LOSSES = "run", "losses"
_OF_A_RUN = {RUN, "training-log.jsonl", "checkpoints", "tokenizer.json", "tokenizer_config.json", ".lock"}
_OF_A_LEDGER = {ledgers.HEAD, ledgers.RESULTS, ledgers.LEASES, ledgers.LOCKS}


class WorkFolder:
    """The folder `OUT.tuning` of unfinished work: the tuning run in `run/`, ledgers of measured losses in `losses/`.

    Only work that tunes or measures claims it. Other files in it are never touched.
    """

    def __init__(self, out: Path) -> None:
        resolved = out.resolve()
        self.path = resolved.with_name(f"{resolved.name}.tuning")
        self.run = RunFolder(self.path / _RUN)
        self.losses = self.path / _LOSSES

    def check(self, *, tunes: bool, restart: bool) -> None:
        """Raise `RopeError` for foreign files, or (without `restart`) for a stopped tuning if nothing is tuned."""
        foreign = self._foreign()
        if foreign:
            raise RopeError(
                "extend: the folder for unfinished work, next to --out, contains other files.",
                facts={"folder": str(self.path), "files": foreign[:8]},
                cure="Pass another --out, or move that folder away.",
            )
        begun = self.run.begun()
        if begun is not None and not tunes and not restart:
            raise RopeError(
                "extend: there is a stopped tuning next to --out, and this command is a different one.",
                facts={"folder": str(self.path), "its method": begun["settings"].get("method")},
                cure="Pass another --out, or --restart to discard it; its own command resumes it.",
            )

    @contextmanager
    def claimed(self, recipe: TuningRecipe | None, *, restart: bool) -> Iterator[None]:
        """Claim the folder for the work in the block; afterwards remove the work, and the folder if it is empty.

        `recipe`: of the tuning; None if nothing is tuned. If the block fails, finished work stays. `restart` discards
        a stopped tuning: here, or in `tune_reader` after all checks.

        **Raises:** `RopeError` as `check`, and for a stopped tuning with another recipe or texts.
        """
        self.check(tunes=recipe is not None, restart=restart)
        was_empty = self.path.is_dir() and not any(self.path.iterdir())
        begun = self.run.begun()
        if begun is not None and recipe is None:
            with self.run.locked():
                self.run.clear()
        elif begun is not None and recipe is not None and not restart:
            here = recipe.on_this_machine()
            sums = {kind: [sha256(path) for path in getattr(here, kind)] for kind in ("text", "validation")}
            self.run.check_same(begun, {"settings": here.to_json(), "sha256": sums})
        yield
        self._remove(keep_folder=was_empty)

    def _remove(self, *, keep_folder: bool) -> None:
        if not self.path.is_dir():
            return
        if self.run.path.is_dir():
            self.run.clear()
            self.run.remove_leftovers()
            (self.run.path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # another process wrote into it
                self.run.path.rmdir()
        for name in _names(self.losses):
            if not _foreign_in_ledger(self.losses / name):
                remove_folder(self.losses / name)
        with suppress(OSError):
            self.losses.rmdir()
        if not keep_folder:
            with suppress(OSError):
                self.path.rmdir()

    def _foreign(self) -> list[str]:
        """Return the files that no tuning and no measurement wrote; [] if there is no folder."""
        if self.path.is_symlink() or self.path.is_file():
            return [self.path.name]
        foreign = [name for name in _names(self.path) if name not in (_RUN, _LOSSES)]
        run = _names(self.run.path)
        locked = ".lock" in run  # every run has it from its beginning to its end
        foreign += [f"{_RUN}/{name}" for name in run if not locked or not self._is_of_run(name)]
        foreign += [
            f"{_LOSSES}/{name}/{file}" if file else f"{_LOSSES}/{name}"
            for name in _names(self.losses)
            for file in _foreign_in_ledger(self.losses / name)
        ]
        return foreign + [path.name for path in (self.run.path, self.losses) if path.is_symlink() or path.is_file()]

    def _is_of_run(self, name: str) -> bool:
        """Return whether a run wrote the file of this name, possibly under its temporary name."""
        if name == RUN:
            settings = _content(self.run.path / name).get("settings", {})
            return isinstance(settings, dict) and {"trained_length", "target"} <= set(settings)
        return name in _OF_A_RUN or any(name.startswith(f".{one}.") for one in _OF_A_RUN)


def _foreign_in_ledger(folder: Path) -> list[str]:
    """Return the files in a folder that no ledger of losses wrote; [""] if it is no such ledger."""
    head, names = folder / ledgers.HEAD, _names(folder)
    if not folder.is_dir() or (head.exists() and _content(head).get("kind") != KIND):
        return [""]
    known = _OF_A_LEDGER if head.exists() else set()
    return [name for name in names if name not in known and not name.startswith(f".{ledgers.HEAD}.")]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _content(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {}."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


SHARD_BYTES = 5_000_000_000  # of one weight file: transformers' former default
RECORD, LOG, CARD, FIGURE = "extend.json", "training-log.jsonl", "README.md", "extend.png"
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
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
            cure="Write a folder, then: ropewalk extend apply FOLDER --method as-is --out MODEL.gguf",
        )
    if not str(out) or place.is_file():
        raise RopeError(
            "extend: --out names the folder to write.", facts={"out": str(out)}, cure="Pass a new folder: --out DIR."
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
            cure="Pass a new folder, or --overwrite to replace a checkpoint that an export wrote.",
        )
    foreign = [name for name in files if name not in _WRITTEN and not _WEIGHTS.fullmatch(name)]
    if foreign:
        raise RopeError(
            "extend: the output folder contains files that no export writes, and would lose them.",
            facts={"out": str(place), "files": foreign[:8]},
            cure="Pass a new folder.",
        )
    return place


def export(
    reader: TunableReader,
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
    """Write a model as a Hugging Face folder that transformers loads, with the same logits.

    **Arguments:**
    - `reader`: the model, already under the positions of `method`; interleaved heads are written half-split.
    - `method`, `reach`: the method that was applied, and its lengths; see `hub_rope`.
    - `source`: the model's path or name. Its config.json is kept except for the rope's keys, and its other files are
      copied. For a GGUF file, ropewalk's own folders and None they are written from the model.
    - `dtype`: of the weights; defaults to the model's own.
    - `native`: write ropewalk's own form, which expresses every method, but which only `ropewalk.load` opens.
    - `length`: tokens, stated instead of the target; the frequencies are those of the target.
    - `more_files`: called with the result; returns more files of the folder by name: README.md, extend.json, ...
    - `shard_bytes`: the largest weight file; beyond it there are several, and an index.

    **Returns:** an `Exported`.
    **Raises:** `RopeError` if no config of transformers expresses the method or the model, and as `check_out`.

    The folder is written under a temporary name and then renamed, so that it is whole or absent.

    >>> import tempfile
    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.extend.tunable import TunableDecoder
    >>> tiny = TunableDecoder(load("tiny"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(tiny, folder + "/x", method="plain", reach=Reach(256, 256), source="tiny").dtype
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
    """Return a config that states `length` in the place of the target; raise `RopeError` if that changes its ropes."""
    inner = config.get("text_config", config)
    if inner.get("max_position_embeddings") != reach.target:
        return dict(config)
    shorter = {**inner, "max_position_embeddings": length}
    after = ropes_of_layer_types(shorter)
    for label, rope in ropes_of_layer_types(inner).items():
        other = after.get(label)
        if rope != other and not (rope and other and same_rope(other, rope, compared_lengths(reach))):
            raise RopeError(
                "extend: this family takes its frequencies from the stated length, so it must be the target.",
                facts={"length": length, "target": reach.target},
                cure="Leave the length out, and give the model at most that many tokens.",
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
            "extend: an extension in attention cannot be exported: no config.json describes one.",
            facts={"extension": extension},
            cure="Export a method that acts on frequencies; or set `native`, for a folder that only ropewalk loads.",
        )
    return hub_rope(reader.positions.ropes, method, reach, length=length)


def _positions_of(positions: Positions, hub: HubRope) -> Positions:
    """Return each rope as the config expresses it; heads stay interleaved until they are re-ordered."""
    rope = replace(hub.rope, interleaved=positions.present_ropes[0].interleaved)
    ropes = tuple(None if one is None else rope for one in positions.ropes)
    return Positions(ropes, (None,) * len(ropes), positions.sliding_windows)


Draw = Callable[[Mapping[str, Any]], bytes]
"""The function that draws the PNG in the folder from the record."""


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A finished extension: the export, and its record (the content of extend.json)."""

    exported: Exported
    record: Mapping[str, Any]


class ExtendJob:
    """One extension. The constructor makes every check.

    - `source`: the model. `adapted`: the model under its method. Both are in float32 if they are measured or tuned.
    - `length`: tokens to state in the config, or None: the target.
    - `out`: the folder to write. `work`: the folder of unfinished work.
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
        draw: Draw | None = None,
    ) -> None:
        self.length = length
        self.settings, self.overwrite, self.restart = settings, overwrite, restart
        self.progress, self.draw = progress, draw
        self.works = settings.tunes or settings.measures
        if restart and not self.works:
            raise RopeError(
                "extend: --restart only applies to work that can be stopped, and would be ignored.",
                facts={"restart": True},
                cure="Pass --measure, or leave it out.",
            )
        is_path = isinstance(model, str | os.PathLike)
        self.out = check_out(out, source=model if is_path else None, overwrite=overwrite)
        self.work = WorkFolder(self.out)
        if self.works:
            self.work.check(tunes=settings.tunes, restart=restart)
        self.device, _ = on_machine(settings.device, "float32")
        self.source = SourceModel.open(model, settings.trained_length)
        if settings.tunes:
            self.source.reader.trained_count("norms", rank=1)  # raises for a kind of model that cannot be tuned
        self.reach = reach_of(self.source.reader, settings)
        check_length(length, settings.method, self.reach)
        self.adapted = self._under_method()
        if not settings.native:
            hub_of(self.adapted, settings.method, self.reach, length)  # raises before the work, not after it
        self.held_out: HeldOutText | None = None
        self.variants: list[Variant] = []
        self.tuning: dict[str, Any] | None = None
        if self.works:
            self.source = self.source.in_float32(self.device)
            self.adapted = self._under_method()
        if settings.measures:
            self.held_out = HeldOutText.take(
                settings.validation,
                self.source.tokenizer("measured or tuned on"),
                self.reach,
                start_char=settings.start_char,
                unscaled_tokens=self.reach.unscaled_tokens,
                windows=settings.windows,
                block=settings.block,
                seed=settings.seed,
            )

    def _under_method(self) -> TunableReader:
        reader = self.source.reader
        return reader.under(METHODS[self.settings.method].positions(reader.positions, self.reach))

    def refuse_seen(self, texts: Sequence[str]) -> None:
        """Raise `RopeError` if the held-out text (all of it if nothing is measured) shares passages with `texts`."""
        validation = self.settings.validation
        if self.source.reader.tokenizer is None or (self.held_out is None and validation is None):
            return  # nothing is held out, or tuning raises for the missing tokenizer
        tokenizer = self.source.reader.tokenizer
        if self.held_out is None:
            name, contents = read_text(validation)
            windows = torch.tensor([tokenizer.encode(contents)])
        else:
            windows, name = self.held_out.windows, self.held_out.name
        contents_by_path = [(path, read_text(path)[1]) for path in texts]
        refuse_seen(windows, contents_by_path, tokenizer, validation=str(validation or name))

    def measure_before(self) -> None:
        """Measure the checkpoint plain, under crop and under the method; before tuning, in fresh windows too."""
        if self.held_out is not None:
            reader, protocol, method = self.source.reader, self.held_out.protocol, self.settings.method
            self._measure(reader, *before(reader, protocol, method))
            if self.settings.tunes:
                self._measure(self.adapted, *untuned_crop(self.adapted, protocol, method))

    def measure_after(self, tuned: Reader) -> None:
        """Measure the tuned model, with and without the distant tokens."""
        if self.held_out is not None:
            self._measure(tuned, *after(tuned, self.held_out.protocol))

    def _measure(self, reader: Reader, plan: Plan, names: Mapping[str, str]) -> None:
        if not names:
            return
        assert self.held_out is not None
        windows = self.held_out.windows
        self.variants += measure(reader, windows, plan, names, self.work.losses, progress=self.progress)

    def export(self, final: TunableReader) -> Extended:
        """Write the folder; it appears when it is complete."""
        records: list[dict[str, Any]] = []
        settings = self.settings

        def more_files(exported: Exported) -> dict[str, str | bytes]:
            records.append(
                record(
                    model=self.source.name,
                    method=settings.method,
                    protocol=None if self.held_out is None else self.held_out.protocol,
                    variants=self.variants,
                    config=exported.config,
                    tuning=self.tuning,
                    environment=environment_of(self.device, self.source.reader.parameters),
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
        return Extended(exported=exported, record=records[0])

    def _files(self, document: Mapping[str, Any]) -> dict[str, str | bytes]:
        """Return README.md; if there are any, also extend.json, the figure and the log of the tuning."""
        drawn = self.draw is not None and self.held_out is not None
        recorded = self.held_out is not None or self.tuning is not None
        files: dict[str, str | bytes] = {
            CARD: card(document, figure=FIGURE if drawn else None, numbers=RECORD if recorded else None)
        }
        if recorded:
            files[RECORD] = json.dumps(document, indent=1, allow_nan=False) + "\n"
        if self.tuning is not None:
            files[LOG] = (self.work.run.path / LOG).read_bytes()
        if drawn and self.draw is not None:
            files[FIGURE] = self.draw(document)
        return files


def tuning_record(folder: Path, settings: Mapping[str, Any], parameters_trained: int) -> dict[str, Any]:
    """Return a tuning's settings and log from its files; texts are named without their folders."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    log = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    names = {name: [Path(path).name for path in settings[name]] for name in ("text", "validation")}
    return {
        "settings": {**settings, **names},
        "precision": run["settings"]["precision"],
        "sha256": run["sha256"],
        "text_tokens": run["train_tokens"],
        "tokens": log[-1]["tokens"],
        "seconds": log[-1]["seconds"],
        "parameters_trained": parameters_trained,
        "threads": run["threads"],
        "log": log,
    }
