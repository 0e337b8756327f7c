"""Share what applying and tuning need: the source model, the folder of unfinished work, the measurement, the output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ropewalk import ledger as ledgers
from ropewalk.atomic_io import remove_folder, sha256
from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.extend.card import card
from ropewalk.extend.measurement import HeldOutText, Variant, after, before, measure, record, refuse_seen, untuned_crop
from ropewalk.extend.output import CARD, FIGURE, LOG, RECORD, Exported, check_out, export, hub_of
from ropewalk.extend.settings import MethodSettings, OutputSettings
from ropewalk.extend.tunable import tunable
from ropewalk.extend.tuning import TuningRecipe
from ropewalk.measure.plan import KIND, Plan, trained_length_of
from ropewalk.methods import METHODS, Reach, settled, settled_by_length, unsettled
from ropewalk.models.precision import dtype_named
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader, TunableReader
from ropewalk.training.run_folder import RUN, RunFolder
from ropewalk.training.settings import on_machine

GIVEN = "--trained-length"
Model = Any  # a path or name that rw.load takes, a Decoder, or a reader


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model to extend: its reader, its name in reports, where it was loaded from, and the dtype of its weights."""

    reader: TunableReader
    name: str
    place: str | os.PathLike[str] | None
    stored: torch.dtype

    @classmethod
    def open(cls, model: Model, trained_length: int | None = None) -> SourceModel:
        """Load a checkpoint by its path or name, or take a loaded model; raise `RopeError` as `rw.load`.

        `trained_length`: tokens. It also settles whether the model was trained with its scaling, if that is open.
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
        """Return a copy in float32, or in another dtype, on a device: what is measured and tuned."""
        return replace(self, reader=self.reader.to(device=device, dtype=dtype))

    def tokenizer(self, work: str) -> Tokenizer:
        """Return the model's tokenizer, or raise `RopeError` if it has none. `work`: what it is needed for."""
        if self.reader.tokenizer is None:
            raise RopeError(
                f"extend: the checkpoint has no tokenizer, so no text can be {work}.",
                facts={"model": self.name},
                cure="Put its tokenizer.json beside the weights.",
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
    """Keep unfinished work in `OUT.tuning`: the tuning run in `run/`, ledgers of measured losses in `losses/`.

    Only work that tunes or measures claims it. It never touches other files.
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
                "extend: the folder for unfinished work, beside --out, holds something else.",
                facts={"folder": str(self.path), "files": foreign[:8]},
                cure="Pass another --out, or move that folder away.",
            )
        begun = self.run.begun()
        if begun is not None and not tunes and not restart:
            raise RopeError(
                "extend: there is a stopped tuning beside --out, and this command is not that one.",
                facts={"folder": str(self.path), "its method": begun["settings"].get("method")},
                cure="Pass another --out, or --restart to throw it away; its own command continues it.",
            )

    @contextmanager
    def claimed(self, recipe: TuningRecipe | None, *, restart: bool) -> Iterator[None]:
        """Hold the folder for the work in the block; afterwards remove the work, and the folder if it is empty.

        `recipe`: of the tuning; None if nothing is tuned. If the block fails, finished work stays.
        Raises `RopeError` as `check`, and for a stopped tuning with another recipe or texts. `restart` discards the
        tuning: here, or in `tune_reader` after all checks.
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
            with suppress(OSError):  # something else came in
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
        strange = [name for name in _names(self.path) if name not in (_RUN, _LOSSES)]
        run = _names(self.run.path)
        locked = ".lock" in run  # every run has it from its beginning to its end
        strange += [f"{_RUN}/{name}" for name in run if not locked or not self._is_of_run(name)]
        strange += [
            f"{_LOSSES}/{name}/{file}" if file else f"{_LOSSES}/{name}"
            for name in _names(self.losses)
            for file in _foreign_in_ledger(self.losses / name)
        ]
        for folder in (self.run.path, self.losses):
            if folder.is_symlink() or folder.is_file():
                strange.append(folder.name)
        return strange

    def _is_of_run(self, name: str) -> bool:
        if name == RUN:
            settings = _content(self.run.path / name).get("settings", {})
            return isinstance(settings, dict) and {"trained_length", "target"} <= set(settings)
        return _is_known(name, _OF_A_RUN)


def _foreign_in_ledger(folder: Path) -> list[str]:
    """Return the files in a folder that no ledger of losses wrote; [""] if it is no such ledger."""
    head, names = folder / ledgers.HEAD, _names(folder)
    if not folder.is_dir() or (head.exists() and _content(head).get("kind") != KIND):
        return [""]
    known = _OF_A_LEDGER if head.exists() else set()
    return [name for name in names if name not in known and not name.startswith(f".{ledgers.HEAD}.")]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _is_known(name: str, known: set[str]) -> bool:
    """Return whether a file has a known name, or the temporary name of such a file."""
    return name in known or any(name.startswith(f".{one}.") for one in known)


def _content(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {}."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


Draw = Callable[[Mapping[str, Any]], bytes]
"""Draws the PNG of the folder from the record."""


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A finished extension: what was written, and its record (the content of extend.json)."""

    exported: Exported
    record: Mapping[str, Any]


class ExtendJob:
    """Run one extension. The constructor makes every check.

    - `model`: a path or name that `rw.load` takes, a `Decoder`, or a reader. `out`: the folder to write.
    - `adapted`: the model under its method; like `source`, in float32 if it is measured or tuned.
    """

    def __init__(
        self,
        model: Model,
        out: str | os.PathLike[str],
        settings: MethodSettings,
        *,
        overwrite: bool = False,
        restart: bool = False,
        progress: Progress | None = None,
        draw: Draw | None = None,
    ) -> None:
        self.settings, self.overwrite, self.restart = settings, overwrite, restart
        self.progress, self.draw = progress, draw
        self.works = settings.tunes or settings.measures
        if restart and not self.works:
            raise RopeError(
                "extend: --restart belongs to work that can be stopped, and would be ignored.",
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
            self.source.reader.trained_count("norms", rank=1)  # refuses a kind of model that cannot be tuned
        self.reach = reach_of(self.source.reader, settings)
        self.adapted = self._under_method()
        if not settings.native:
            hub_of(self.adapted, settings.method, self.reach)  # refused before the work, not after it
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
            return  # nothing is held out, or tuning says what is missing
        tokenizer = self.source.reader.tokenizer
        if self.held_out is None:
            name, contents = read_text(validation)
            windows = torch.tensor([tokenizer.encode(contents)])
        else:
            windows, name = self.held_out.windows, self.held_out.name
        read = [(path, read_text(path)[1]) for path in texts]
        refuse_seen(windows, read, tokenizer, validation=str(validation or name))

    def measure_before(self) -> None:
        """Measure the checkpoint plain, under crop, under the method and, before tuning, its fresh windows."""
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

    @property
    def _dtype(self) -> torch.dtype:
        return self.source.stored if self.settings.dtype is None else dtype_named(self.settings.dtype)

    def export(self, final: TunableReader) -> Extended:
        """Write the folder, whole or not at all."""
        records: list[dict[str, Any]] = []

        def more_files(exported: Exported) -> dict[str, str | bytes]:
            records.append(self._record(exported))
            return self._files(records[0])

        settings = self.settings
        exported = export(
            final.to(device="cpu"),
            self.out,
            method=settings.method,
            reach=self.reach,
            source=self.source.place,
            dtype=self._dtype,
            overwrite=self.overwrite,
            native=settings.native,
            more_files=more_files,
        )
        return Extended(exported=exported, record=records[0])

    def _record(self, exported: Exported) -> dict[str, Any]:
        return record(
            model=self.source.name,
            method=self.settings.method,
            protocol=None if self.held_out is None else self.held_out.protocol,
            variants=self.variants,
            config=exported.config,
            tuning=self.tuning,
            environment=environment_of(self.device, self.source.reader.parameters),
            unscaled_tokens=self.reach.unscaled_tokens,
        )

    def _files(self, document: Mapping[str, Any]) -> dict[str, str | bytes]:
        """Return README.md, and extend.json, the figure and the log of the tuning if there are any."""
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
    """Return a tuning's settings and log from its own files, with texts by name."""
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
