"""The doctor's run: it reads windows and looks at the evidence until the answer stands."""

from __future__ import annotations

import dataclasses
import itertools
import math
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.reader import Advance, Reader
from ropewalk.diagnosis.evidence import Evidence, choice, gather
from ropewalk.diagnosis.facts import Filled, Teller
from ropewalk.diagnosis.plan import (
    CROP,
    LOOKS,
    PLAIN,
    Clock,
    Job,
    Pace,
    Plan,
    Text,
    WindowReading,
    at_once,
    characters_of,
    fitting_workers,
    read_job,
    runs_in,
)
from ropewalk.diagnosis.record import Diagnosis, LookBack, MethodForm, Verdict
from ropewalk.diagnosis.rules import Decision, decide, fails, headline, methods_of, reasons
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder, fingerprint
from ropewalk.methods import Reach, chosen_methods
from ropewalk.methods.table import ALL
from ropewalk.progress import Progress, duration, expect, say, shown
from ropewalk.records import restored
from ropewalk.statistics import counted
from ropewalk.version import __version__

TIMES = (4.0, 3.0, 2.0, 1.5, 1.25)  # of the trained length: the targets that are tried if none is given
MANY = 4  # methods: the best of as many is measured in a fresh window


class RunInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during a run: `kept` results are saved, and `due` are missing.

    `diagnosis` is that of the last look; None before the first.
    """

    def __init__(self, kept: int, due: int, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(f"{counted(kept, 'result')} saved, {due} missing. To resume, pass resume=True.")
        self.kept, self.due, self.diagnosis = kept, due, diagnosis


def resumed(ledger: Ledger) -> list[str]:
    """Return a sentence if results were saved before."""
    return [f"Resumed: {counted(len(ledger), 'result')} saved before."] if len(ledger) else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """A loaded model and its texts: what every measurement begins with. Lengths are in tokens, `minutes` the limit.

    - `model`: as given, a path, a name or an object. `scaling`: as in the record. `began`: by the `clock`, in seconds.
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
    pace: Pace
    minutes: float
    began: float
    clock: Clock

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the weights."""
        return self.reader.digest()

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return self.clock() - self.began

    @property
    def targets(self) -> list[int]:
        """Return the targets to try, the longest first: the given one, or those with facts and enough text."""
        longest, least = max(len(text.tokens) for text in self.texts), self.teller.least(self.trained)
        fitting = [round(times * self.trained) for times in TIMES if least <= times * self.trained <= longest]
        return [self.settings.target] if self.settings.target else fitting or [max(self.trained, longest)]

    def fits(self, jobs: Iterable[Job], slower: float = 1.0) -> bool:
        """Return whether jobs fit into the minutes; `slower`: times the pace."""
        return self.spent + slower * self.pace.seconds(jobs) <= 60 * self.minutes

    def too_long(self, what: str, seconds: float, target: int, kept: Sequence[str], cure: str = "") -> RopeError:
        """Return the error of work that needs more than the minutes, with the command that fits."""
        command = self.settings.command(self.model, kept=kept, minutes=float(math.ceil(seconds / 60)))
        return RopeError(
            f"doctor: the {what} takes longer than --minutes allows.",
            facts={"minutes": self.minutes, "needed": duration(seconds), "target": target},
            cure=f"Run: {command}.{cure}",
        )

    def ledger(self, kind: str, form: int, windows: Iterable[Filled], *parts: object) -> Ledger:
        """Return the ledger of a measurement, with the results that were saved before if the run is to resume.

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
        _ = made.resume() if self.settings.resume else made.begin()
        return made

    def environment(self) -> dict[str, Any]:
        """Return the versions, the machine and the model's settings, for a record."""
        reader, choice_of_dtype = self.reader, {"dtype_choice": self.dtype_choice} if self.dtype_choice else {}
        return {
            "ropewalk": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "machine": platform.machine(), "device": str(reader.device), "threads": torch.get_num_threads(),
            "parameters": reader.parameters, "library": reader.library,
            "dtype": str(reader.dtype).removeprefix("torch."), **choice_of_dtype,
            "model_digest": self.digest, "seconds": round(self.spent, 1),
        }  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorRun:
    """A prepared run, with checked settings and a loaded model: its work, and its looks at the results.

    - `inspection`: as in the record. `notes`: for the user.
    - `kept`: words to repeat in the next command. `record`: the file into which the diagnosis will be written, or None.
    """

    opened: Opened
    plan: Plan
    inspection: Mapping[str, Any]
    ledger: Ledger
    notes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    record: Path | None = None

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of windows after which the run looks at its evidence."""
        most = min(self.plan.design.windows, self.opened.settings.windows or LOOKS[-1])
        return (*(look for look in LOOKS if look < most), most)

    @property
    def runs(self) -> dict[str, bool]:
        """Return whether the engine, or Python if none is named, can run each method."""
        return {name: runs_in(self.opened.settings.engine, of) for name, of in self.plan.engines.items()}

    def due(self, windows: int, methods: Collection[str]) -> list[Job]:
        """Return the jobs of these methods that are due in the first windows."""
        return self.plan.due(windows, methods, self.ledger)

    def measure(self, progress: Progress | bool | None = None) -> Diagnosis:
        """Measure until the answer stands; `progress` as for `doctor`."""
        with self.ledger.at_work(), shown("doctor", progress) as display:
            for line in (*self.notes, *resumed(self.ledger), self._announcement()):
                say(display, line)
            alive, looks = list(self.plan.distinct), list[LookBack]()
            try:
                stopped = self._measure(display, alive, looks)
            except KeyboardInterrupt as stop:
                diagnosis = self.diagnosis(looks, "Ctrl-C") if looks else None
                raise RunInterrupted(len(self.ledger), len(self.due(self.looks[-1], alive)), diagnosis) from stop
            return self.diagnosis(looks, stopped)

    def _announcement(self) -> str:
        """Return a sentence about the first answer and its estimated time."""
        jobs = self.due(1, self.plan.distinct)
        if not jobs:
            return "All results are already saved."
        return (
            f"The first answer takes about {duration(self.opened.pace.seconds(jobs))}: one window of "
            f"{self.plan.design.target:,} tokens under {', '.join(self.plan.distinct)}. The run ends when the answer "
            f"is settled, after at most {counted(self.looks[-1], 'window')}."
        )

    def _measure(self, display: Progress, alive: list[str], looks: list[LookBack]) -> str | None:
        """Fill `looks`, and drop methods that fail from `alive`; return "minutes" if the time ended the run."""
        stopped, slower = None, 1.0
        for count, longer in itertools.zip_longest(self.looks, self.looks[1:]):
            due, before = self.due(count, alive), self.opened.spent
            if not self._read(due, display, needed=not looks):
                say(display, f"Out of time after {counted(looks[-1].windows, 'window')}: {looks[-1].headline}")
                return "minutes"
            slower = (self.opened.spent - before) / self.opened.pace.seconds(due) if due else slower
            evidence, decision, look = self._look(count)
            looks.append(look)
            done = decision.settled or decision.action in ("unfit", "cut")
            if longer is not None and not done:
                alive[:] = [name for name in alive if name in (PLAIN, CROP) or not fails(evidence, name)]
                stopped = None if self.opened.fits(self.due(longer, alive), slower) else "minutes"
            done = done or longer is None or stopped is not None
            more = "" if done else " More windows follow."
            say(display, f"After {counted(look.windows, 'window')}: {look.headline}{more}")
            if done:
                break
        many = len(methods_of(evidence))
        if decision.method is not None and many >= MANY and count < self.plan.design.windows:
            say(display, f"A fresh window for {decision.method}, the best of {many}.")
            self._read(self.due(count + 1, [decision.method]), display)
        return stopped

    def _read(self, due: Sequence[Job], display: Progress, *, needed: bool = False) -> bool:
        """Measure jobs; return whether all are done. None begins after the time is over, unless they are `needed`."""
        opened, levels = self.opened, dict[int, float]()
        workers = fitting_workers(opened.reader, self.plan.design.target, len(due))
        expect(display, sum(job.tokens for job in due))

        def measure(job: Job, advance: Advance) -> None:
            self.ledger.add(job.key, read_job(opened.reader, self.plan, job, levels, advance))

        at_once(due, measure, workers=workers, progress=display, until=lambda: not needed and not opened.fits(()))
        return all(job.key in self.ledger for job in due)

    def _readings(self, count: int) -> dict[str, tuple[WindowReading, ...]]:
        """Return the readings of the first windows, by method; each has those before its first missing one."""
        keys = {name: [self.plan.key(name, window) for window in range(count)] for name in self.plan.distinct}
        read = {name: itertools.takewhile(self.ledger.__contains__, of) for name, of in keys.items()}
        found = {name: tuple(restored(WindowReading, self.ledger[key]) for key in of) for name, of in read.items()}
        return {name: of for name, of in found.items() if of}

    def _look(self, count: int) -> tuple[Evidence, Decision, LookBack]:
        """Return the evidence after the first windows, the decision, and the look."""
        readings, design = self._readings(count), self.plan.design
        evidence = gather(self.plan.windows[:count], readings, design)
        decision = self._decide(evidence, self.runs)
        python = decision.method is not None and self.plan.configs[decision.method] is None
        return evidence, decision, LookBack(
            windows=count, seconds=round(sum(one.seconds for of in readings.values() for one in of), 1),
            action=decision.action, method=decision.method, length=decision.length,
            headline=headline(decision, design.trained_length, ", in Python" if python else ""),
        )  # fmt: skip

    def _decide(self, evidence: Evidence, runs: Mapping[str, bool]) -> Decision:
        """Return the answer for the place that can run these methods."""
        return decide(evidence, runs=runs, log_vocabulary=math.log(self.opened.vocabulary))

    def diagnosis(self, looks: Sequence[LookBack], stopped: str | None) -> Diagnosis:
        """Return the diagnosis of the last look."""
        plan, opened, count = self.plan, self.opened, looks[-1].windows
        evidence, decision, look = self._look(count)
        readings, same = self._readings(count), plan.same_as
        methods = {
            name: MethodForm(config=plan.configs[name], same_as=same.get(name), engines=plan.engines[name])
            for name in plan.positions if same.get(name, name) in readings
        }  # fmt: skip
        return Diagnosis(
            name=opened.reader.name, trained_length=opened.trained, target=plan.design.target, seed=plan.design.seed,
            kind=opened.teller.kind.name, texts=tuple(text.name for text in plan.texts), blocks=plan.design.blocks,
            windows=plan.windows[:count], readings=readings, methods=methods, evidence=evidence,
            verdict=self._verdict(evidence, decision, look, stopped), looks=tuple(looks), inspection=self.inspection,
            scaling=opened.scaling, environment=opened.environment(), notes=self.notes,
        )  # fmt: skip

    def _verdict(self, evidence: Evidence, decision: Decision, look: LookBack, stopped: str | None) -> Verdict:
        following = in_words = beside = None
        engine, count = self.opened.settings.engine, look.windows
        if decision.action == "cut" and stopped is None:
            following, in_words = self._others()
        elif decision.action == "undecided" or (stopped is not None and not decision.settled):
            following, in_words = self._next(count, stopped)
        names = [self.plan.texts[text].name for text in dict.fromkeys(one.text for one in self.plan.windows[:count])]
        scope = names[0] if len(names) == 1 else counted(len(names), "text")
        main = self._answer(evidence, decision, engine, engine or "Python", self.record)
        if engine is None and decision.method is not None and not self.plan.engines[decision.method]:
            other = self._decide(evidence, {name: bool(of) for name, of in self.plan.engines.items()})
            how = "To decide it for one engine, repeat with --engine NAME." if other.action == "undecided" else None
            beside = self._answer(evidence, other, None, "an engine", next_sentence=how)
        elif engine is not None:
            other = self._decide(evidence, {})
            if other.method is not None and not self.runs[other.method] and decision.method not in other.equal:
                beside = self._answer(evidence, other, "python", "Python")
        fresh = self._fresh(decision, evidence)
        return dataclasses.replace(
            main, headline=look.headline, beside=beside, stopped=stopped, next=following, next_sentence=in_words,
            reasons=(*main.reasons, *fresh, f"This is about {scope}, measured in {counted(count, 'window')}."),
        )  # fmt: skip

    def _fresh(self, decision: Decision, evidence: Evidence) -> list[str]:
        """Return what the best of many methods finds in a window that it was not chosen by, as a sentence."""
        method, window = decision.method, evidence.windows
        if method is None or len(methods_of(evidence)) < MANY or self.plan.key(method, window) not in self.ledger:
            return []
        answers = restored(WindowReading, self.ledger[self.plan.key(method, window)]).answers
        facts = self.plan.windows[window].facts
        right = [choice(row) == fact.right for row, fact in zip(answers, facts, strict=True) if fact.far]
        return [f"In a fresh window, which had no part in the choice, it finds {sum(right)} of {len(right)}."]

    def _answer(
        self, evidence: Evidence, decision: Decision, engine: str | None, place: str, record: Path | None = None,
        next_sentence: str | None = None,
    ) -> Verdict:  # fmt: skip
        """Return an answer in words, with the command that applies it. `place`: where the model may run, in words."""
        trained, config, command, python = self.opened.trained, None, None, None
        if decision.method is not None:
            config = self.plan.configs[decision.method]
            engine = "python" if config is None else engine
            command = self._command(decision.method, decision.length, engine, record)
            lines = self._command(decision.method, decision.length, "python")
            python = None if lines == command else lines
            if config is not None:
                reach = Reach(trained, self.plan.design.target)
                config = self.opened.reader.config_under(decision.method, reach, decision.length)
        shared = {name: getattr(decision, name) for name in ("action", "method", "length", "equal", "settled")}
        return Verdict(
            **shared, headline=headline(decision, trained), engine=engine, config=config, command=command,
            python=python, next_sentence=next_sentence,
            reasons=reasons(decision, evidence, log_vocabulary=math.log(self.opened.vocabulary), place=place),
            otherwise=None if decision.otherwise is None else headline(decision.otherwise, trained),
        )  # fmt: skip

    def _command(self, method: str, length: int | None, engine: str | None, record: Path | None = None) -> str:
        """Return the shell command, or the lines of Python, that set a method."""
        opened, target = self.opened, self.plan.design.target
        if not isinstance(opened.model, str | Path):
            from ropewalk.models.decoder import Decoder

            lines, stated = ["import ropewalk as rw"], f"target={target}, trained_length={opened.trained}"
            if isinstance(opened.model, Decoder):  # its copy in transformers can be attached
                place = "ropewalk.checkpoints.opening"
                lines += [f"from {place} import as_transformers", "model, tokenizer = as_transformers(model)"]
            return "\n".join([*lines, f"rw.attach(model, {method!r}, {stated})"])
        from ropewalk.serving.serve import setting_command

        given = opened.settings.trained_length is not None or opened.scaling is not None
        return setting_command(
            engine, opened.model, method, target=target, record=record, length=length,
            trained_length=opened.trained if given else None,
        )  # fmt: skip

    def _next(self, count: int, stopped: str | None) -> tuple[str | None, str | None]:
        """Return the command that would decide, or None, and a sentence."""
        opened, planned = self.opened, self.plan.design.windows
        again = partial(opened.settings.command, opened.model, kept=self.kept, resume=True)
        if stopped is not None:
            further = next((look for look in self.looks if look > count), self.looks[-1])
            seconds = opened.spent + opened.pace.seconds(self.due(further, self.plan.distinct))
            minutes = math.ceil(seconds / 60) + 1.0
            if math.isfinite(opened.minutes):
                minutes = max(minutes, opened.minutes + (stopped == "minutes"))
            return again(minutes=minutes), f"About {minutes:g} minutes in all may decide."
        if self.looks[-1] < planned:
            return again(windows=None), "More windows of the same text may decide."
        if planned >= LOOKS[-1]:
            return self._others()
        characters = characters_of(self.plan.texts, LOOKS[-1] * self.plan.design.target)
        return None, f"More text may decide: about {characters:,} characters hold {LOOKS[-1]} windows."

    def _others(self) -> tuple[str | None, str]:
        """Return the command that measures every method, or None, and a sentence."""
        opened, settings = self.opened, self.opened.settings
        every = chosen_methods([ALL], opened.reader.positions, Reach(opened.trained, self.plan.design.target))
        if set(every) <= set(self.plan.positions):
            return None, "Every method was measured; other texts may decide."
        command = None if settings.method_names else settings.command(opened.model, kept=self.kept, methods=ALL)
        return command, "Other --methods may work."
