"""The run: examples made, each method's model asked, each outcome kept as soon as it is there."""

from __future__ import annotations

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
from ropewalk.retrieval.outcomes import Outcomes, open_ledger
from ropewalk.retrieval.protocol import DEPTHS, SAMPLES, Cell, RetrievalProtocol, draws
from ropewalk.retrieval.result import RetrievalMeasurement
from ropewalk.retrieval.scoring import is_correct
from ropewalk.retrieval.tasks import TASKS, Task, make_tasks


@dataclass(frozen=True)
class Question:
    """One example of one cell, asked of one method's model."""

    method: str
    cell: Cell
    sample: int


def measure_retrieval(
    methods: Mapping[str, Reader],
    tokenizer: Tokenizer,
    *,
    lengths: Sequence[int],
    tasks: Sequence[str] = TASKS,
    depths: Sequence[float] = DEPTHS,
    samples: int = SAMPLES,
    seed: int = 0,
    text: tuple[str, str] | None = None,
    haystack: str | None = None,
    scoring: str = "choice",
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
    - `lengths`: tokens of an example with its answer; frequencies that depend on length are those of the example.
    - `tasks`: from `TASKS`. `depths`: parts of the filler before the needle, from 0 to 1. `samples`: examples for each
      task, length and depth. The examples of a `seed` are the same for every method and in every run.
    - `text`: (name, contents), as `read_text` gives it; None: Moby Dick. `haystack`: as for `make_tasks`.
    - `scoring`: "choice" (the answer's log-probability against distractors) or "generate" (a greedy completion).
    - `trained_length`: tokens; only named in the protocol, for figures.
    - `crop`: methods that read only the last so many tokens of an example, as who forgets the beginning does.
    - `state`: a folder that keeps each outcome as soon as it is there; None: in memory. With `resume` what it holds is
      taken up, and other processes may do the same at the same time; else it begins again.
    - `chunk`: tokens of one forward. `progress`: each cell with examples due, and its tokens.

    **Raises:** `RopeError` where a task does not fit into the shortest length or has too few words for the longest,
    for a state of another run, and for arguments out of range; before anything is measured.

    **Source:** Mohtashami and Jaggi 2023 (arXiv:2305.16300); Hsieh et al. 2024 (arXiv:2404.06654).

    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.readers.adapters import reader_of
    >>> reader = reader_of(load("tiny"))
    >>> measurement = measure_retrieval({"plain": reader}, reader.tokenizer, tasks=["passkey"], lengths=[128],
    ...                                 depths=[0.5], samples=2)
    >>> measurement.accuracy("plain").n, measurement.accuracy("plain").chance
    (2, 0.125)
    """
    name, contents = text or read_text(None)
    protocol = RetrievalProtocol(
        tasks=tuple(tasks), lengths=tuple(lengths), depths=tuple(depths), samples=samples, seed=seed, scoring=scoring,
        text=name, haystack=haystack, trained_length=trained_length,
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
    def due(self) -> tuple[Question, ...]:
        """Every example without an outcome, method by method."""
        return tuple(
            Question(method, cell, sample)
            for method in self.readers
            for cell in self.cells
            for sample in self.outcomes.due(method, cell)
        )

    def measure(self, progress: Progress | None = None) -> RetrievalMeasurement:
        """Ask what is due, keep each outcome as soon as it is there, and gather all of them."""
        shown, due = progress or SilentProgress(), self.due
        examples = Counter((question.method, question.cell) for question in due)
        numbers = {pair: number for number, pair in enumerate(examples, 1)}
        begun: set[tuple[str, Cell]] = set()

        def ask(question: Question) -> dict[str, Any]:
            method, cell = pair = question.method, question.cell
            if pair not in begun:
                begun.add(pair)
                depth = "" if cell.depth is None else f", depth {cell.depth:g}"
                what = f"{method}: {cell.task}, {cell.length:,} tokens{depth} ({examples[pair]} examples)"
                shown.begin(f"[{numbers[pair]}/{len(numbers)}] {what}", examples[pair] * cell.length)
            return self._ask(question, shown.advance)

        complete(self.outcomes.ledger, due, self.key, ask)
        return self._gathered()

    def key(self, question: Question) -> str:
        """A question's key in the ledger."""
        return self.outcomes.key(question.method, question.cell, question.sample)

    def _ask(self, question: Question, advance: Advance) -> dict[str, Any]:
        method, cell = question.method, question.cell
        draw = self.protocol.draws(cell, question.sample)
        example = self.tasks[cell.task].make(self.tokenizer, cell.length, cell.depth or 0.0, draw)
        if method in self.crop:
            example = example.cropped(self.crop[method])
        correct = is_correct(
            self.readers[method],
            self.tokenizer,
            example,
            scoring=self.protocol.scoring,
            chunk=self.chunk,
            advance=advance,
        )
        return {"correct": correct, "depth": example.depth}

    def _gathered(self) -> RetrievalMeasurement:
        rows = {method: {cell: self.outcomes.of_cell(method, cell) for cell in self.cells} for method in self.readers}
        return RetrievalMeasurement(
            protocol=self.protocol,
            outcomes={
                method: {cell: tuple(bool(one["correct"]) for one in results) for cell, results in of_cells.items()}
                for method, of_cells in rows.items()
            },
            choices={task.name: task.choices for task in self.tasks.values()},
            depths={
                method: {
                    cell: tuple(float(one["depth"]) for one in results if one["depth"] is not None)
                    for cell, results in of_cells.items()
                }
                for method, of_cells in rows.items()
            },
        )


def prepare(
    protocol: RetrievalProtocol, tokenizer: Tokenizer, contents: str
) -> tuple[tuple[Task, ...], tuple[Cell, ...]]:
    """The protocol's tasks and cells on a text; raises `RopeError` for all that would stop a run, before any work."""
    need("scipy.stats", extra="cli")
    made = make_tasks(protocol.tasks, contents, haystack=protocol.haystack)
    cells = tuple(protocol.cells(made))
    _check_fit(tokenizer, protocol, cells, {task.name: task for task in made})
    return made, cells


def _check_fit(
    tokenizer: Tokenizer, protocol: RetrievalProtocol, cells: Sequence[Cell], tasks: Mapping[str, Task]
) -> None:
    """Make examples of the shortest and the longest inputs, so that what does not fit is refused before any work."""
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


def fitting_tasks(tokenizer: Tokenizer, length: int, *, text: tuple[str, str] | None = None) -> tuple[str, ...]:
    """The tasks whose examples fit into `length` tokens with a tenth to spare: what can be measured from there on.

    >>> from ropewalk.checkpoints.load import load
    >>> fitting_tasks(load("tiny").tokenizer, 256)
    ('passkey', 'niah_single', 'niah_multikey', 'cwe')
    """
    made = make_tasks(TASKS, (text or read_text(None))[1])
    return tuple(task.name for task in made if _fits(tokenizer, task, length - length // 10))
