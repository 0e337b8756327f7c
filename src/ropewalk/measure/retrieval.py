"""Measure retrieval: make texts, ask each method's model, and save each text's answers as they are computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.measure import DEFAULT_TASKS, SAMPLES, TASKS
from ropewalk.measure.answers import Answer, Cell, RetrievalMeasurement, RetrievalProtocol, draws
from ropewalk.measure.engine import Job, Workload, due, run_jobs
from ropewalk.measure.plan import Plan
from ropewalk.measure.questions import HiddenNumbers, QuestionSet, chat_frame, make_tasks
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need
from ropewalk.progress import Progress
from ropewalk.readers.reader import CHUNK, Advance, Reader


def candidate_log_probs(
    reader: Reader, asked: QuestionSet, *, chunk: int = CHUNK, advance: Advance | None = None
) -> list[list[float]]:
    """Return the log-probability in nats of each candidate of each question, summed over its tokens.

    The text is processed once with a cache, `chunk` tokens at a time; `advance` is called with their number. Every
    question is asked as if it were the only one. Frequencies that depend on length are those of `asked.tokens`.
    """
    prefix = reader.prefix(asked.input_ids, seq_len=asked.tokens, chunk=chunk, advance=advance)
    return prefix.ask([(question.input_ids, question.continuations) for question in asked.questions])


def calibrated(asked: QuestionSet, log_probs: Sequence[Sequence[float]]) -> list[dict[int, float]]:
    """Subtract from each candidate's log-probability its mean over all questions that have the candidate.

    This removes the advantage of numbers that are likely after any question. A single question is not calibrated.
    """
    raw = [
        dict(zip(one.candidates, values, strict=True)) for one, values in zip(asked.questions, log_probs, strict=True)
    ]
    if len(raw) == 1:
        return raw
    of_candidate: dict[int, list[float]] = defaultdict(list)
    for values in raw:
        for candidate, value in values.items():
            of_candidate[candidate].append(value)
    means = {candidate: fmean(values) for candidate, values in of_candidate.items()}
    return [{candidate: value - means[candidate] for candidate, value in values.items()} for values in raw]


def answers_of(asked: QuestionSet, log_probs: Sequence[Sequence[float]]) -> list[Answer]:
    """Return every expected answer, found or not. Raises `RopeError` for NaN."""
    answers = []
    for question, values, fair in zip(asked.questions, log_probs, calibrated(asked, log_probs), strict=True):
        raw = dict(zip(question.candidates, values, strict=True))
        for wanted in question.wanted:
            among = (wanted.answer, *wanted.others)
            found, found_raw = (choose([by[candidate] for candidate in among]) for by in (fair, raw))
            answers.append(Answer(found, found_raw, len(among), wanted.depth, wanted.distance))
    return answers


def choose(log_probs: list[float]) -> bool:
    """Return whether the first log-probability, the answer's, exceeds all others. Raises `RopeError` for NaN.

    >>> choose([-1.0, -2.0]), choose([-1.0, -1.0])
    (True, False)
    """
    if any(value != value for value in log_probs):
        raise RopeError(
            "retrieval: a log-probability is not a number.",
            facts={"log-probabilities": log_probs},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
    return log_probs[0] > max(log_probs[1:])


def score(
    reader: Reader,
    asked: QuestionSet,
    *,
    crop: int | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> list[Answer]:
    """Return the model's answers after one text, or after its last `crop` tokens."""
    asked = asked if crop is None else asked.cropped(crop)
    return answers_of(asked, candidate_log_probs(reader, asked, chunk=chunk, advance=advance))


FORMAT = 5  # of the results and of how texts are made: increase it with a change of either


