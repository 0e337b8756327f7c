"""What applying and tuning share: the model before and after, its measurement, and the folder that is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis.plan import Plan
from ropewalk.errors import RopeError
from ropewalk.extend.card import card
from ropewalk.extend.export import CARD, FIGURE, LOG, RECORD, Exported, check_out, export, hub_of
from ropewalk.extend.held_out_text import HeldOutText, refuse_seen
from ropewalk.extend.outcome import Variant, after, before, measure, record, untuned_crop
from ropewalk.extend.settings import MethodSettings
from ropewalk.extend.source import Model, SourceModel, reach_of
from ropewalk.extend.work_folder import WorkFolder
from ropewalk.methods import METHODS
from ropewalk.models.precision import dtype_named
from ropewalk.progress import Progress
from ropewalk.readers.environment import environment_of
from ropewalk.readers.reader import Reader, TunableReader
from ropewalk.training.settings import on_machine

Draw = Callable[[Mapping[str, Any]], bytes]
"""Makes the PNG that stands in the folder, from the record."""


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A finished extension: what was written, and its record (what extend.json holds, where it was written)."""

    exported: Exported
    record: Mapping[str, Any]


class ExtendJob:
    """One extension while it runs. Everything that can be refused is refused when it is made.

    - `model`: a path or name that `rw.load` takes, a `Decoder`, or a reader. `out`: the folder to write.
    - `adapted`: the model under its method; like `source` in float32 where it is measured or tuned.
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
        """Refuse a held-out text that shares passages with those to tune on; where nothing is measured, all of it."""
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
        refuse_seen(windows, read, tokenizer, work="tune", validation=str(validation or name))

    def measure_before(self) -> None:
        """The checkpoint plain, under crop, and under the method; where it is tuned, that in fresh windows as well."""
        if self.held_out is not None:
            reader, protocol, method = self.source.reader, self.held_out.protocol, self.settings.method
            self._measure(reader, *before(reader, protocol, method))
            if self.settings.tunes:
                self._measure(self.adapted, *untuned_crop(self.adapted, protocol, method))

    def measure_after(self, tuned: Reader) -> None:
        """The tuned model, and what its weights do without the distant tokens."""
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
        """README.md; and extend.json, the figure and the log of the tuning, where there are any."""
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
    """What tuning was and how it went, from its own files; texts by name, not by path."""
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
