"""The doctor's run: it measures and looks at the intervals until the verdict is final, then concludes."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ropewalk.audit.audit import Audit
from ropewalk.audit.findings import Finding
from ropewalk.diagnosis.document import Diagnosis, at_run_time, config_changes
from ropewalk.diagnosis.rules import Evidence, LossTable
from ropewalk.diagnosis.settings import CPU_MINUTES, FILE_ONLY, OPTIONS_OF_PROTOCOL, DoctorSettings
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import RunFacts, attach_call, decide, python_call
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.measure.copies import CopyMeasurement, WindowSpans, gather_copies
from ropewalk.measure.engine import Job
from ropewalk.measure.estimate import Clock, Outlook, Trial, duration
from ropewalk.measure.losses import PLAIN, Measurement, gather, run
from ropewalk.measure.plan import Plan
from ropewalk.measure.scaling import ScalingReading
from ropewalk.methods import METHODS
from ropewalk.models.precision import chosen_dtype
from ropewalk.processes import from_first, share_of
from ropewalk.progress import Display, Progress, expect, say, shown
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader
from ropewalk.statistics import LOOKS

SAFETY = 1.1  # of an estimate of time


def conclude(
    measurement: Measurement,
    copies: CopyMeasurement | None = None,
    *,
    model: str | None = None,
    **facts: Any,
) -> Verdict:
    """Return the verdict on a measurement; `decide` describes the rules.

    - `copies`: the measurement of copies, or None. `model`: its path or name; None: an object.
    - `facts`: fields of `RunFacts`.
    """

    def config_of(method: str, length: int) -> dict[str, Any] | None:
        call, config = at_run_time(method, measurement), config_changes(method, measurement)
        if call is None and config["rope_parameters"] is not None:
            config["max_position_embeddings"] = min(length, config["max_position_embeddings"])
            return measurement.config_form.whole(config)
        return None

    def call_of(method: str) -> str:
        target = measurement.protocol.target
        if model is not None:
            return python_call(model, method, target)
        return at_run_time(method, measurement) or attach_call(method, target)

    facts.setdefault("texts", measurement.protocol.texts)
    return decide(LossTable.of(measurement), copies, RunFacts(config_of=config_of, call_of=call_of, **facts))


NOT_REPEATED = ("state", "resume")


def doctor_command(
    model: object,
    settings: DoctorSettings,
    *,
    windows: int | None = None,
    minutes: float | None = None,
    default_texts: bool = False,
    kept: Sequence[str] = (),
) -> str | None:
    """Return the command of a longer run, or the call in Python if the model or a text is an object.

    **Arguments:**
    - `windows`: replace those of the settings; None: unchanged. `default_texts`: use those instead.
    - `minutes`: needed by the rest of a stopped run; None: it was not stopped. They replace fewer minutes.
    - `kept`: words at the end of the command, such as --json FILE.

    **Returns:** the command; None if it is the one that was just run, and it was not stopped.

    >>> settings = DoctorSettings(methods="yarn,ntk")
    >>> doctor_command("tiny", settings, minutes=20)
    'ropewalk doctor tiny --methods yarn,ntk --minutes 20 --resume'
    """
    protocol = settings.protocol if windows is None else dataclasses.replace(settings.protocol, windows=windows)
    former, stopped = settings, minutes is not None
    if minutes is not None and minutes <= (CPU_MINUTES if settings.minutes is None else settings.minutes):
        minutes = None
    settings = dataclasses.replace(
        settings,
        protocol=protocol,
        minutes=minutes if minutes is not None else settings.minutes,
        text=None if default_texts else settings.text,
    )
    if settings == former and not stopped:
        return None
    given = [
        (field, getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if field.name not in (*NOT_REPEATED, "protocol") and settings.changes(field.name)
    ]
    texts = settings.text if isinstance(settings.text, Sequence) and not isinstance(settings.text, str) else ()
    if not isinstance(model, str | Path) or any(isinstance(text, tuple) for text in texts):
        words = [repr(str(model)) if isinstance(model, str | Path) else "model"]
        words += [f"{field.name}={'text' if field.name == 'text' else repr(value)}" for field, value in given]
        inner = ", ".join(f"{name}={getattr(protocol, name)!r}" for name in protocol.changed)
        return f"rw.doctor({', '.join([*words, f'protocol=Protocol({inner})'])})"
    words = ["ropewalk", "doctor", str(model)]
    options = [field for field in dataclasses.fields(protocol) if field.name in OPTIONS_OF_PROTOCOL]
    given += [(field, getattr(protocol, field.name)) for field in options if field.name in protocol.changed]
    for field, value in given:
        option = field.metadata.get("option", (f"--{field.name.replace('_', '-')}",))[0]
        several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if field.metadata.get("commas"):
            several = [",".join(map(str, several))]
        for one in several:
            words += [option] if one is True else [option, f"{one:g}" if isinstance(one, float) else str(one)]
    others = {name: getattr(protocol, name) for name in FILE_ONLY if name in protocol.changed}
    words += ["--protocol", json.dumps(others)] if others else []
    words += [] if default_texts else ["--resume"]
    words += [] if settings.state is None else ["--state", str(settings.state)]
    return shlex.join([*words, *kept])


class RunInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during a run: `kept` results of its `kind` are saved, and `due` are missing.

    `diagnosis` is that of the last look; None before the first.
    """

    def __init__(self, kind: str, kept: int, due: int, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(f"{kept} {kind} are saved, {due} are missing. To resume, pass resume=True.")
        self.kind, self.kept, self.due, self.diagnosis = kind, kept, due, diagnosis


@dataclasses.dataclass(frozen=True)
class RunLook:
    """The state after a planned number of windows: the seconds of its measurements, and its conclusions."""

    windows: int
    seconds: float
    measurement: Measurement
    copies: CopyMeasurement | None
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return the look as JSON: each method's loss minus crop's, and its gain, with intervals."""
        evidence = Evidence(LossTable.of(self.measurement), self.copies)  # no rule is applied
        apart, gains = {}, {}
        for name in evidence.methods:
            found = evidence.against_crop(name)
            apart[name] = {"mean": found.difference, "interval": found.interval}
            last = len(evidence.table.stretches) - 1
            of_copies = None if self.copies is None else self.copies.beyond_bound(name, last)
            bound = None if self.copies is None else self.copies.bound
            if of_copies is not None and bound is not None:
                low, high = of_copies[1] or (None, None)
                around = None if low is None or high is None else (low + bound, high + bound)
                gains[name] = {"mean": of_copies[0] + bound, "interval": around}
        return {
            "windows": self.windows,
            "seconds": self.seconds,
            "action": self.verdict.action,
            "method": self.verdict.method,
            "length": self.verdict.length,
            "headline": self.verdict.headline,
            "crop_difference": apart,
            "copies": gains,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorRun:
    """A prepared run, with checked settings and a loaded model: its work, and its looks at the results.

    - `name`: the model's name, without folders; `model`: its path or name as given, or None for an object.
    - `audits`, `findings`: of the config. `plan`, `windows`: the planned measurement. `spans`: of each window; empty:
      no copies are measured. `resumed`: the number of results saved before.
    - `trial`: the model's pace, if it is already known. `notes`: sentences about the plan for the user. `dtype_note`:
      one of them, why the model is measured in a different dtype.
    - `frequencies`: the loss of token frequencies on each window. `texts`: their names; `of_text`: the number of each
      window's text. `share`: `LossProtocol.share` of the first windows, by their number; `available`: the windows that
      the texts hold. `default_texts`: whether the doctor chose them. `vocab_size`: tokens of the vocabulary.
    - `engine`, `runs`: the engine for the method, and the methods it can run. `minutes`: time limit, counted from
      `began`; None: no limit. `more`: returns the command of a longer run.
    - `reading`: whether the model was trained with its scaling, if this had to be measured.
    """

    settings: DoctorSettings
    reader: Reader
    name: str
    model: str | None = None
    audits: tuple[Audit, ...]
    findings: tuple[Finding, ...]
    plan: Plan
    windows: Tensor
    spans: tuple[WindowSpans, ...]
    ledger: Ledger
    resumed: int
    trial: Trial | None = None
    notes: tuple[str, ...] = ()
    dtype_note: str | None = None
    frequencies: tuple[tuple[float, ...], ...]
    texts: tuple[str, ...]
    of_text: tuple[int, ...]
    share: tuple[float, ...]
    available: int
    default_texts: bool
    vocab_size: int | None = None
    engine: str | None = None
    runs: frozenset[str] | None = None
    minutes: float | None = None
    began: float
    clock: Clock = time.perf_counter
    more: Callable[..., str | None] = lambda **_: None
    reading: ScalingReading | None = None

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of windows after which the run looks at its intervals."""
        most = min(self.plan.protocol.windows, self.settings.protocol.windows or self.plan.protocol.windows)
        if self.plan.protocol.target <= self.plan.protocol.trained_length:
            most = min(most, 2)
        return (*(look for look in LOOKS if look < most), most)

    @property
    def least(self) -> tuple[str, ...]:
        """Return plain and crop, which every verdict needs."""
        return tuple(name for name in self.plan.methods if name == PLAIN or METHODS[name].crops)

    def due(self, windows: int, methods: Sequence[str]) -> tuple[Job, ...]:
        """Return the jobs of these methods that are due in the first windows."""
        return self.plan.due(
            self.ledger,
            chunk=self.settings.protocol.chunk,
            windows=range(windows),
            methods=methods,
            asked=self.spans[0].design.tokens if self.spans else 0,
        )

    def measure(self, progress: Progress | bool | None = None) -> Diagnosis:
        """Measure until the verdict is final; `progress` as for `doctor`."""
        with self.ledger.at_work(), shown("doctor", progress) as display:
            return self._measure(display)

    def _measure(self, display: Progress) -> Diagnosis:
        for line in self.notes:
            say(display, line)
        if self.resumed:
            say(display, f"Resumed: {self.resumed} results were saved before.")
        alive = [name for name in self.plan.methods if name not in self.plan.same_as]
        looks: list[RunLook] = []
        stopped: str | None = None
        left_out: tuple[str, ...] = ()
        try:
            trial = self._announce(display, alive)
            for count in self.looks:
                chosen, gone = from_first(self._fitting(count, alive, trial, looks))
                left_out = (*left_out, *gone)
                if set(alive) - set(chosen) and looks and not set(chosen) - set(self.least):
                    stopped = "minutes"
                    break
                self._read(count, chosen, display)
                if any(self.due(count, [name]) for name in self.least) or (looks and self.due(count, chosen)):
                    stopped = "minutes"
                    break
                late = [name for name in chosen if self.due(count, [name])]
                left_out = (*left_out, *([f"Not measured in the time: {', '.join(late)}."] if late else []))
                look = self._look(count)
                looks.append(look)
                say(display, f"After {_windows(count)}: {look.verdict.headline}")
                evidence = self._evidence(look)
                if self.settings.protocol.keep_going:
                    continue
                alive = [name for name in alive if name in self.least or not evidence.refuted(name)]
                if look.verdict.final or (look.verdict.next is None and count >= LOOKS[2]):
                    break
            else:
                stopped = None
        except KeyboardInterrupt as stop:
            found = self.diagnosis(looks, "Ctrl-C", left_out) if looks else None
            missing = len(self.due(self.looks[-1], alive))
            raise RunInterrupted("results", len(self.ledger), missing, found) from stop
        if not looks:
            raise RopeError(
                "doctor: the time limit ended the run before one window was measured.",
                facts={"minutes": self.minutes, "results so far": len(self.ledger)},
                cure="Pass more --minutes with --resume, a shorter --target or fewer --methods.",
            )
        return self.diagnosis(looks, stopped, left_out)

    def _announce(self, display: Progress, alive: Sequence[str]) -> Trial | None:
        """Print the estimated time of the first answer and of the whole run; return the trial if it was needed."""
        first, whole = self.due(1, alive), self.due(self.looks[-1], alive)
        if not whole or not (isinstance(display, Display) or self.minutes is not None):
            if not whole:
                say(display, "All results are already saved.")
            return self.trial
        if isinstance(display, Display):
            display.begin("a short trial", 0)
        trial = self.trial or self.outlook.try_out(self.windows[0], whole, self.clock)
        one, every = self.outlook.seconds(first, trial), self.outlook.seconds(whole, trial)
        left = self._seconds_left()
        memory = self.outlook.memory(whole, trial)
        size = "" if memory is None else f", {memory / 1e9:.1f} GB"
        limit = "" if left is None or every <= left else f"; it ends after {self.minutes:g} min (--minutes)"
        answer = one if left is None else min(one, left)
        say(
            display,
            f"The first answer takes about {duration(answer)}{size} (one window of "
            f"{self.plan.protocol.target:,} tokens, {len(alive)} methods), all {self.looks[-1]} windows at most "
            f"{duration(every)}{limit}. The run ends when the verdict is final.",
        )
        return trial

    def _seconds_left(self) -> float | None:
        return None if self.minutes is None else 60 * self.minutes - (self.clock() - self.began)

    def _fitting(
        self, count: int, alive: Sequence[str], trial: Trial | None, looks: Sequence[RunLook]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return the methods that fit into the remaining time, in order, and a sentence about the others.

        After the first look, measured times are the estimate. Plain and crop are always included.
        """
        left = self._seconds_left()
        chosen, gone = [name for name in alive if name in self.least], list[str]()
        spent = {name: self._mean_seconds(name) for name in alive}
        for name in alive:
            if name in chosen:
                continue
            jobs = self.due(count, [*chosen, name])
            if left is None or trial is None:
                needed = 0.0
            elif looks and all(spent[job.method] for job in jobs):
                busy = self.outlook.workers(len(jobs))
                needed = SAFETY * sum(spent[job.method] or 0.0 for job in jobs) / busy
            else:
                needed = SAFETY * self.outlook.seconds(jobs, trial)
            if left is None or needed <= left or (not looks and not gone and len(chosen) == len(self.least)):
                chosen.append(name)
            else:
                gone.append(name)
        chosen = [name for name in alive if name in chosen]
        said = f"Not measured within the time limit: {', '.join(gone)}." if gone and not looks else ""
        return chosen, (said,) if said else ()

    def _mean_seconds(self, method: str) -> float | None:
        """Return the mean seconds of a method's windows so far; None before the first."""
        keys = [self.plan.key(method, window) for window in range(self.plan.protocol.windows)]
        found = [float(self.ledger[key]["seconds"]) for key in keys if key in self.ledger]
        return sum(found) / len(found) if found else None

    def _read(self, count: int, methods: Sequence[str], display: Progress) -> None:
        """Measure the due windows of these methods among the first ones; no job begins after the time limit."""
        due = self.due(count, methods)
        first = share_of(due)
        expect(display, sum(job.tokens for job in first))
        needed = {job.key for job in first if job.method in self.least} if count == 1 else set()

        def over() -> bool:
            left = self._seconds_left()
            return left is not None and left <= 0 and all(key in self.ledger for key in needed)

        run(
            self.reader,
            self.windows,
            self.plan,
            self.ledger,
            chunk=self.settings.protocol.chunk,
            workers=self.outlook.workers(len(first)),
            progress=display,
            jobs=first,
            spans=self.spans,
            until=over,
        )
        self.ledger.gather()

    def _look(self, count: int) -> RunLook:
        """Return the look after the first `count` windows."""
        measurement = dataclasses.replace(
            gather(self.plan, self.ledger, windows=count),
            frequencies=self.frequencies[:count],
            texts=self.of_text[:count],
            share=self.share[count - 1],
        )
        copies = self._copies(measurement)
        spent = sum(
            one.seconds for name, of in measurement.results.items() if name not in measurement.same_as for one in of
        )
        seconds = spent / self.outlook.workers(count * len(measurement.results))
        verdict = self._conclude(measurement, copies, seconds, None)
        return RunLook(count, seconds, measurement, copies, verdict)

    def _copies(self, measurement: Measurement) -> CopyMeasurement | None:
        if "copies" not in self.settings.measured:
            return None
        results = {
            name: [window.to_json() for window in windows]
            for name, windows in measurement.results.items()
            if not METHODS[name].crops and name not in measurement.same_as
        }
        return gather_copies(self.plan.protocol, self.spans[: measurement.windows], results, measurement.texts)

    def _conclude(
        self, measurement: Measurement, copies: CopyMeasurement | None, seconds: float, stopped: str | None
    ) -> Verdict:
        return conclude(
            measurement,
            copies,
            model=self.model,
            texts=self.texts,
            planned=self.looks[-1],
            available=self.available,
            seconds=seconds,
            stopped=stopped,
            more=self.more,
            engine=self.engine,
            runs=self.runs,
            default_texts=self.default_texts,
            vocab_size=self.vocab_size,
        )

    def _evidence(self, look: RunLook) -> Evidence:
        return Evidence(LossTable.of(look.measurement), look.copies)

    @property
    def outlook(self) -> Outlook:
        """Return the estimator of time and memory."""
        return Outlook(
            reader=self.reader,
            plan=self.plan,
            chunk=self.settings.protocol.chunk,
            most_workers=self.settings.protocol.workers,
        )

    def diagnosis(
        self,
        looks: Sequence[RunLook],
        stopped: str | None,
        left_out: Sequence[str],
    ) -> Diagnosis:
        """Return the diagnosis of the last look."""
        device, dtype = str(self.reader.device), str(self.reader.dtype).removeprefix("torch.")
        choice = chosen_dtype(self.settings.dtype, device)[1] or self.dtype_note
        seconds, last = self.clock() - self.began, looks[-1]
        environment = {
            **environment_of(device, self.reader.parameters),
            "library": self.reader.library,
            "dtype": dtype,
            **({"dtype_choice": choice} if choice else {}),
            "chunk": self.settings.protocol.chunk,
            "model_digest": self.reader.digest(),
            "seconds": round(seconds, 1),
        }
        return Diagnosis(
            name=self.name,
            measurement=last.measurement,
            verdict=self._conclude(last.measurement, last.copies, last.seconds, stopped),
            audits=self.audits,
            findings=self.findings,
            copies=last.copies,
            looks=tuple(look.to_json() for look in looks),
            reading=self.reading,
            environment=environment,
            left_out=(*self.notes, *left_out),
        )


def _windows(count: int) -> str:
    return f"{count} window{'s' if count > 1 else ''}"