def measure_retrieval(
    methods: Mapping[str, Reader],
    tokenizer: Tokenizer,
    *,
    lengths: Sequence[int],
    tasks: Sequence[str] = DEFAULT_TASKS,
    samples: int = SAMPLES,
    seed: int = 0,
    text: tuple[str, str] | None = None,
    haystack: str | None = None,
    chat: bool = False,
    trained_length: int | None = None,
    crop: Mapping[str, int] | None = None,
    state: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> RetrievalMeasurement:
    """Measure how often each method's model finds facts in a long input, by task, length and depth.

    **Arguments:**
    - `methods`: the reader of each method, by name.
    - `lengths`: tokens of a text with a question and its answer; frequencies that depend on length use this number.
    - `tasks`: from `TASKS`. `samples`: texts for each task and length. The texts of a `seed` are the same for every
      method and in every run.
    - `text`: (name, contents), as `read_text` returns it; None: Moby-Dick. `haystack`: as for `make_tasks`.
    - `chat`: format the questions with the tokenizer's chat template.
    - `trained_length`: tokens; only stated in the protocol, for figures.
    - `crop`: by method, the number of last tokens to process, including the question. Earlier needles cannot be found.
    - `state`: the folder in which each text's answers are saved as they are computed; None: in memory. With `resume`,
      its results are reused, and several processes may share it; else it starts over.
    - `chunk`: tokens of one forward pass. `progress`: displays each cell with texts due, and its tokens.

    **Raises:** `RopeError` if a task does not fit into the shortest length, if the state belongs to a different run, or
    if an argument is out of range; always before anything is measured.

    **Source:** Mohtashami and Jaggi 2023 (arXiv:2305.16300).

    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.readers.adapters import reader_of
    >>> reader = reader_of(load("tiny"))
    >>> measurement = measure_retrieval({"plain": reader}, reader.tokenizer, lengths=[256], samples=1)
    >>> measurement.accuracy("plain").n, measurement.accuracy("plain").chance
    (4, 0.25)
    """
    name, contents = text or read_text(None)
    protocol = RetrievalProtocol(
        tasks=tuple(tasks), lengths=tuple(lengths), samples=samples, seed=seed, text=name, haystack=haystack, chat=chat,
        trained_length=trained_length,
    )  # fmt: skip
    run = RetrievalRun.prepare(
        protocol, methods, tokenizer, contents, crop=crop or {}, state=state, resume=resume, chunk=chunk
    )
    return run.measure(progress)


@dataclass(frozen=True, kw_only=True)
class RetrievalRun:
    """A retrieval measurement with checked arguments: the jobs that are due, and their work.

    - `models`: for each method, a digest of everything that determines its answers.
    """

    protocol: RetrievalProtocol
    readers: Mapping[str, Reader]
    tokenizer: Tokenizer
    tasks: Mapping[str, HiddenNumbers]
    crop: Mapping[str, int]
    models: Mapping[str, str]
    ledger: Ledger
    chunk: int

    @classmethod
    def prepare(
        cls,
        protocol: RetrievalProtocol,
        readers: Mapping[str, Reader],
        tokenizer: Tokenizer,
        contents: str,
        *,
        crop: Mapping[str, int],
        state: Path | None,
        resume: bool,
        chunk: int = CHUNK,
    ) -> RetrievalRun:
        """Return the run of a protocol on the contents of its text; arguments and errors are `measure_retrieval`'s.

        The ledger's key contains the ingredients of the texts, not their number: a later run may add tasks, lengths,
        samples and methods.
        """
        if not readers:
            raise RopeError("retrieval: `methods` is empty.", facts={"methods": readers}, cure="Pass at least one.")
        need("scipy.stats", extra="doctor")
        tasks = {
            task.name: task
            for task in make_tasks(
                protocol.tasks,
                contents,
                haystack=protocol.haystack,
                frame=chat_frame(tokenizer) if protocol.chat else None,
                shortest=protocol.lengths[0],
            )
        }
        _check_fit(tokenizer, protocol, tasks)
        made = (FORMAT, torch.__version__, protocol.seed, protocol.haystack, tokenizer.bos_id)
        frame = getattr(tokenizer, "chat_template", None) if protocol.chat else None
        ledger = Ledger(state, kind="retrieval", key=fingerprint(made, frame, contents, tokenizer.tokenizer.to_str()))
        _ = ledger.resume() if resume else ledger.begin()
        models = {method: fingerprint(reader.digest(), crop.get(method)) for method, reader in readers.items()}
        return cls(
            protocol=protocol,
            readers=readers,
            tokenizer=tokenizer,
            tasks=tasks,
            crop=crop,
            models=models,
            ledger=ledger,
            chunk=chunk,
        )

    def due(self, methods: Sequence[str] | None = None) -> tuple[Job, ...]:
        """Return every text without an answer, only of `methods` if given. A job's `work` does not count questions."""
        samples = self.protocol.samples
        jobs = (
            Job(
                method=method,
                window=sample,
                key=self.key(method, cell, sample),
                description=f"{method}: {cell.task}, {cell.length:,} tokens, text {sample + 1} of {samples}",
                tokens=cell.length,
                work=Workload.of(length := min(cell.length, self.crop.get(method, cell.length)), chunk=self.chunk,
                                 first=length),
                part=cell,
            )
            for method in (self.readers if methods is None else methods)
            for cell in self.protocol.cells()
            for sample in range(samples)
        )  # fmt: skip
        return due(jobs, self.ledger)

    def key(self, method: str, cell: Cell, sample: int) -> str:
        """Return a text's key in the ledger. It contains the shortest length, which sets the number of candidates."""
        at = f"{cell.length} of {self.protocol.lengths[0]}"
        return f"{method}/{self.models[method]}/{cell.task}/{at}/{sample}"

    def asked_methods(self, plan: Plan, examined: Sequence[str], *, every: bool) -> tuple[str, ...]:
        """Return the methods to ask: all of the run if `every`, else the examined ones."""
        if every:
            return tuple(self.readers)
        return tuple(dict.fromkeys(name if name in self.readers else plan.same_as[name] for name in examined))

    def measure(
        self, progress: Progress | None = None, *, methods: Sequence[str] | None = None
    ) -> RetrievalMeasurement:
        """Measure the jobs that are due, save each text's answers as they are computed, and return all of them.

        - `methods`: the methods to measure; None: all of the run.
        """
        asked = tuple(self.readers) if methods is None else tuple(methods)

        def ask(job: Job, advance: Advance) -> dict[str, Any]:
            text, crop = self.text(job.part, job.window), self.crop.get(job.method)
            answers = score(self.readers[job.method], text, crop=crop, chunk=self.chunk, advance=advance)
            return {"answers": [list(answer) for answer in answers]}

        run_jobs(self.ledger, self.due(asked), ask, progress=progress)
        return self._gathered(asked)

    def text(self, cell: Cell, sample: int) -> QuestionSet:
        """Return one text of a cell with its questions."""
        draw = draws(self.protocol.seed, cell.task, cell.length, sample)
        return self.tasks[cell.task].make(self.tokenizer, cell.length, draw)

    def _gathered(self, methods: Sequence[str]) -> RetrievalMeasurement:
        rows = {
            method: {
                cell: [self.ledger[self.key(method, cell, n)] for n in range(self.protocol.samples)]
                for cell in self.protocol.cells()
            }
            for method in methods
        }
        return RetrievalMeasurement(
            protocol=self.protocol,
            answers={
                method: {
                    cell: tuple(tuple(Answer(*answer) for answer in one["answers"]) for one in results)
                    for cell, results in of_cells.items()
                }
                for method, of_cells in rows.items()
            },
            seconds={
                method: sum(float(one["seconds"]) for results in of_cells.values() for one in results)
                for method, of_cells in rows.items()
            },
        )


def _check_fit(tokenizer: Tokenizer, protocol: RetrievalProtocol, tasks: Mapping[str, HiddenNumbers]) -> None:
    """Make texts of the shortest and the longest lengths, to raise before any work if one does not fit."""
    for name, task in tasks.items():
        shortest, longest = protocol.lengths[0], protocol.lengths[-1]
        task.make(tokenizer, longest, draws(protocol.seed, name, longest, 0))
        if not _fits(tokenizer, task, shortest // 2):
            for sample in range(protocol.samples):  # tight: numbers and names differ in tokens
                task.make(tokenizer, shortest, draws(protocol.seed, name, shortest, sample))


def _fits(tokenizer: Tokenizer, task: HiddenNumbers, length: int) -> bool:
    try:
        task.make(tokenizer, length, draws(0, task.name, length, 0))
    except RopeError:
        return False
    return True


def fitting_tasks(tokenizer: Tokenizer, length: int, *, text: tuple[str, str] | None = None) -> tuple[str, ...]:
    """Return the tasks with texts that fit into `length` tokens with a tenth to spare.

    >>> from ropewalk.checkpoints.load import load
    >>> fitting_tasks(load("tiny").tokenizer, 256)
    ('numbers',)
    """
    made = make_tasks(TASKS, (text or read_text(None))[1])
    return tuple(task.name for task in made if _fits(tokenizer, task, length - length // 10))
