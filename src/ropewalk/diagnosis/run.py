"""The doctor's run: it reads windows and looks at the evidence until the answer stands."""

from __future__ import annotations

import dataclasses
import itertools
import math
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.reader import Advance, Reader
from ropewalk.diagnosis.evidence import Evidence, Window, WindowReading, choice, gather
from ropewalk.diagnosis.facts import Filled, Layout, Teller
from ropewalk.diagnosis.plan import CROP, LOOKS, PLAIN, Job, Plan, Text, runs_in
from ropewalk.diagnosis.reading import Clock, Pace, at_once, duration, fitting_workers, read_job, seconds_at_once
from ropewalk.diagnosis.record import Diagnosis, LookBack, MethodForm, Verdict
from ropewalk.diagnosis.rules import Decision, decide, fails, headline, methods_of, reasons
from ropewalk.diagnosis.settings import CPU_MINUTES, DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder, fingerprint
from ropewalk.methods import Reach, chosen_methods
from ropewalk.methods.table import ALL
from ropewalk.models.decoder import Decoder
from ropewalk.progress import Progress, expect, say, shown
from ropewalk.records import restored
from ropewalk.serving.serve import setting_command
from ropewalk.shell import shell_command
from ropewalk.statistics import counted
from ropewalk.version import __version__

TIMES = (4.0, 3.0, 2.0, 1.5, 1.25)  # of the trained length: the targets that are tried if none is given
SAFETY = 1.1  # of an estimate of time
MANY = 4  # methods: the best of as many is measured in a fresh window


def doctor_command(
    model: object, settings: DoctorSettings, *, kept: Sequence[str] = (), resume: bool = False, **changes: Any
) -> str | None:
    """Return the command of another run, or the call in Python if the model or a text is an object.

    **Arguments:**
    - `changes`: settings that differ. `kept`: words at the end of the command, such as --json FILE.
    - `resume`: whether it goes on from the saved results.

    **Returns:** the command; None if it is the one that was just run.

    >>> doctor_command("tiny", DoctorSettings(methods="yarn,ntk"), minutes=20.0)
    'ropewalk doctor tiny --methods yarn,ntk --minutes 20'
    """
    other = dataclasses.replace(settings, **changes)
    if other == settings and not resume:
        return None
    names = [field.name for field in dataclasses.fields(other) if field.name not in ("state", "resume")]
    given = {name: getattr(other, name) for name in names if other.changes(name)}
    texts = settings.text if isinstance(settings.text, Sequence) and not isinstance(settings.text, str) else ()
    if not isinstance(model, str | Path) or any(isinstance(text, tuple) for text in texts):
        live = "(model, tokenizer)" if isinstance(model, tuple) else "model"
        call = [repr(str(model)) if isinstance(model, str | Path) else live]
        call += [f"{name}={'text' if name == 'text' else repr(value)}" for name, value in given.items()]
        return f"rw.doctor({', '.join([*call, *['resume=True'] * resume])})"
    words: list[str | Path] = ["ropewalk", "doctor", Path(model)]
    for name, value in given.items():
        several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for one in [",".join(other.method_names)] if name == "methods" else several:
            words += [f"--{name.replace('_', '-')}", f"{one:g}" if isinstance(one, float) else str(one)]
    words += [*["--resume"] * resume, *([] if settings.state is None else ["--state", str(settings.state)])]
    return shell_command(*words, *kept)


class RunInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during a run: `kept` results are saved, and `due` are missing.

    `diagnosis` is that of the last look; None before the first.
    """

    def __init__(self, kept: int, due: int, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(f"{counted(kept, 'result')} saved, {due} missing. To resume, pass resume=True.")
        self.kept, self.due, self.diagnosis = kept, due, diagnosis


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """A loaded model and its texts: what every measurement begins with. Lengths are in tokens, `minutes` the limit.

    - `model`: as given, a path, a name or an object. `scaling`: as in the record.
    """

    model: object
    settings: DoctorSettings
    source: Checkpoint
    reader: Reader
    dtype_choice: str | None
    texts: tuple[Text, ...]
    scaling: dict[str, Any] | None
    trained: int
    vocabulary: int
    teller: Teller
    minutes: float

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the weights."""
        return self.reader.digest()

    @property
    def targets(self) -> list[int]:
        """Return the targets to try, the longest first: the given one, or those with facts and enough text."""
        longest, least = max(len(text.tokens) for text in self.texts), self.teller.least(self.trained)
        fitting = [round(times * self.trained) for times in TIMES if least <= times * self.trained <= longest]
        return [self.settings.target] if self.settings.target else fitting or [max(self.trained, longest)]

    def ledger(self, kind: str, form: int, windows: Iterable[Filled], *parts: object) -> tuple[Ledger, int]:
        """Return the ledger of a measurement, and how many results were saved before.

        - `form`: the number of its format. `parts`: what the results depend on, besides model and windows.

        Raises `RopeError` if `state` is a file.
        """
        state, ids = self.settings.state, [one.ids.tobytes() for one in windows]
        key = fingerprint(form, torch.__version__, self.digest, *parts, ids)
        folder = cache_folder("doctor", key) if state is None else as_path(state, "doctor")
        if folder.exists() and not folder.is_dir():
            raise RopeError(
                "doctor: `state` must be a folder, but it is a file.",
                facts={"state": str(folder)},
                cure="Pass a new folder: --state DIR.",
            )
        made = Ledger(folder / kind, kind=kind, key=key)
        return made, made.resume() if self.settings.resume else made.begin()

    def environment(self, seconds: float) -> dict[str, Any]:
        """Return the versions, the machine and the model's settings, for a record."""
        reader, choice_of_dtype = self.reader, {"dtype_choice": self.dtype_choice} if self.dtype_choice else {}
        return {
            "ropewalk": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "machine": platform.machine(), "device": str(reader.device), "threads": torch.get_num_threads(),
            "parameters": reader.parameters, "library": reader.library,
            "dtype": str(reader.dtype).removeprefix("torch."), **choice_of_dtype,
            "model_digest": self.digest, "seconds": round(seconds, 1),
        }  # fmt: skip

    def command(self, *, kept: Sequence[str] = (), **changes: Any) -> str | None:
        """Return the command of another run with these changes, as `doctor_command`."""
        return doctor_command(self.model, self.settings, kept=kept, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """What is measured for one target.

    - `filled`: the windows with their facts. `windows`: the same for the evidence.
    - `engines`: those that can run each method.
    """

    plan: Plan
    texts: tuple[Text, ...]
    layout: Layout
    filled: tuple[Filled, ...]
    windows: tuple[Window, ...]
    engines: Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorRun(Planned):
    """A prepared run, with checked settings and a loaded model: its work, and its looks at the results.

    - `inspection`: as in the record. `resumed`: results saved before. `pace`: of the model. `notes`: for the user.
    - `kept`: words to repeat in the next command. `record`: the file into which the diagnosis will be written, or None.
    """

    opened: Opened
    inspection: Mapping[str, Any]
    ledger: Ledger
    resumed: int = 0
    pace: Pace
    notes: tuple[str, ...] = ()
    began: float
    clock: Clock = time.perf_counter
    kept: tuple[str, ...] = ()
    record: Path | None = None

    @property
    def settings(self) -> DoctorSettings:
        """Return the settings of the run."""
        return self.opened.settings

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of windows after which the run looks at its evidence."""
        most = min(self.plan.design.windows, self.settings.windows or LOOKS[-1])
        return (*(look for look in LOOKS if look < most), most)

    @property
    def runs(self) -> dict[str, bool]:
        """Return whether the engine, or Python if none is named, can run each method."""
        return {name: runs_in(self.settings.engine, of) for name, of in self.engines.items()}

    def due(self, windows: int, methods: Sequence[str]) -> tuple[Job, ...]:
        """Return the jobs of these methods that are due in the first windows."""
        return self.plan.due(self.ledger, range(windows), methods, self.filled[0].asked)

    def measure(self, progress: Progress | bool | None = None) -> Diagnosis:
        """Measure until the answer stands; `progress` as for `doctor`."""
        with self.ledger.at_work(), shown("doctor", progress) as display:
            return self._measure(display)

    def _measure(self, display: Progress) -> Diagnosis:
        resumed = [f"Resumed: {counted(self.resumed, 'result')} saved before."] if self.resumed else []
        for line in (*self.notes, *resumed):
            say(display, line)
        alive, looks, stopped = list(self.plan.distinct), list[LookBack](), None
        self._announce(display, alive)
        try:
            for count, longer in itertools.zip_longest(self.looks, self.looks[1:]):
                if not self._read(count, alive, display, needed=not looks):
                    stopped = "minutes"
                    say(display, f"Out of time after {counted(looks[-1].windows, 'window')}: {looks[-1].headline}")
                    break
                evidence, decision, look = self._look(count)
                looks.append(look)
                done = decision.settled or decision.action in ("unfit", "cut")
                if longer is not None and not done:
                    alive = [name for name in alive if name in (PLAIN, CROP) or not fails(evidence, name)]
                    stopped = None if self._fits(longer, alive) else "minutes"
                done = done or longer is None or stopped is not None
                more = "" if done else " More windows follow."
                say(display, f"After {counted(look.windows, 'window')}: {look.headline}{more}")
                if done:
                    break
            many, read = len(methods_of(evidence)), looks[-1].windows
            if decision.method is not None and many >= MANY and read < self.plan.design.windows:
                say(display, f"A fresh window for {decision.method}, the best of {many}.")
                self._read(read + 1, [decision.method], display, needed=False)
        except KeyboardInterrupt as stop:
            diagnosis = self.diagnosis(looks, "Ctrl-C") if looks else None
            raise RunInterrupted(len(self.ledger), len(self.due(self.looks[-1], alive)), diagnosis) from stop
        return self.diagnosis(looks, stopped)

    def _announce(self, display: Progress, alive: Sequence[str]) -> None:
        """Print the estimated time of the first answer."""
        target, jobs = self.plan.design.target, self.due(1, alive)
        if not jobs:
            say(display, "All results are already saved.")
            return
        seconds = seconds_at_once(self.opened.reader, target, jobs, self.pace.of_job)
        say(
            display,
            f"The first answer takes about {duration(seconds)}: one window of {target:,} tokens under "
            f"{', '.join(alive)}. The run ends when the answer is settled, after at most "
            f"{counted(self.looks[-1], 'window')}.",
        )

    def _seconds_left(self) -> float:
        return 60 * self.opened.minutes - (self.clock() - self.began)

    def _enough(self, count: int, methods: Sequence[str]) -> float:
        """Return whole minutes that suffice for the first windows, with what the run has taken so far."""
        spent = self.clock() - self.began
        return float(math.ceil((SAFETY * sum(map(self._seconds_of, self.due(count, methods))) + spent) / 60) + 1)

    def _seconds_of(self, job: Job) -> float:
        """Return the seconds of a job: the mean of its method's windows so far, else by the pace."""
        keys = [self.plan.key(job.method, window) for window in range(self.plan.design.windows)]
        seconds = [float(self.ledger[key]["seconds"]) for key in keys if key in self.ledger]
        return sum(seconds) / len(seconds) if seconds else self.pace.of_job(job)

    def _fits(self, count: int, methods: Sequence[str]) -> bool:
        """Return whether the due windows of these methods fit into the time."""
        due, target = self.due(count, methods), self.plan.design.target
        return SAFETY * seconds_at_once(self.opened.reader, target, due, self._seconds_of) <= self._seconds_left()

    def _read(self, count: int, methods: Sequence[str], display: Progress, *, needed: bool) -> bool:
        """Read the due windows of these methods; return whether all are read.

        Nothing begins after the time is over, except what the first answer needs.
        """
        first = self.due(count, methods)
        workers = fitting_workers(self.opened.reader, self.plan.design.target, len(first))
        expect(display, sum(job.work.tokens for job in first))
        levels: dict[int, float] = {}

        def measure(job: Job, advance: Advance) -> None:
            window = self.filled[job.window]
            self.ledger.add(job.key, read_job(self.opened.reader, self.plan, window, job, levels, advance))

        at_once(first, measure, workers=workers, progress=display,
                until=lambda: not needed and self._seconds_left() <= 0)  # fmt: skip
        return not self.due(count, methods)

    def _readings(self, count: int) -> dict[str, tuple[WindowReading, ...]]:
        """Return the readings of the first windows, by method; each has those before its first missing one."""
        keys = {name: [self.plan.key(name, window) for window in range(count)] for name in self.plan.distinct}
        read = {name: itertools.takewhile(self.ledger.__contains__, of) for name, of in keys.items()}
        found = {name: tuple(restored(WindowReading, self.ledger[key]) for key in of) for name, of in read.items()}
        return {name: of for name, of in found.items() if of}

    def _look(self, count: int) -> tuple[Evidence, Decision, LookBack]:
        """Return the evidence after the first windows, the decision, and the look."""
        readings, design = self._readings(count), self.plan.design
        evidence = gather(self.windows[:count], readings, design)
        decision = self._decide(evidence, self.runs)
        seconds = sum(one.seconds for of in readings.values() for one in of)
        python = decision.method is not None and self.plan.configs[decision.method] is None
        said = headline(decision, design.trained_length, ", in Python" if python else "")
        return evidence, decision, LookBack(
            windows=count, seconds=round(seconds, 1), action=decision.action, method=decision.method,
            length=decision.length, headline=said,
        )  # fmt: skip

    def _decide(self, evidence: Evidence, runs: Mapping[str, bool]) -> Decision:
        """Return the answer for the place that can run these methods."""
        return decide(evidence, runs=runs, log_vocabulary=math.log(self.opened.vocabulary))

    def diagnosis(self, looks: Sequence[LookBack], stopped: str | None) -> Diagnosis:
        """Return the diagnosis of the last look."""
        design, count = self.plan.design, looks[-1].windows
        evidence, decision, look = self._look(count)
        readings = self._readings(count)
        same = self.plan.same_as
        methods = {
            name: MethodForm(config=self.plan.configs[name], same_as=same.get(name), engines=self.engines[name])
            for name in self.plan.positions if same.get(name, name) in readings
        }  # fmt: skip
        return Diagnosis(
            name=self.opened.reader.name, trained_length=design.trained_length, target=design.target, seed=design.seed,
            kind=self.opened.teller.kind.name, texts=tuple(text.name for text in self.texts), blocks=design.blocks,
            windows=self.windows[:count], readings=readings,
            methods=methods, evidence=evidence,
            verdict=self._verdict(evidence, decision, look, stopped), looks=tuple(looks),
            inspection=self.inspection, scaling=self.opened.scaling,
            environment=self.opened.environment(self.clock() - self.began), notes=self.notes,
        )  # fmt: skip

    def _verdict(self, evidence: Evidence, decision: Decision, look: LookBack, stopped: str | None) -> Verdict:
        following = in_words = beside = None
        engine, count = self.settings.engine, look.windows
        if decision.action == "cut" and stopped is None:
            following, in_words = self._others()
        elif decision.action == "undecided" or (stopped is not None and not decision.settled):
            following, in_words = self._next(count, stopped)
        names = [self.texts[text].name for text in dict.fromkeys(one.text for one in self.windows[:count])]
        scope = names[0] if len(names) == 1 else counted(len(names), "text")
        main = self._answer(evidence, decision, engine, engine or "Python", self.record)
        if engine is None and decision.method is not None and not self.engines[decision.method]:
            other = self._decide(evidence, {name: bool(of) for name, of in self.engines.items()})
            how = "To decide it for one engine, repeat with --engine NAME." if other.action == "undecided" else None
            beside = self._answer(evidence, other, None, "an engine", next_sentence=how)
        elif engine is not None:
            other = self._decide(evidence, {})
            if other.method is not None and not self.runs[other.method] and decision.method not in other.equal:
                beside = self._answer(evidence, other, "python", "Python")
        fresh = self._fresh(decision, evidence)
        reasons = (*main.reasons, *fresh, f"This is about {scope}, measured in {counted(count, 'window')}.")
        return dataclasses.replace(
            main, headline=look.headline, reasons=reasons, beside=beside, stopped=stopped, next=following,
            next_sentence=in_words,
        )  # fmt: skip

    def _fresh(self, decision: Decision, evidence: Evidence) -> list[str]:
        """Return what the best of many methods finds in a window that it was not chosen by, as a sentence."""
        method, window = decision.method, evidence.windows
        if method is None or len(methods_of(evidence)) < MANY or self.plan.key(method, window) not in self.ledger:
            return []
        answers = restored(WindowReading, self.ledger[self.plan.key(method, window)]).answers
        facts = self.windows[window].facts
        right = [choice(row) == fact.right for row, fact in zip(answers, facts, strict=True) if fact.far]
        return [f"In a fresh window, which had no part in the choice, it finds {sum(right)} of {len(right)}."]

    def _answer(
        self, evidence: Evidence, decision: Decision, engine: str | None, place: str, record: Path | None = None,
        next_sentence: str | None = None,
    ) -> Verdict:  # fmt: skip
        """Return an answer in words, with the command that applies it. `place`: where the model may run, in words."""
        design, config, command, python = self.plan.design, None, None, None
        if decision.method is not None:
            config = self.plan.configs[decision.method]
            engine = "python" if config is None else engine
            command = self._command(decision.method, decision.length, engine, record)
            lines = self._command(decision.method, decision.length, "python")
            python = None if lines == command else lines
            if config is not None and decision.length is not None:
                config = shortened(config, decision.length)
        shared = {name: getattr(decision, name) for name in ("action", "method", "length", "equal", "settled")}
        return Verdict(
            **shared, headline=headline(decision, design.trained_length), engine=engine, config=config, command=command,
            python=python, next_sentence=next_sentence,
            reasons=reasons(decision, evidence, log_vocabulary=math.log(self.opened.vocabulary), place=place),
            otherwise=None if decision.otherwise is None else headline(decision.otherwise, design.trained_length),
        )  # fmt: skip

    def _command(self, method: str, length: int | None, engine: str | None, record: Path | None = None) -> str:
        """Return the shell command, or the lines of Python, that set a method."""
        design = self.plan.design
        if not isinstance(self.opened.model, str | Path):
            lines, stated = ["import ropewalk as rw"], f"target={design.target}, trained_length={design.trained_length}"
            if isinstance(self.opened.model, Decoder):  # its copy in transformers can be attached
                place = "ropewalk.checkpoints.opening"
                lines += [f"from {place} import as_transformers", "model, tokenizer = as_transformers(model)"]
            return "\n".join([*lines, f"rw.attach(model, {method!r}, {stated})"])
        given = self.settings.trained_length is not None or self.opened.scaling is not None
        return setting_command(
            engine, self.opened.model, method, target=design.target, record=record, length=length,
            trained_length=design.trained_length if given else None,
        )  # fmt: skip

    def _next(self, count: int, stopped: str | None) -> tuple[str | None, str | None]:
        """Return the command that would decide, or None, and a sentence."""
        again = partial(self.opened.command, kept=self.kept, resume=True)
        if stopped is not None:
            further = next((look for look in self.looks if look > count), self.looks[-1])
            minutes = max(self._enough(further, self.plan.distinct), (self.settings.minutes or CPU_MINUTES) + 1)
            return again(minutes=minutes), f"About {minutes:g} minutes in all may decide."
        planned = self.plan.design.windows
        if self.looks[-1] < planned:
            return again(windows=None), "More windows of the same text may decide."
        if planned >= LOOKS[-1]:
            return self._others()
        characters = 1000 * math.ceil(LOOKS[-1] * sum(len(text.contents) for text in self.texts) / planned / 1000)
        return None, f"More text may decide: about {characters:,} characters hold {LOOKS[-1]} windows."

    def _others(self) -> tuple[str | None, str]:
        """Return the command that measures every method, or None, and a sentence."""
        design = self.plan.design
        every = chosen_methods([ALL], self.plan.own, Reach(design.trained_length, design.target))
        if set(every) <= set(self.plan.positions):
            return None, "Every method was measured; other texts may decide."
        named = bool(self.settings.method_names)
        return None if named else self.opened.command(kept=self.kept, methods=ALL), "Other --methods may work."


def shortened(config: dict[str, Any], length: int) -> dict[str, Any]:
    """Return a config's keys with a smaller `max_position_embeddings`, wherever that stands."""
    return {
        key: shortened(value, length) if isinstance(value, dict) and key != "rope_parameters"
        else min(length, value) if key == "max_position_embeddings" else value
        for key, value in config.items()
    }  # fmt: skip
