"""`rw.doctor`: the whole run as a library call."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.audit.audit import Audit
from ropewalk.audit.findings import Finding
from ropewalk.audit.sources import Source, read_source, source_of
from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis.conclude import conclude, doctor_command
from ropewalk.diagnosis.diagnosis import Diagnosis
from ropewalk.diagnosis.estimate import Estimate, Fitted, estimate_losses, estimate_memory, fit, try_out
from ropewalk.diagnosis.measurement import Measurement
from ropewalk.diagnosis.plan import KIND, Plan, fingerprint, plan, take_windows, trained_length_of
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.reading import ScalingReading, settle_reading
from ropewalk.diagnosis.retrieval import asked_methods, prepare_retrieval, retrieval_seconds
from ropewalk.diagnosis.run import gather, run
from ropewalk.diagnosis.settings import DoctorSettings, TextSource, refuse_ignored
from ropewalk.diagnosis.token_frequencies import frequency_losses
from ropewalk.diagnosis.use import (
    examined_methods,
    likely_methods,
    open_evaluator,
    prepare_use,
    use_model,
    use_seconds,
)
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.methods import METHODS, unsettled
from ropewalk.models.precision import chosen_dtype
from ropewalk.models.tokens import Tokenizer
from ropewalk.progress import Display, Progress
from ropewalk.progress.shown import expect, say, shown
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.environment import environment_of
from ropewalk.readers.pace import Clock, Trial
from ropewalk.readers.reader import Losses, Reader
from ropewalk.readers.workers import fitting_workers
from ropewalk.retrieval.measure import RetrievalRun
from ropewalk.retrieval.result import RetrievalMeasurement
from ropewalk.use.result import UseMeasurement
from ropewalk.use.run import UseRun

FITTED = "fitted"  # the job of a plan's ledger
SHARE_OF_MINUTES = 0.9  # that is planned for: what an estimate may be wrong by


def doctor(
    model: object = "tiny",
    *,
    target: int | None = None,
    trained_length: int | None = None,
    text: TextSource = None,
    start_char: int = 0,
    block: int | None = None,
    windows: int | None = None,
    stride: int | None = None,
    methods: str | Sequence[str] | None = None,
    unscaled_tokens: int = 0,
    measure: str | Sequence[str] = ("loss", "use"),
    evaluator: Any = None,
    retrieval: str | Sequence[str] | None = None,
    retrieval_lengths: Sequence[int] | None = None,
    retrieval_samples: int = 4,
    retrieval_form: str = "many",
    retrieval_chat: bool = False,
    scoring: str = "choice",
    seed: int = 0,
    chunk: int = 1024,
    workers: int | None = None,
    minutes: float | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
) -> Diagnosis:
    """Measure how far a model's context really reaches, and what would extend it.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, "tiny", a `Decoder`, or a `Reader` of another library's model.
    - `target`: the length wanted, in tokens; None: four times the trained length. `trained_length`: tokens that the
      model was trained to, in place of what its config and the table of families say.
    - `text`: a file, several, or a list of (name, contents); None: Moby Dick. `start_char`: where each begins.
    - `block`, `stride`: tokens; None: a quarter of the trained length. `windows`: of each text; None: up to 16.
    - `methods`: names, "all" for those in attention as well; None: those that a config can hold. plain and crop are
      always measured with them.
    - `unscaled_tokens`: so many first tokens keep their angles under changed frequencies.
    - `measure`: "loss" (always), "use" (the copy test and the exchange test, for plain, the best method and crop) and
      "retrieval", with commas. `evaluator`: another model, or its path, which chooses the key tokens of the exchange
      test as LongPPL does; None: there are none.
    - `retrieval`: tasks, or "all"; None: none. `retrieval_lengths` in tokens, `retrieval_samples` texts for each task
      and length. `retrieval_form`: "many" questions after each text, or "one"; `retrieval_chat`: in the frame of the
      model's chat template. `scoring`: "choice", or with one question "generate".
    - `seed` draws the windows and the texts. `chunk`: tokens of one forward. `workers`: windows at one time.
    - `minutes`: measure the windows and methods that fit, by an estimate; plain and crop always. None: all.
    - `dtype`, `device`: of a model that is loaded here; one that is passed as an object has its own. "auto" is bfloat16
      where the machine multiplies it faster (AVX512-BF16, AMX, CUDA from sm_80), else float32.
    - `state`: the folder that keeps each result as soon as it is there; None: one in the user's cache. `resume`:
      continue, or join, the same run; else it begins again. Several processes may share one folder.
    - `progress`: None: a bar on a terminal and in a notebook, nothing elsewhere; False: nothing; or an object that is
      called as the work goes on (`ropewalk.progress.Progress`).

    **Returns:** a `Diagnosis`. Losses are in nats per token.
    **Raises:** `RopeError` for what cannot be measured, before any work where possible; `RunInterrupted` (a
    KeyboardInterrupt) on Ctrl-C, after which `resume=True` continues.

    >>> text = [("story", "The old man and the sea. " * 60)]
    >>> diagnosis = doctor("tiny", trained_length=16, target=32, text=text, windows=1, methods=["pi"])
    >>> list(diagnosis.measurement.results)
    ['plain', 'pi', 'crop']
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "progress")}
    return prepare(model, DoctorSettings(**given), progress).measure(progress)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run: `kept` results of its `kind` are in the ledger, and `due` are not."""

    def __init__(self, kind: str, kept: int, due: int) -> None:
        super().__init__(f"{kept} {kind} are kept, {due} are due; resume=True continues.")
        self.kind, self.kept, self.due = kind, kept, due


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorRun:
    """A run whose settings have been checked and whose model is loaded: what it will do, and the steps that do it.

    - `audits`, `findings`: what the config says. `plan`, `windows`: what will be measured. `resumed`: how many losses
      were in the ledger already. `retrieval`: the retrieval measurement, where it was asked for.
    - `use`: the measurement of the use of far tokens, where it was asked for.
    - `trial`: the model's pace, where it is known already. `left_out`: what did not fit into the minutes, in sentences.
    - `frequencies`: what token frequencies lose on each window. `room`: windows that the shortest text holds.
      `command`: what would measure the same with so many windows of each text.
    - `reading`: whether the model was trained with its scaling, where that had to be measured.
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
    room: int
    command: Callable[[int], str]
    reading: ScalingReading | None = None

    def measure(self, progress: Progress | bool | None = None) -> Diagnosis:
        """Measure everything that was asked for; `progress` as for `doctor`."""
        with self.at_work(), shown("doctor", progress) as display:
            for line in self.left_out:
                say(display, line)
            if self.resumed:
                say(display, f"Resumed: {self.resumed} measurements were there already.")
            if isinstance(display, Display):
                display.begin("a short trial", 0)
                found = self.estimate()
                say(display, "All is measured already." if found is None else f"This takes {found.sentence}.")
            losses = self.measure_losses(display)
            use = self.measure_use(losses, display)
            return self.diagnosis(losses, self.measure_retrieval(losses, display), use)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """For the time of the block no other process may begin this run again; it may join it."""
        ledgers = [self.ledger, *(() if self.use is None else (self.use.ledger,))]
        ledgers += [] if self.retrieval is None else [self.retrieval.outcomes.ledger]
        with ExitStack() as held:
            for ledger in ledgers:
                held.enter_context(ledger.at_work())
            yield

    def estimate(self, clock: Clock = time.perf_counter) -> Estimate | None:
        """How long the work that is due will take, and its memory, from a short trial; None where all is done."""
        due, protocol, chunk = self.plan.due(self.ledger), self.plan.protocol, self.settings.chunk
        names = likely_methods(self.plan.methods) if due else examined_methods(gather(self.plan, self.ledger))
        models = {name: use_model(name, self.reader, self.plan) for name in names}
        asked = None if self.retrieval is None else asked_methods(self.retrieval, self.settings, self.plan, names)
        of_use = self.use is not None and self.use.due(models)
        of_retrieval = self.retrieval is not None and self.retrieval.due_of(asked or ())
        if not (due or of_use or of_retrieval):
            return None
        workers = workers_for(self.reader, self.settings, protocol, len(due))
        trial = self.trial or try_out(
            self.reader, self.windows[0], due, protocol, workers=workers, chunk=chunk, clock=clock
        )
        seconds = estimate_losses(due, protocol, trial.pace, workers=workers, chunk=chunk)
        if self.use is not None:
            seconds += use_seconds(self.use, models, trial.pace, workers=workers, losses_due=bool(due))
        if self.retrieval is not None:
            seconds += retrieval_seconds(self.retrieval, asked or (), trial.pace, workers=workers)
        return Estimate(
            seconds=seconds,
            peak_bytes=estimate_memory(self.reader, trial, protocol.target, workers),
        )

    def measure_losses(self, progress: Progress) -> Measurement:
        """The losses of every method on every window."""
        due = self.plan.due(self.ledger)
        workers = workers_for(self.reader, self.settings, self.plan.protocol, len(due))
        expect(progress, sum(job.tokens for job in due))
        try:
            measured = run(
                self.reader,
                self.windows,
                self.plan,
                self.ledger,
                chunk=self.settings.chunk,
                workers=workers,
                progress=progress,
                keep=self.keep_for_use,
            )
        except KeyboardInterrupt as stop:
            raise RunInterrupted("measurements", len(self.ledger), len(self.plan.due(self.ledger))) from stop
        return dataclasses.replace(measured, frequencies=self.frequencies)

    def keep_for_use(self, method: str, window: int, losses: Losses) -> None:
        """Keep what the exchange test needs of a window's losses, so that it does not read the window again."""
        if self.use is not None:
            self.use.keep(use_model(method, self.reader, self.plan), window, losses)

    def measure_use(self, losses: Measurement, progress: Progress) -> UseMeasurement | None:
        """What distant tokens are worth to plain, the best method and crop; None where it was not asked for."""
        if self.use is None:
            return None
        models = {name: use_model(name, self.reader, self.plan) for name in examined_methods(losses)}
        due = self.use.due(models)
        expect(progress, sum(job.work.tokens for job in due))
        try:
            workers = workers_for(self.reader, self.settings, self.plan.protocol, len(due))
            return self.use.measure(models, workers=workers, progress=progress)
        except KeyboardInterrupt as stop:
            raise RunInterrupted("readings", len(self.use.ledger), len(self.use.due(models))) from stop

    def measure_retrieval(self, losses: Measurement, progress: Progress) -> RetrievalMeasurement | None:
        """The accuracies of the methods that were named, else of plain, the best method and crop; None where they were
        not asked for."""
        if self.retrieval is None:
            return None
        methods = asked_methods(self.retrieval, self.settings, self.plan, examined_methods(losses))
        expect(progress, sum(one.cell.length for one in self.retrieval.due_of(methods)))
        try:
            return self.retrieval.measure(progress, methods=methods)
        except KeyboardInterrupt as stop:
            kept = len(self.retrieval.outcomes.ledger)
            raise RunInterrupted("texts", kept, len(self.retrieval.due_of(methods))) from stop

    def diagnosis(
        self, measurement: Measurement, retrieval: RetrievalMeasurement | None, use: UseMeasurement | None = None
    ) -> Diagnosis:
        """What was found, put together."""
        device, dtype = str(self.reader.device), str(self.reader.dtype).removeprefix("torch.")
        _, choice = chosen_dtype(self.settings.dtype, device)
        environment = {
            **environment_of(device, self.reader.parameters),
            "dtype": dtype,
            **({"dtype_choice": choice} if choice else {}),
            "chunk": self.settings.chunk,
            "model_digest": self.reader.digest(),
        }
        return Diagnosis(
            name=self.name,
            measurement=measurement,
            verdict=conclude(
                measurement,
                use,
                command=self.command,
                room=self.room,
                workers=workers_for(self.reader, self.settings, self.plan.protocol, self.plan.protocol.total_windows),
                further_seconds=0.0 if use is None else sum(use.seconds.values()),
            ),
            audits=self.audits,
            findings=self.findings,
            retrieval=retrieval,
            use=use,
            reading=self.reading,
            environment=environment,
            left_out=self.left_out,
        )


