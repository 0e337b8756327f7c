"""The run: every reading of every method once, each kept in the ledger as soon as it is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.progress import Progress
from ropewalk.readers.losses import crop_steps, cropped_losses
from ropewalk.readers.pace import NOTHING, Workload
from ropewalk.readers.reader import CHUNK, Losses, Reader
from ropewalk.readers.workers import WorkersProgress, complete, fitting_workers
from ropewalk.use.gather import gather
from ropewalk.use.inputs import PLACES, Reading, UseInputs, UseText
from ropewalk.use.protocol import UseProtocol
from ropewalk.use.result import UseMeasurement

FORMAT = 2  # of the results and of how readings are made: a change of either takes the next number


@dataclass(frozen=True)
class UseModel:
    """A method to measure: its reader, and the stride of crop where it reads only the last trained length."""

    reader: Reader
    stride: int | None = None

    @cached_property
    def key(self) -> str:
        """What its losses depend on besides the weights."""
        return fingerprint(self.reader.positions, self.stride)


@dataclass(frozen=True)
class UseJob:
    """One reading of one window by one method; `work` is what goes through the model for it."""

    method: str
    reading: Reading
    window: int
    work: Workload = NOTHING


@dataclass(frozen=True, kw_only=True)
class UseRun:
    """A measurement of use whose arguments have been checked: what is due, and the work itself.

    The methods are named when it is measured: the doctor learns which one is best from the losses.
    """

    inputs: UseInputs
    ledger: Ledger
    chunk: int = CHUNK

    @classmethod
    def prepare(
        cls,
        protocol: UseProtocol,
        reader: Reader,
        texts: Sequence[UseText],
        *,
        state: Path | None = None,
        resume: bool = False,
        chunk: int = CHUNK,
    ) -> UseRun:
        """The run of a protocol on its texts.

        **Arguments:**
        - `reader`: the model, under any positions. `texts`: with the windows of the protocol.
        - `state`: a folder that keeps each reading as soon as it is there; None: in memory. With `resume` what it
          holds is taken up; else it begins again. `chunk`: tokens of one forward.

        **Raises:** `RopeError` for a model without a tokenizer, and a state of another run.
        """
        tokenizer = reader.tokenizer
        if tokenizer is None:
            raise RopeError(
                "use: the model has no tokenizer, so no text can be read.",
                facts={"model": reader.name},
                cure="Put its tokenizer.json beside the weights.",
            )
        inputs = UseInputs(protocol=protocol, texts=tuple(texts), tokenizer=tokenizer)
        made = [(text.contents, tuple(text.tokens), text.starts) for text in texts]
        key = fingerprint(FORMAT, torch.__version__, reader.digest(), protocol, made, tokenizer.tokenizer.to_str())
        ledger = Ledger(state, kind="use", key=key)
        _ = ledger.resume() if resume else ledger.begin()
        return cls(inputs=inputs, ledger=ledger, chunk=chunk)

    def due(self, methods: Mapping[str, UseModel]) -> tuple[UseJob, ...]:
        """Every reading without a result, window by window; the control is read by plain alone."""
        jobs = []
        for window in range(self.inputs.protocol.total_windows):
            for where in PLACES:
                jobs += [
                    UseJob(method, reading, window, self._work(reading, methods[method].stride))
                    for method in (methods if where == "far" else ("plain",))
                    for reading in self.inputs.readings(where)
                ]
        return tuple(job for job in jobs if self.key(job, methods) not in self.ledger)

    def key(self, job: UseJob, methods: Mapping[str, UseModel]) -> str:
        """A job's key in the ledger."""
        return _key(methods[job.method], job.reading, job.window)

    def measure(
        self, methods: Mapping[str, UseModel], *, workers: int | None = None, progress: Progress | None = None
    ) -> UseMeasurement:
        """Read what is due, keep each result as soon as it is there, and gather all of them.

        - `methods`: by name, plain among them. `workers`: readings at one time; None: as cores and memory allow.
        """
        if "plain" not in methods:
            raise RopeError(
                "use: plain reads the control, so it must be among the methods.",
                facts={"methods": list(methods)},
                cure="Add the model as it was trained, under the name plain.",
            )
        due, stop, windows = self.due(methods), threading.Event(), self.inputs.protocol.total_windows
        shown = WorkersProgress(progress, stop, pieces=len(due))
        if workers is None:
            workers = fitting_workers(methods["plain"].reader, self.inputs.protocol.target, len(due))

        def read(job: UseJob) -> dict[str, Any]:
            shown.begin(
                f"{job.method}, window {job.window + 1} of {windows}: {job.reading.description}", job.work.tokens
            )
            started = time.perf_counter()
            losses = self._losses(job, methods[job.method], shown)
            return {"losses": _rounded(losses), "seconds": time.perf_counter() - started}

        complete(self.ledger, due, lambda job: self.key(job, methods), read, workers=workers, stop=stop)
        return self._gathered(methods)

    def _work(self, reading: Reading, stride: int | None) -> Workload:
        """What goes through the model for one reading."""
        protocol, first = self.inputs.protocol, self.inputs.first(reading)
        if reading.where == "control":
            return Workload.of(min(protocol.trained_length, protocol.target), chunk=self.chunk, first=first)
        if stride is None:
            return Workload.of(protocol.target, chunk=self.chunk, first=first)
        work = NOTHING
        for start, end, scored in crop_steps(protocol.target, protocol.trained_length, stride, first=first):
            work += Workload.of(end - start, chunk=self.chunk, first=scored - start)
        return work

    def _losses(self, job: UseJob, model: UseModel, shown: WorkersProgress) -> Losses:
        """The losses of a reading's scored tokens."""
        ids, first = self.inputs.ids(job.reading, job.window), self.inputs.first(job.reading)
        if model.stride is None:
            losses = model.reader.window_losses(ids, first=first, chunk=self.chunk, advance=shown.advance)
        else:
            losses = cropped_losses(
                model.reader,
                ids,
                trained_length=self.inputs.protocol.trained_length,
                stride=model.stride,
                first=first,
                chunk=self.chunk,
                advance=shown.advance,
            )
        if not np.isfinite(losses).all():
            raise RopeError(
                "use: a loss is not a finite number.",
                facts={"method": job.method, "first such token": first + int(np.flatnonzero(~np.isfinite(losses))[0])},
                cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
            )
        return losses

    def _gathered(self, methods: Mapping[str, UseModel]) -> UseMeasurement:
        """The measurement, from the ledger."""

        def result(method: str, reading: Reading, window: int) -> dict[str, Any]:
            return self.ledger[self.key(UseJob(method, reading, window), methods)]

        def losses_of(method: str, reading: Reading, window: int) -> Losses:
            return np.asarray(result(method, reading, window)["losses"], dtype=np.float64)

        protocol = self.inputs.protocol
        rows, controls = gather(self.inputs, list(methods), losses_of)
        windows = range(protocol.total_windows)
        seconds = {
            method: sum(
                float(result(method, reading, window)["seconds"])
                for window in windows
                for reading in self.inputs.readings("far")
            )
            for method in methods
        }
        return UseMeasurement(
            trained_length=protocol.trained_length,
            target=protocol.target,
            rows=rows,
            controls=controls,
            notes=tuple(self.inputs.notes()),
            seconds=seconds,
        )


def _key(model: UseModel, reading: Reading, window: int) -> str:
    return f"{model.key}/{reading.label}/{window}"


def _rounded(losses: Losses) -> list[float]:
    """Losses as the ledger keeps them: to a millionth of a nat."""
    return [round(float(loss), 6) for loss in losses]
