"""`rw.doctor`, and its run, which reads windows and looks at the evidence until the answer stands."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.audit.audit import audits_of, inspection
from ropewalk.audit.traps import findings_of
from ropewalk.checkpoints.reader import Advance
from ropewalk.diagnosis.evidence import Evidence, choice, gather
from ropewalk.diagnosis.facts import GROUP
from ropewalk.diagnosis.prepare import Clock, Opened, open_model, schedule_of
from ropewalk.diagnosis.record import Diagnosis, LookBack, Verdict
from ropewalk.diagnosis.rules import Decision, decide, fails, headline, methods_of, reasons
from ropewalk.diagnosis.schedule import CROP, LOOKS, PLAIN, Job, Schedule, Text, WindowReading, at_once, read_job
from ropewalk.diagnosis.settings import DoctorSettings, TextSource
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.methods import Reach, chosen_methods
from ropewalk.methods.table import ALL
from ropewalk.progress import Progress, duration, say, shown
from ropewalk.records import restored
from ropewalk.statistics import counted

KIND = "windows"  # of the ledger
JOB_FORMAT = 9  # of a result and of how it is measured: a change of either takes the next number
MOST_COMPARED = 3  # methods of a run that names none
MANY = 4  # methods: the best of as many is measured in a fresh window


def doctor(
    model: object = "tiny",
    *,
    tokenizer: Any = None,
    target: int | None = None,
    trained_length: int | None = None,
    text: TextSource = None,
    methods: str | Sequence[str] | None = None,
    engine: str | None = None,
    minutes: float | None = None,
    windows: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
) -> Diagnosis:
    """Measure how far a model's context really reaches, and what would extend it.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME or OWNER/NAME@REVISION, "tiny"; or
      a `Decoder` in Llama's layout, a live model of transformers with its `tokenizer`, or a pair of the two.
      transformers computes the model; `Diagnosis.environment["library"]` contains its version and the model's class.
    - `target`: the desired length in tokens; None: four times the trained length. `trained_length`: in tokens;
      overrides the config and the table of families.
    - `text`: a file or folder, a list of them, or a list of (name, contents); None: passages of books and of code.
    - `methods`: names, or "all", which includes methods in attention; None: the first three of yarn, llama3, dca and
      ntk that the engine runs, fewer if the minutes are too few. plain and crop are always measured.
    - `engine`: the engine for the model: "vllm", "sglang", "llama.cpp", "ollama", "transformers" or "python". The best
      method that it runs is recommended. None: the best of all, and the best for engines if that runs in Python only.
    - `minutes`: time limit, after which the run ends with the best answer so far. None: 10 on a CPU;
      no limit elsewhere. `math.inf`: no limit.
    - `windows`: most windows of text to read; None: up to 8, until the answer stands. `seed`: of windows and facts.
    - `dtype`, `device`: for a model that is loaded here. "auto" is bfloat16 if the machine multiplies it faster
      (AVX512-BF16, AMX, CUDA from sm_80), else float32.
    - `state`: the folder in which results are saved as they are computed; None: in the user's cache. `resume`: resume
      the same run; else it starts over.
    - `progress`: None: shown on a terminal and in a notebook, nothing elsewhere; False: nothing; or an object that
      gets the progress (`ropewalk.progress.Progress`).

    **Returns:** a `Diagnosis`. Losses are in nats per token.
    **Raises:** `RopeError` if something cannot be measured, before any work if possible; `RunInterrupted` (a
    KeyboardInterrupt) on Ctrl-C, after which `resume=True` resumes the run.

    >>> text = [("story", "The old man and the sea. He went out alone in a skiff. " * 400)]
    >>> diagnosis = doctor("tiny", target=512, text=text, methods=["dca"], windows=1)
    >>> list(diagnosis.readings)
    ['plain', 'dca', 'crop']
    """
    settings = DoctorSettings(
        target=target, trained_length=trained_length, text=text, methods=methods, engine=engine, minutes=minutes,
        windows=windows, seed=seed, dtype=dtype, device=device, state=state, resume=resume,
    )  # fmt: skip
    if tokenizer is not None:
        if isinstance(model, str | Path | tuple):
            raise RopeError(
                "doctor: `tokenizer` applies only to a live model; a path or a pair has its own.",
                facts={"model": model if isinstance(model, str | Path) else type(model).__name__},
                cure="Leave it out, or pass the model itself.",
            )
        model = (model, tokenizer)
    return prepare(model, settings, progress).measure(progress)


def prepare(
    model: object,
    settings: DoctorSettings,
    progress: Progress | bool | None = None,
    *,
    clock: Clock = time.perf_counter,
    kept: Sequence[str] = (),
    record: Path | None = None,
) -> DoctorRun:
    """Load the model and check all settings, before any work; arguments as for `doctor`.

    `kept`: words of the command line, such as --json FILE, to repeat in the next command. `record`: the file into which
    the diagnosis will be written.
    """
    opened = open_model(model, settings, progress, clock)
    fewer = [MOST_COMPARED] if settings.method_names else range(MOST_COMPARED, 0 if settings.target else 1, -1)
    first, *others = [(target, most) for target in opened.targets for most in fewer]
    asked = chosen = schedule_of(opened, *first)
    for one in others:
        if opened.fits(chosen.first):
            break
        with suppress(RopeError):  # too short for facts
            chosen = schedule_of(opened, *one)
    seconds = opened.pace.seconds(asked.first)
    if not opened.fits(chosen.first):
        less = " Fewer --methods or a shorter --target take less." if settings.target or settings.methods else ""
        raise opened.too_long("first answer", opened.spent + seconds, asked.design.target, kept, less)
    design = chosen.design
    notes = [] if isinstance(model, str | Path) or opened.dtype_choice is None else [opened.dtype_choice]
    if chosen is not asked:
        notes.append(
            f"With {asked.design.target:,} tokens and {', '.join(asked.distinct)}, the first answer takes about "
            f"{duration(seconds)}, more than --minutes {opened.minutes:g}. Measured is {', '.join(chosen.distinct)} "
            f"with {design.target:,} tokens."
        )
    notes += _short_text(chosen, opened.texts)
    ledger = opened.ledger(KIND, JOB_FORMAT, chosen.filled, repr(design), repr(opened.teller.kind.name))
    audits = audits_of(opened.source, trained_length=design.trained_length, target=design.target)
    return DoctorRun(
        opened=opened, schedule=chosen, ledger=ledger, notes=tuple(notes), kept=tuple(kept), record=record,
        inspection=inspection(opened.source.name, audits, findings_of(opened.source)),
    )  # fmt: skip


def _short_text(chosen: Schedule, texts: Sequence[Text]) -> list[str]:
    """Return a sentence if the text has too few windows for an answer about a method that finds half of the facts."""
    far, windows = sum(fact.far for fact in chosen.filled[0].facts), chosen.design.windows
    if not far or far * windows >= 6 * GROUP:
        return []
    needed = -(-6 * GROUP // far)
    return [
        f"The text holds {counted(windows, 'window')} with {far * windows} far facts, too few for most answers; "
        f"{counted(needed, 'window')} need about {Text.characters(texts, needed * chosen.design.target):,} characters."
    ]


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
class DoctorRun:
    """A prepared run, with checked settings and a loaded model: its work, and its looks at the results.

    - `inspection`: as in the record. `notes`: for the user.
    - `kept`: words to repeat in the next command. `record`: the file into which the diagnosis will be written, or None.
    """

    opened: Opened
    schedule: Schedule
    inspection: Mapping[str, Any]
    ledger: Ledger
    notes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    record: Path | None = None

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the numbers of windows after which the run looks at its evidence."""
        most = min(self.schedule.design.windows, self.opened.settings.windows or LOOKS[-1])
        return (*(look for look in LOOKS if look < most), most)

    @property
    def cannot(self) -> list[str]:
        """Return the methods that the engine cannot run; Python, if none is named, can run all."""
        return [name for name, form in self.schedule.methods.items() if not form.runs_in(self.opened.settings.engine)]

    def due(self, windows: int, methods: Collection[str]) -> list[Job]:
        """Return the jobs of these methods that are due in the first windows."""
        return self.schedule.due(windows, methods, self.ledger)

    def measure(self, progress: Progress | bool | None = None) -> Diagnosis:
        """Measure until the answer stands; `progress` as for `doctor`."""
        with self.ledger.at_work(), shown("doctor", progress) as display:
            for line in (*self.notes, *resumed(self.ledger), self._announcement()):
                say(display, line)
            alive, looks = list(self.schedule.distinct), list[LookBack]()
            try:
                stopped = self._measure(display, alive, looks)
            except KeyboardInterrupt as stop:
                diagnosis = self.diagnosis(looks, "Ctrl-C") if looks else None
                raise RunInterrupted(len(self.ledger), len(self.due(self.looks[-1], alive)), diagnosis) from stop
            return self.diagnosis(looks, stopped)

    def _announcement(self) -> str:
        """Return a sentence about the first answer and its estimated time."""
        jobs = self.due(1, self.schedule.distinct)
        if not jobs:
            return "All results are already saved."
        return (
            f"The first answer takes about {duration(self.opened.pace.seconds(jobs))}: one window of "
            f"{self.schedule.design.target:,} tokens under {', '.join(self.schedule.distinct)}. The run ends when the "
            f"answer is settled, after at most {counted(self.looks[-1], 'window')}."
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
            done = decision.settled or decision.action == "cut"
            if longer is not None and not done:
                alive[:] = [name for name in alive if name in (PLAIN, CROP) or not fails(evidence, name)]
                stopped = None if self.opened.fits(self.due(longer, alive), slower) else "minutes"
            done = done or longer is None or stopped is not None
            more = "" if done else " More windows follow."
            say(display, f"After {counted(look.windows, 'window')}: {look.headline}{more}")
            if done:
                break
        many = len(methods_of(evidence))
        if decision.method is not None and many >= MANY and count < self.schedule.design.windows:
            say(display, f"A fresh window for {decision.method}, the best of {many}.")
            self._read(self.due(count + 1, [decision.method]), display)
        return stopped

    def _read(self, due: Sequence[Job], display: Progress, *, needed: bool = False) -> bool:
        """Measure jobs; return whether all are done. None begins after the time is over, unless they are `needed`."""
        opened, levels = self.opened, dict[int, float]()

        def measure(job: Job, advance: Advance) -> None:
            self.ledger.add(job.key, read_job(opened.reader, self.schedule, job, levels, advance))

        at_once(
            opened.reader, due, measure, target=self.schedule.design.target, progress=display,
            until=lambda: not needed and not opened.fits(()),
        )  # fmt: skip
        return all(job.key in self.ledger for job in due)

    def _readings(self, count: int) -> dict[str, tuple[WindowReading, ...]]:
        """Return the readings of the first windows, by method; each has those before its first missing one."""
        keys = {name: [self.schedule.key(name, window) for window in range(count)] for name in self.schedule.distinct}
        read = {name: itertools.takewhile(self.ledger.__contains__, of) for name, of in keys.items()}
        found = {name: tuple(restored(WindowReading, self.ledger[key]) for key in of) for name, of in read.items()}
        return {name: of for name, of in found.items() if of}

    def _look(self, count: int) -> tuple[Evidence, Decision, LookBack]:
        """Return the evidence after the first windows, the decision, and the look."""
        readings, design = self._readings(count), self.schedule.design
        evidence = gather(self.schedule.windows[:count], readings, design)
        decision = self._decide(evidence, self.cannot)
        python = decision.method is not None and self.schedule.methods[decision.method].config is None
        return evidence, decision, LookBack(
            windows=count, seconds=round(sum(one.seconds for of in readings.values() for one in of), 1),
            action=decision.action, method=decision.method, length=decision.length,
            headline=headline(decision, design.trained_length, ", in Python" if python else ""),
        )  # fmt: skip

    def _decide(self, evidence: Evidence, cannot: Collection[str]) -> Decision:
        """Return the answer for the place that cannot run these methods."""
        return decide(evidence, cannot=cannot, log_vocabulary=math.log(self.opened.vocabulary))

    def diagnosis(self, looks: Sequence[LookBack], stopped: str | None) -> Diagnosis:
        """Return the diagnosis of the last look."""
        schedule, design, opened, count = self.schedule, self.schedule.design, self.opened, looks[-1].windows
        evidence, decision, look = self._look(count)
        readings = self._readings(count)
        methods = {name: form for name, form in schedule.methods.items() if (form.same_as or name) in readings}
        return Diagnosis(
            name=opened.reader.name, trained_length=opened.trained, target=design.target, seed=design.seed,
            kind=opened.teller.kind.name, texts=tuple(text.name for text in schedule.texts), blocks=design.blocks,
            windows=schedule.windows[:count], readings=readings, methods=methods, evidence=evidence,
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
        texts, read = self.schedule.texts, dict.fromkeys(one.text for one in self.schedule.windows[:count])
        names = [texts[text].name for text in read]
        scope = names[0] if len(names) == 1 else counted(len(names), "text")
        main = self._answer(evidence, decision, engine, engine or "Python", self.record)
        if engine is None and decision.method is not None and not self.schedule.methods[decision.method].engines:
            other = self._decide(evidence, [name for name, form in self.schedule.methods.items() if not form.engines])
            how = "To decide it for one engine, repeat with --engine NAME." if other.action == "undecided" else None
            beside = self._answer(evidence, other, None, "an engine", next_sentence=how)
        elif engine is not None:
            other = self._decide(evidence, ())
            if other.method in self.cannot and decision.method not in other.equal:
                beside = self._answer(evidence, other, "python", "Python")
        fresh = self._fresh(decision, evidence)
        return dataclasses.replace(
            main, headline=look.headline, beside=beside, stopped=stopped, next=following, next_sentence=in_words,
            reasons=(*main.reasons, *fresh, f"This is about {scope}, measured in {counted(count, 'window')}."),
        )  # fmt: skip

    def _fresh(self, decision: Decision, evidence: Evidence) -> list[str]:
        """Return what the best of many methods finds in a window that it was not chosen by, as a sentence."""
        method, window = decision.method, evidence.windows
        if method is None or len(methods_of(evidence)) < MANY or self.schedule.key(method, window) not in self.ledger:
            return []
        answers = restored(WindowReading, self.ledger[self.schedule.key(method, window)]).answers
        facts = self.schedule.windows[window].facts
        right = [choice(row) == fact.right for row, fact in zip(answers, facts, strict=True) if fact.far]
        return [f"In a fresh window, which had no part in the choice, it finds {sum(right)} of {len(right)}."]

    def _answer(
        self, evidence: Evidence, decision: Decision, engine: str | None, place: str, record: Path | None = None,
        next_sentence: str | None = None,
    ) -> Verdict:  # fmt: skip
        """Return an answer in words, with the command that applies it. `place`: where the model may run, in words."""
        trained, config, command, python = self.opened.trained, None, None, None
        if decision.method is not None:
            config = self.schedule.methods[decision.method].config
            engine = "python" if config is None else engine
            command = self._command(decision.method, decision.length, engine, record)
            lines = self._command(decision.method, decision.length, "python")
            python = None if lines == command else lines
            if config is not None:
                reach = Reach(trained, self.schedule.design.target)
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
        opened, target = self.opened, self.schedule.design.target
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
        opened, planned = self.opened, self.schedule.design.windows
        again = partial(opened.settings.command, opened.model, kept=self.kept, resume=True)
        if stopped is not None:
            further = next((look for look in self.looks if look > count), self.looks[-1])
            seconds = opened.spent + opened.pace.seconds(self.due(further, self.schedule.distinct))
            minutes = math.ceil(seconds / 60) + 1.0
            if math.isfinite(opened.minutes):
                minutes = max(minutes, opened.minutes + (stopped == "minutes"))
            return again(minutes=minutes), f"About {minutes:g} minutes in all may decide."
        if self.looks[-1] < planned:
            return again(windows=None), "More windows of the same text may decide."
        if planned >= LOOKS[-1]:
            return self._others()
        characters = Text.characters(self.schedule.texts, LOOKS[-1] * self.schedule.design.target)
        return None, f"More text may decide: about {characters:,} characters hold {LOOKS[-1]} windows."

    def _others(self) -> tuple[str | None, str]:
        """Return the command that measures every method, or None, and a sentence."""
        opened, settings = self.opened, self.opened.settings
        every = chosen_methods([ALL], opened.reader.positions, Reach(opened.trained, self.schedule.design.target))
        if set(every) <= set(self.schedule.positions):
            return None, "Every method was measured; other texts may decide."
        command = None if settings.method_names else settings.command(opened.model, kept=self.kept, methods=ALL)
        return command, "Other --methods may work."