def workers_for(reader: Reader, settings: DoctorSettings, protocol: Protocol, jobs: int) -> int:
    """How many windows are measured at one time."""
    if settings.workers is not None:
        return settings.workers
    return fitting_workers(reader, protocol.target, jobs)


def prepare(
    model: object,
    settings: DoctorSettings,
    progress: Progress | bool | None = None,
    *,
    clock: Clock = time.perf_counter,
) -> DoctorRun:
    """Load the model and check everything that was asked, before any work; arguments as for `doctor`.

    Where it is not known whether the model was trained with the scaling in its config, that is measured here: the
    lengths of all else follow from it.
    """
    began = clock()
    source, reader = _open(model, settings)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "doctor: the model has no tokenizer, so a text cannot be measured.",
            facts={"model": source.name},
            cure="Put its tokenizer.json beside the weights.",
        )
    texts = texts_of(settings.text)
    texts = [(name, contents[max(settings.start_char, 0) :]) for name, contents in texts]
    tokens = [tokenizer.encode(contents) for _, contents in texts]
    evaluator = open_evaluator(settings, str(reader.device))
    reader, reading = _settle(reader, tokens, settings, progress)
    source = source.known_from(reader)
    protocol = Protocol.choose(
        trained_length=trained_length_of(reader, settings.trained_length),
        text=[name for name, _ in texts],
        target=settings.target,
        block=settings.block,
        windows=settings.windows,
        stride=settings.stride,
        start_char=settings.start_char,
        seed=settings.seed,
        unscaled_tokens=settings.unscaled_tokens,
        tokens=min(map(len, tokens)),
    )
    windows = take_windows(tokens, protocol)
    work = plan(reader, protocol, _with_crop(settings.method_names, protocol))
    of_work = [METHODS[name] for name in work.methods]
    for name, present, owner, cure in (
        ("stride", any(method.crops for method in of_work), "crop", "Add crop to the methods"),
        (
            "unscaled_tokens",
            any(method.scales_frequencies for method in of_work),
            "methods that change frequencies",
            "Add one of them to the methods",
        ),
    ):
        refuse_ignored([name] if settings.changes(name) else [], present, owner, cure)
    parts = " and ".join(name for name, _ in texts), "\n".join(contents for _, contents in texts)
    key = fingerprint(reader, windows, protocol)
    trial, left_out = None, tuple[str, ...]()
    folder = state_folder(settings.state, key if settings.minutes is None else hash_of(key, settings.minutes))
    if settings.minutes is not None:
        use = prepare_use(reader, protocol, settings, texts, tokens, None, evaluator=evaluator)
        retrieval = prepare_retrieval(reader, work, settings, parts, None)
        fitted, trial = fit_minutes(
            reader, windows[0], work, settings, folder, use=use, retrieval=retrieval, key=key, began=began, clock=clock
        )
        protocol, left_out = dataclasses.replace(protocol, windows=fitted.windows), fitted.left_out
        windows, work = take_windows(tokens, protocol), plan(reader, protocol, fitted.methods)
        key = fingerprint(reader, windows, protocol)
    chosen = {} if settings.minutes is None else {"methods": [name for name in work.methods if name != "plain"]}
    use = prepare_use(reader, protocol, settings, texts, tokens, folder / "use", evaluator=evaluator)
    retrieval = prepare_retrieval(reader, work, settings, parts, folder / "retrieval")
    ledger = Ledger(folder / "losses", kind=KIND, key=key)
    resumed = ledger.resume() if settings.resume else ledger.begin()
    return DoctorRun(
        settings=settings,
        reader=reader,
        name=source.name,
        audits=tuple(source.audits(trained_length=protocol.trained_length, target=protocol.target)),
        findings=tuple(source.findings(protocol.target)),
        reading=reading,
        plan=work,
        windows=windows,
        ledger=ledger,
        resumed=resumed,
        retrieval=retrieval,
        use=use,
        trial=trial,
        left_out=left_out,
        frequencies=frequency_losses(tokens, protocol, vocab_size=_vocabulary(tokenizer, tokens)),
        room=min(map(len, tokens)) // protocol.target,
        command=lambda count: doctor_command(model, settings, windows=count, **chosen),
    )


