"""The run: texts made, each method's model asked, each text's answers kept as soon as they are there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.ledger import fingerprint
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.readers.workers import complete
from ropewalk.retrieval.chat import chat_frame
from ropewalk.retrieval.choices import DEFAULT_TASKS, SAMPLES, TASKS
from ropewalk.retrieval.outcomes import Outcomes, open_ledger
from ropewalk.retrieval.protocol import DEPTHS, Cell, RetrievalProtocol, draws
from ropewalk.retrieval.result import RetrievalMeasurement
from ropewalk.retrieval.scoring import Answer, score
from ropewalk.retrieval.tasks import Task, make_tasks


@dataclass(frozen=True)
class TextJob:
    """One text of one cell, read and asked by one method's model."""

    method: str
    cell: Cell
    sample: int


def measure_retrieval(
    methods: Mapping[str, Reader],
    tokenizer: Tokenizer,
    *,
    lengths: Sequence[int],
    tasks: Sequence[str] = DEFAULT_TASKS,
    form: str = "many",
    samples: int = SAMPLES,
    depths: Sequence[float] = DEPTHS,
    seed: int = 0,
    text: tuple[str, str] | None = None,
    haystack: str | None = None,
    scoring: str = "choice",
    chat: bool = False,
    trained_length: int | None = None,
    crop: Mapping[str, int] | None = None,
    state: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> RetrievalMeasurement:
    """How often each method's model finds what a long input holds, by task, length and depth.

    **Arguments:**
    - `methods`: the reader of each method's name.
    - `lengths`: tokens of a text with a question and its answer; frequencies that depend on length are those of all.
    - `tasks`: from `TASKS`. `form`: "many" questions after one text, or "one" at the end of a text of its own.
    - `samples`: texts for each task and length; with one question, for each of `depths` as well: the part of the filler
      before the needle, from 0 to 1. The texts of a `seed` are the same for every method and in every run.
    - `text`: (name, contents), as `read_text` gives it; None: Moby Dick. `haystack`: as for `make_tasks`.
    - `scoring`: "choice" (the answer's log-probability against others) or, for one question, "generate" (a greedy
      completion). `chat`: put many questions into the frame of the tokenizer's chat template.
    - `trained_length`: tokens; only named in the protocol, for figures.
    - `crop`: methods that read only the last so many tokens, with the question, as who forgets the beginning does:
      needles further back cannot be found.
    - `state`: a folder that keeps each text's answers as soon as they are there; None: in memory. With `resume` what it
      holds is taken up, and other processes may do the same at the same time; else it begins again.
    - `chunk`: tokens of one forward. `progress`: each cell with texts due, and its tokens.

    **Raises:** `RopeError` where a task does not fit into the shortest length or has too few words for the longest,
    for a state of another run, and for arguments out of range; before anything is measured.

    **Source:** Mohtashami and Jaggi 2023 (arXiv:2305.16300); Hsieh et al. 2024 (arXiv:2404.06654).

    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.readers.adapters import reader_of
    >>> reader = reader_of(load("tiny"))
    >>> measurement = measure_retrieval({"plain": reader}, reader.tokenizer, tasks=["passkey"], lengths=[128],
    ...                                 form="one", depths=[0.5], samples=2)
    >>> measurement.accuracy("plain").n, measurement.accuracy("plain").chance
    (2, 0.125)
    >>> measurement = measure_retrieval({"plain": reader}, reader.tokenizer, lengths=[256], samples=1)
    >>> measurement.accuracy("plain").n, measurement.accuracy("plain").chance
    (4, 0.25)
    """
    name, contents = text or read_text(None)
    protocol = RetrievalProtocol(
        tasks=tuple(tasks), lengths=tuple(lengths), depths=tuple(depths), samples=samples, seed=seed, scoring=scoring,
        text=name, haystack=haystack, form=form, chat=chat, trained_length=trained_length,
    )  # fmt: skip
    run = RetrievalRun.prepare(
        protocol, methods, tokenizer, contents, crop=crop or {}, state=state, resume=resume, chunk=chunk
    )
    return run.measure(progress)


@dataclass(frozen=True, kw_only=True)
class RetrievalRun:
    """A retrieval measurement whose arguments have been checked: what is due, and the work itself."""

    protocol: RetrievalProtocol
    readers: Mapping[str, Reader]
    tokenizer: Tokenizer
    tasks: Mapping[str, Task]
    cells: tuple[Cell, ...]
    crop: Mapping[str, int]
    outcomes: Outcomes
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
        """The run of a protocol on the contents of its text; arguments and errors are `measure_retrieval`'s."""
        if not readers:
            raise RopeError("retrieval: no method is given.", facts={"methods": readers}, cure="Name at least one.")
        tasks, cells = prepare(protocol, tokenizer, contents)
        models = {method: fingerprint(reader.digest(), crop.get(method)) for method, reader in readers.items()}
        return cls(
            protocol=protocol,
            readers=readers,
            tokenizer=tokenizer,
            tasks={task.name: task for task in tasks},
            cells=cells,
            crop=crop,
            outcomes=Outcomes(open_ledger(state, protocol, tokenizer, contents, resume=resume), models),
            chunk=chunk,
        )

    @property
    def due(self) -> tuple[TextJob, ...]:
        """Every text without answers, method by method."""
        return self.due_of(tuple(self.readers))

    def due_of(self, methods: Sequence[str]) -> tuple[TextJob, ...]:
        """Those of some methods alone."""
        return tuple(
            TextJob(method, cell, sample)
            for method in methods
            for cell in self.cells
            for sample in self.outcomes.due(method, cell)
        )

    def measure(
        self, progress: Progress | None = None, *, methods: Sequence[str] | None = None
    ) -> RetrievalMeasurement:
        """Ask what is due, keep each text's answers as soon as they are there, and gather all of them.

        `methods`: those of the run that are asked; None: all.
        """
        asked = tuple(self.readers) if methods is None else tuple(methods)
        shown, due = progress or SilentProgress(), self.due_of(asked)
        texts = Counter((job.method, job.cell) for job in due)
        numbers = {pair: number for number, pair in enumerate(texts, 1)}
        begun: set[tuple[str, Cell]] = set()

        def ask(job: TextJob) -> dict[str, Any]:
            method, cell = pair = job.method, job.cell
            if pair not in begun:
                begun.add(pair)
                depth = "" if cell.depth is None else f", depth {cell.depth:g}"
                count = f"{texts[pair]} text{'s' * (texts[pair] > 1)}"
                what = f"{method}: {cell.task}, {cell.length:,} tokens{depth} ({count})"
                shown.begin(f"[{numbers[pair]}/{len(numbers)}] {what}", texts[pair] * cell.length)
            return self._ask(job, shown.advance)

        complete(self.outcomes.ledger, due, self.key, ask)
        return self._gathered(asked)

    def key(self, job: TextJob) -> str:
        """A text's key in the ledger."""
        return self.outcomes.key(job.method, job.cell, job.sample)

    def _ask(self, job: TextJob, advance: Advance) -> dict[str, Any]:
        method, cell, started = job.method, job.cell, time.perf_counter()
        draw = self.protocol.draws(cell, job.sample)
        answers = score(
            self.readers[method],
            self.tokenizer,
            self.tasks[cell.task].make(self.tokenizer, cell.length, cell.depth or 0.0, draw),
            scoring=self.protocol.scoring,
            crop=self.crop.get(method),
            chunk=self.chunk,
            advance=advance,
        )
        return {"answers": [list(answer) for answer in answers], "seconds": time.perf_counter() - started}

    def _gathered(self, methods: Sequence[str]) -> RetrievalMeasurement:
        rows = {method: {cell: self.outcomes.of_cell(method, cell) for cell in self.cells} for method in methods}
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


def prepare(
    protocol: RetrievalProtocol, tokenizer: Tokenizer, contents: str
) -> tuple[tuple[Task, ...], tuple[Cell, ...]]:
    """The protocol's tasks and cells on a text; raises `RopeError` for all that would stop a run, before any work."""
    need("scipy.stats", extra="cli")
    made = make_tasks(
        protocol.tasks,
        contents,
        form=protocol.form,
        haystack=protocol.haystack,
        frame=chat_frame(tokenizer) if protocol.chat else None,
        shortest=protocol.lengths[0],
    )
    cells = tuple(protocol.cells(made))
    _check_fit(tokenizer, protocol, cells, {task.name: task for task in made})
    return made, cells


def _check_fit(
    tokenizer: Tokenizer, protocol: RetrievalProtocol, cells: Sequence[Cell], tasks: Mapping[str, Task]
) -> None:
    """Make texts of the shortest and the longest lengths, so that what does not fit is refused before any work."""
    for cell in cells:
        task = tasks[cell.task]
        if cell.length == protocol.lengths[-1] and cell.depth in (None, protocol.depths[0]):
            task.make(tokenizer, cell.length, cell.depth or 0.0, protocol.draws(cell, 0))
        if cell.length == protocol.lengths[0] and not _fits(tokenizer, task, cell.length // 2):
            for sample in range(cell.examples):  # tight: numbers and names differ in tokens
                task.make(tokenizer, cell.length, cell.depth or 0.0, protocol.draws(cell, sample))


def _fits(tokenizer: Tokenizer, task: Task, length: int) -> bool:
    try:
        task.make(tokenizer, length, 0.5, draws(0, Cell(task=task.name, length=length, depth=None, examples=1), 0))
    except RopeError:
        return False
    return True


def fitting_tasks(
    tokenizer: Tokenizer, length: int, *, form: str = "many", text: tuple[str, str] | None = None
) -> tuple[str, ...]:
    """The tasks whose texts fit into `length` tokens with a tenth to spare: what can be measured from there on.

    >>> from ropewalk.checkpoints.load import load
    >>> fitting_tasks(load("tiny").tokenizer, 256), fitting_tasks(load("tiny").tokenizer, 256, form="one")
    (('numbers', 'niah_single', 'niah_multikey', 'cwe'), ('numbers', 'passkey', 'niah_single', 'niah_multikey', 'cwe'))
    """
    made = make_tasks(TASKS, (text or read_text(None))[1], form=form)
    return tuple(task.name for task in made if _fits(tokenizer, task, length - length // 10))
