"""A prepared run of the doctor: its steps and its conclusion."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.audit.audit import Audit
from ropewalk.audit.findings import Finding
from ropewalk.diagnosis.document import Diagnosis, at_run_time, config_changes
from ropewalk.diagnosis.rules import TOLERATED, Use, forgets
from ropewalk.diagnosis.settings import FILE_ONLY, OPTIONS_OF_PROTOCOL, DoctorSettings
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import RunFacts, decide, plain_command
from ropewalk.ledger import Ledger
from ropewalk.measure.answers import RetrievalMeasurement
from ropewalk.measure.copy_test import UseMeasurement, UseRun
from ropewalk.measure.estimate import Clock, Estimate, Outlook, Trial, likely_methods
from ropewalk.measure.losses import Measurement, gather, run
from ropewalk.measure.plan import Plan
from ropewalk.measure.retrieval import RetrievalRun
from ropewalk.measure.scaling import ScalingReading
from ropewalk.methods import METHODS
from ropewalk.models.precision import chosen_dtype, fast_bfloat16
from ropewalk.processes import current
from ropewalk.progress import Display, Progress, expect, say, shown
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader

NOT_REPEATED = ("state", "resume", "minutes")  # which change no number of a run with given windows and methods


def conclude(
    measurement: Measurement,
    use: Use | None = None,
    *,
    command: Callable[[int], str] = plain_command,
    available: int | None = None,
    workers: int = 1,
    further_seconds: float = 0.0,
    library: str = "ropewalk",
) -> Verdict:
    """Return the verdict on a measurement; `decide` describes the rules.

    - `use`: the measurement of the use of far tokens. `command`: returns the command that measures the same with other
      windows of each text; the shortest text contains `available` windows. `workers`: windows measured at one time.
    - `further_seconds`: of work on these windows besides the losses. `library`: the library that computed the model.
    """
    seconds = further_seconds + sum(
        window.seconds
        for name, windows in measurement.results.items()
        if name not in measurement.same_as
        for window in windows
    )

    def application(method: str) -> tuple[dict[str, Any] | None, str | None]:
        call, config = at_run_time(method, measurement, library=library), config_changes(method, measurement)
        if call is None and config["rope_parameters"] is not None:
            return measurement.config_form.whole(config), None
        return None, call

    facts = RunFacts(
        texts=measurement.protocol.texts,
        available=available,
        seconds=seconds / workers,
        command=command,
        application=application,
    )
    return decide(measurement.losses(), use, facts)


def doctor_command(
    model: object, settings: DoctorSettings, *, windows: int, methods: Sequence[str] | None = None
) -> str:
    """Return the command of this run with other windows, or the call in Python if the model or text is an object.

    It contains only the last name of an absolute path, so that a record does not show anybody's folders.

    >>> from ropewalk.diagnosis import Protocol
    >>> settings = DoctorSettings(methods="yarn,ntk", protocol=Protocol(seed=3))
    >>> doctor_command("tiny", settings, windows=9)
    'ropewalk doctor tiny --methods yarn,ntk --windows 9 --protocol \\'{"seed": 3}\\''
    """
    protocol = dataclasses.replace(settings.protocol, windows=windows)
    settings = settings if methods is None else dataclasses.replace(settings, methods=methods)
    given = [
        (field, getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if field.name not in (*NOT_REPEATED, "protocol") and settings.changes(field.name)
    ]
    texts = settings.text if isinstance(settings.text, Sequence) and not isinstance(settings.text, str) else ()
    if not isinstance(model, str | Path) or any(isinstance(text, tuple) for text in texts):
        words = [repr(_shown(model)) if isinstance(model, str | Path) else "model"]
        words += [f"{field.name}={'text' if field.name == 'text' else repr(value)}" for field, value in given]
        inner = ", ".join(f"{name}={getattr(protocol, name)!r}" for name in protocol.changed)
        return f"rw.doctor({', '.join([*words, f'protocol=Protocol({inner})'])})"
    words = ["ropewalk", "doctor", _shown(model)]
    options = [field for field in dataclasses.fields(protocol) if field.name in OPTIONS_OF_PROTOCOL]
    given += [(field, getattr(protocol, field.name)) for field in options if field.name in protocol.changed]
    for field, value in given:
        option = field.metadata.get("option", (f"--{field.name.replace('_', '-')}",))[0]
        several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if field.metadata.get("commas"):
            several = [",".join(map(str, several))]
        for one in several:
            words += [option] if one is True else [option, _shown(one)]
    others = {name: getattr(protocol, name) for name in FILE_ONLY if name in protocol.changed}
    words += ["--protocol", json.dumps(others)] if others else []
    return shlex.join(words)


def _shown(value: object) -> str:
    """Return a value as it is typed; the last name of an absolute path."""
    path = Path(str(value))
    return path.name if path.is_absolute() else str(value)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run: `kept` results of its `kind` are saved, and `due` are missing."""

    def __init__(self, kind: str, kept: int, due: int) -> None:
        super().__init__(f"{kept} {kind} are kept, {due} are due; resume=True continues.")
        self.kind, self.kept, self.due = kind, kept, due


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorRun:
    """A prepared run, with checked settings and a loaded model: its work, and the steps that do it.

    - `audits`, `findings`: of the config. `plan`, `windows`: what will be measured. `resumed`: the number of losses
      that were saved before. `retrieval`: the retrieval measurement, or None.
    - `use`: the measurement of the use of far tokens, or None.
    - `trial`: the model's pace, if it is known already. `left_out`: what did not fit into the minutes, in sentences.
    - `frequencies`: the loss of token frequencies on each window. `available`: windows that the shortest text contains.
      `command`: returns the command that measures the same with a different number of windows of each text.
    - `reading`: whether the model was trained with its scaling, if that had to be measured.
    """

    settings: DoctorSettings
    reader: Reader
    name: str
    audits: tuple[Audit, ...]
    findings: tuple[Finding, ...]
    plan: Plan
    windows: Tensor
    ledger: Ledger
    resumed: int
    retrieval: RetrievalRun | None
    use: UseRun | None = None
    trial: Trial | None = None
    left_out: tuple[str, ...] = ()
    frequencies: tuple[float, ...]
    available: int
    command: Callable[[int], str]
    reading: ScalingReading | None = None

    def measure(self, progress: Progress | bool | None = None) -> Diagnosis:
        """Measure everything; `progress` as for `doctor`."""
        with self.at_work(), shown("doctor", progress) as display:
            for line in self.left_out:
                say(display, line)
            if self.slow_dtype is not None:
                say(display, f"Computed in bfloat16: {self.slow_dtype}.")
            if self.resumed:
                say(display, f"Resumed: {self.resumed} measurements were saved before.")
            if isinstance(display, Display) and not current().together:  # a trial is one process's
                display.begin("a short trial", 0)
                found = self.estimate()
                say(display, "All results are saved already." if found is None else f"This takes {found.sentence}.")
            losses = self.measure_losses(display)
            use = self.measure_use(losses, display)
            return self.diagnosis(losses, self.measure_retrieval(losses, display), use)

    @property
    def slow_dtype(self) -> str | None:
        """Return why the model's dtype is slow on its device, or None."""
        device = str(self.reader.device)
        slow = device == "cpu" and self.reader.dtype == torch.bfloat16 and not fast_bfloat16(device)
        return "no fast instructions for bfloat16 on cpu; float32 is several times faster" if slow else None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let other processes join this run during the block, but not start it over."""
        ledgers = [self.ledger, *(() if self.use is None else (self.use.ledger,))]
        ledgers += [] if self.retrieval is None else [self.retrieval.ledger]
        with ExitStack() as held:
            for ledger in ledgers:
                held.enter_context(ledger.at_work())
            yield

    @property
    def outlook(self) -> Outlook:
        """Return the estimator of time and memory."""
        return Outlook(
            reader=self.reader,
            plan=self.plan,
            chunk=self.settings.protocol.chunk,
            most_workers=self.settings.protocol.workers,
            use=self.use,
            retrieval=self.retrieval,
            every=self.settings.names_methods,
        )

    def estimate(self, clock: Clock = time.perf_counter) -> Estimate | None:
        """Estimate the time and memory of the work that is due from a short trial; None if all is done."""
        due, outlook = self.plan.due(self.ledger, chunk=self.settings.protocol.chunk), self.outlook
        examined = likely_methods(self.plan.methods) if due else examined_methods(gather(self.plan, self.ledger))
        if not due and not outlook.others(examined):
            return None
        trial = self.trial or outlook.try_out(self.windows[0], due, clock)
        return outlook.estimate(due, examined, trial)

    def measure_losses(self, progress: Progress) -> Measurement:
        """Return the losses of every method on every window."""
        due = self.plan.due(self.ledger, chunk=self.settings.protocol.chunk)
        workers = self.outlook.workers(len(due))
        expect(progress, sum(job.tokens for job in due))
        try:
            measured = run(
                self.reader,
                self.windows,
                self.plan,
                self.ledger,
                chunk=self.settings.protocol.chunk,
                workers=workers,
                progress=progress,
            )
        except KeyboardInterrupt as stop:
            raise RunInterrupted(
                "measurements", len(self.ledger), len(self.plan.due(self.ledger, chunk=self.settings.protocol.chunk))
            ) from stop
        return dataclasses.replace(measured, frequencies=self.frequencies)

    def measure_use(self, losses: Measurement, progress: Progress) -> UseMeasurement | None:
        """Return the gain from distant tokens under plain, the best method and crop; None if it is not measured."""
        if self.use is None:
            return None
        models = {name: UseRun.model(name, self.reader, self.plan) for name in examined_methods(losses)}
        due = self.use.due(models)
        expect(progress, sum(job.tokens for job in due))
        try:
            workers = self.outlook.workers(len(due))
            return self.use.measure(models, workers=workers, progress=progress)
        except KeyboardInterrupt as stop:
            raise RunInterrupted("readings", len(self.use.ledger), len(self.use.due(models))) from stop

    def measure_retrieval(self, losses: Measurement, progress: Progress) -> RetrievalMeasurement | None:
        """Return the accuracies of the named methods, else of plain, the best method and crop; None if not measured."""
        if self.retrieval is None:
            return None
        methods = self.retrieval.asked_methods(self.plan, examined_methods(losses), every=self.settings.names_methods)
        expect(progress, sum(job.tokens for job in self.retrieval.due(methods)))
        try:
            return self.retrieval.measure(progress, methods=methods)
        except KeyboardInterrupt as stop:
            kept = len(self.retrieval.ledger)
            raise RunInterrupted("texts", kept, len(self.retrieval.due(methods))) from stop

    def diagnosis(
        self, measurement: Measurement, retrieval: RetrievalMeasurement | None, use: UseMeasurement | None = None
    ) -> Diagnosis:
        """Return the diagnosis."""
        device, dtype = str(self.reader.device), str(self.reader.dtype).removeprefix("torch.")
        choice = chosen_dtype(self.settings.dtype, device)[1] or self.slow_dtype
        environment = {
            **environment_of(device, self.reader.parameters),
            "library": self.reader.library,
            "dtype": dtype,
            **({"dtype_choice": choice} if choice else {}),
            "chunk": self.settings.protocol.chunk,
            "model_digest": self.reader.digest(),
        }
        return Diagnosis(
            name=self.name,
            measurement=measurement,
            verdict=conclude(
                measurement,
                use,
                command=self.command,
                available=self.available,
                workers=self.outlook.workers(self.plan.protocol.total_windows),
                further_seconds=0.0 if use is None else sum(use.seconds.values()),
                library=self.reader.library,
            ),
            audits=self.audits,
            findings=self.findings,
            retrieval=retrieval,
            use=use,
            reading=self.reading,
            environment=environment,
            left_out=self.left_out,
        )


def examined_methods(measurement: Measurement) -> tuple[str, ...]:
    """Return the methods for which the use of far tokens is measured: plain, the best method, and crop.

    The best method has the lowest mean loss beyond the trained length, does not forget, and costs at most 0.05 nats
    within it by the mean; it may be plain.
    """
    beyond = {name: sum(found) for name in measurement.results if (found := measurement.beyond(name)) is not None}
    most = sum(measurement.within("plain")) + TOLERATED * measurement.protocol.total_windows
    able = [name for name in beyond if not forgets(name) and sum(measurement.within(name)) <= most]
    best = min(able, key=lambda name: beyond[name], default="plain")
    return tuple(name for name in measurement.results if name in ("plain", best) or METHODS[name].crops)