def _with_crop(methods: Sequence[str], protocol: Protocol) -> Sequence[str]:
    """The methods asked for, and crop, which a verdict needs wherever anything lies beyond the trained length."""
    crop = next(name for name, method in METHODS.items() if method.crops)
    extends = protocol.target > protocol.trained_length > 1
    return [*methods, crop] if methods and extends and crop not in methods else methods


def _vocabulary(tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> int:
    """How many token ids there are, those of added tokens included."""
    return max(tokenizer.vocab_size, *(max(text) + 1 for text in texts if text), 1)


def fit_minutes(
    reader: Reader,
    window: Tensor,
    work: Plan,
    settings: DoctorSettings,
    folder: Path,
    *,
    use: UseRun | None,
    retrieval: RetrievalRun | None,
    key: str,
    began: float,
    clock: Clock,
) -> tuple[Fitted, Trial | None]:
    """The part of a plan that fits into `settings.minutes` from `began` on, and the trial that tells.

    What was chosen is kept beside the results: a run that is resumed has the same windows and methods, and no trial.
    """
    assert settings.minutes is not None
    ledger = Ledger(folder / "plan", kind="plan", key=hash_of(key, settings.minutes, work.methods))
    if settings.resume and ledger.resume() and FITTED in ledger:
        kept = ledger[FITTED]
        return Fitted(kept["windows"], tuple(kept["methods"]), tuple(kept["left_out"])), None
    jobs, chunk = work.due(Ledger(None, kind=KIND, key=key)), settings.chunk
    workers = workers_for(reader, settings, work.protocol, len(jobs))
    trial = try_out(reader, window, jobs, work.protocol, workers=workers, chunk=chunk, clock=clock)

    def seconds(windows: int, methods: Sequence[str]) -> float:
        total = windows * len(work.protocol.texts)
        chosen = [job for job in jobs if job.method in methods and job.window < total]
        found, likely = (
            estimate_losses(chosen, work.protocol, trial.pace, workers=workers, chunk=chunk),
            likely_methods(methods),
        )
        if use is not None:
            models = {name: use_model(name, reader, work) for name in likely}
            found += use_seconds(use, models, trial.pace, workers=workers, losses_due=True, windows=total)
        if retrieval is not None:
            asked = [name for name in asked_methods(retrieval, settings, work, likely) if name in methods]
            found += retrieval_seconds(retrieval, asked, trial.pace, workers=workers)
        return found

    fitted = fit(
        SHARE_OF_MINUTES * (60 * settings.minutes - (clock() - began)),
        windows=work.protocol.windows,
        texts=len(work.protocol.texts),
        methods=work.methods,
        seconds=seconds,
    )
    ledger.begin()
    ledger.add(FITTED, dataclasses.asdict(fitted))
    return fitted, trial


def _settle(
    reader: Reader, tokens: Sequence[Sequence[int]], settings: DoctorSettings, progress: Progress | bool | None
) -> tuple[Reader, ScalingReading | None]:
    """The reader with an answer to whether its scaling belongs to it, measured where that is not known."""
    if unsettled(reader.positions) is None:
        return reader, None
    folder = None if settings.state is None else state_folder(settings.state, "") / "reading"
    with shown("doctor", progress) as display:
        return settle_reading(
            reader,
            tokens,
            trained_length=settings.trained_length,
            seed=settings.seed,
            chunk=settings.chunk,
            folder=folder,
            progress=display,
        )


def _open(model: object, settings: DoctorSettings) -> tuple[Source, Reader]:
    """The model's config, and its reader on its device."""
    if not isinstance(model, str | Path):
        if settings.changes("dtype") or settings.changes("device"):
            raise RopeError(
                "doctor: a model that is passed as an object has its dtype and its device already.",
                facts={"dtype": settings.dtype, "device": settings.device},
                cure="Move it before: model.to(...).",
            )
        reader = reader_of(model)
        return source_of(reader), reader
    source = read_source(model)
    try:
        device = torch.device(settings.device)
        torch.zeros(1, device=device).item()  # also refuses "meta", which holds no numbers
    except (RuntimeError, AssertionError) as error:
        raise RopeError(
            "doctor: this device cannot be used.",
            facts={"device": settings.device, "error": str(error)},
            cure="Try --device cpu.",
        ) from error
    dtype, _ = chosen_dtype(settings.dtype, str(device))
    return source, open_reader(model, name=source.name, dtype=dtype, device=device)


def texts_of(text: TextSource) -> list[tuple[str, str]]:
    """The name and the contents of each text: a file, several, or a list of such pairs; None is Moby Dick.

    >>> texts_of([("a", "words")])
    [('a', 'words')]
    """
    if text is None or isinstance(text, str | Path):
        return [read_text(None if text is None else Path(text))]
    pairs: list[Any] = list(text) or [None]
    return [one if isinstance(one, tuple) else read_text(None if one is None else Path(one)) for one in pairs]


def state_folder(state: str | Path | None, key: str) -> Path:
    """The folder of a run's ledgers. Raises `RopeError` where a file stands in its place."""
    folder = cache_folder("doctor", key) if state is None else Path(state)
    if folder.exists() and not folder.is_dir():
        raise RopeError(
            "doctor: the state is a folder, and there is a file of this name.",
            facts={"state": str(folder)},
            cure="Name a new folder: --state DIR.",
        )
    return folder
