"""The run: examples made, each method's model asked, each outcome kept as soon as it is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ropewalk.context.measure import CHUNK
from ropewalk.context.retrieval.protocol import DEPTHS, SAMPLES, Cell, RetrievalProtocol, draws
from ropewalk.context.retrieval.result import RetrievalMeasurement
from ropewalk.context.retrieval.scoring import is_found
from ropewalk.context.retrieval.state import RetrievalState, examples_fingerprint
from ropewalk.context.retrieval.tasks import TASKS, Task, make_tasks
from ropewalk.context.sources import read_text
from ropewalk.context.state import model_digest
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.extras import need
from ropewalk.models.tokenizer import TextTokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalJob:
    """One cell under one method: `examples` are due, of `tokens` tokens in all; job `number` of `jobs`, from 1.

    `total_tokens` are those of all jobs of the run that were due when it began.
    """

    method: str
    cell: Cell
    examples: int
    number: int
    jobs: int
    total_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens that go through the model, about."""
        return self.examples * self.cell.length


def measure_retrieval(
    methods: Mapping[str, Callable[[], Decoder]],
    tokenizer: TextTokenizer,
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
    begin: Callable[[RetrievalJob], None] | None = None,
    advance: Callable[[int], None] | None = None,
) -> RetrievalMeasurement:
    """How often each method's model finds what a long input holds, by task, length and depth.

    **Arguments:**
    - `methods`: for each name what gives its model; called when its turn comes, and the model is let go after it.
    - `lengths`: tokens of an example with its answer; frequencies that depend on length are those of the example.
    - `tasks`: from `TASKS`. `depths`: parts of the filler before the needle, from 0 to 1. `samples`: examples for each
      task, length and depth. The examples of a `seed` are the same for every method and in every run.
    - `text`: (name, contents), as `read_text` gives it; None: Moby Dick. `haystack`: as for `make_tasks`.
    - `scoring`: "choice" (the answer's log-probability against distractors) or "generate" (a greedy completion).
    - `trained_length`: tokens; only named in the protocol, for figures.
    - `crop`: methods that read only the last so many tokens of an example, as who forgets the beginning does.
    - `state`: a file that keeps each outcome; with `resume` what it holds is taken up, else it is begun anew.
    - `chunk`: tokens of one forward. `begin` is called before each cell with examples due, `advance` with tokens as
      they go through. A KeyboardInterrupt passes through: what was done by then is in the state.

    **Raises:** `RopeError` where a task does not fit into the shortest length or has too few words for the longest,
    for a state of another run, and for arguments out of range; before anything is measured.

    **Source:** Mohtashami and Jaggi 2023 (arXiv:2305.16300); Hsieh et al. 2024 (arXiv:2404.06654).

    >>> from ropewalk.models.checkpoint import load
    >>> model = load("tiny")
    >>> found = measure_retrieval({"plain": lambda: model}, model.tokenizer, tasks=["passkey"], lengths=[128],
    ...                           depths=[0.5], samples=2)
    >>> found.accuracy("plain").n, found.accuracy("plain").chance
    (2, 0.125)
    """
    name, contents = text or read_text(None)
    protocol = RetrievalProtocol(
        tasks=tuple(tasks), lengths=tuple(lengths), depths=tuple(depths), samples=samples, seed=seed, scoring=scoring,
        text=name, haystack=haystack, trained_length=trained_length,
    )  # fmt: skip
    if not methods:
        raise RopeError("retrieval: no method is given.", facts={"methods": methods}, cure="Name at least one.")
    made, cells = prepare(protocol, tokenizer, contents)
    by_name = {task.name: task for task in made}
    kept = RetrievalState(state, examples_fingerprint(tokenizer, contents, protocol))
    if resume:
        kept.resume()
    else:
        kept.begin()
    due = [
        (method, cell, cell.examples - len(kept.found(method, cell)))
        for method in methods
        for cell in cells
        if len(kept.found(method, cell)) < cell.examples
    ]
    total = sum(examples * cell.length for _, cell, examples in due)
    numbers = {(method, cell): index for index, (method, cell, _) in enumerate(due, 1)}
    for method, make in methods.items():
        model = make()
        read = "" if crop is None or method not in crop else f" cropped to {crop[method]}"
        kept.enter(method, model_digest(model) + read)
        for cell in (cell for cell in cells if (method, cell) in numbers):
            done = len(kept.found(method, cell))
            if begin is not None:
                begin(
                    RetrievalJob(
                        method=method, cell=cell, examples=cell.examples - done, number=numbers[method, cell],
                        jobs=len(due), total_tokens=total,
                    )
                )  # fmt: skip
            for sample in range(done, cell.examples):
                example = by_name[cell.task].make(
                    tokenizer, cell.length, cell.depth or 0.0, protocol.draws(cell, sample)
                )
                if crop is not None and method in crop:
                    example = example.cropped(crop[method])
                found = is_found(model, tokenizer, example, scoring=scoring, chunk=chunk, advance=advance)
                kept.add(method, cell, found, example.depth)
    return RetrievalMeasurement(
        protocol=protocol,
        outcomes={method: {cell: tuple(kept.found(method, cell)) for cell in cells} for method in methods},
        choices={task.name: task.choices for task in made},
        depths={method: {cell: tuple(kept.real_depths(method, cell)) for cell in cells} for method in methods},
    )


def prepare(
    protocol: RetrievalProtocol, tokenizer: TextTokenizer, contents: str
) -> tuple[tuple[Task, ...], tuple[Cell, ...]]:
    """The protocol's tasks and cells on a text; raises `RopeError` for all that would stop a run, before any work."""
    need("scipy.stats", extra="cli")
    made = make_tasks(protocol.tasks, contents, haystack=protocol.haystack)
    cells = tuple(protocol.cells(made))
    _check_fit(tokenizer, protocol, cells, {task.name: task for task in made})
    return made, cells


def _check_fit(
    tokenizer: TextTokenizer, protocol: RetrievalProtocol, cells: Sequence[Cell], tasks: Mapping[str, Task]
) -> None:
    """Make examples of the shortest and the longest inputs, so that what does not fit is refused before any work."""
    for cell in cells:
        task = tasks[cell.task]
        if cell.length == protocol.lengths[-1] and cell.depth in (None, protocol.depths[0]):
            task.make(tokenizer, cell.length, cell.depth or 0.0, protocol.draws(cell, 0))
        if cell.length == protocol.lengths[0] and not _fits(tokenizer, task, cell.length // 2):
            for sample in range(cell.examples):  # tight: numbers and names differ in tokens
                task.make(tokenizer, cell.length, cell.depth or 0.0, protocol.draws(cell, sample))


def _fits(tokenizer: TextTokenizer, task: Task, length: int) -> bool:
    try:
        task.make(tokenizer, length, 0.5, draws(0, Cell(task=task.name, length=length, depth=None, examples=1), 0))
    except RopeError:
        return False
    return True


def fitting_tasks(tokenizer: TextTokenizer, length: int, *, text: tuple[str, str] | None = None) -> tuple[str, ...]:
    """The tasks whose examples fit into `length` tokens with a tenth to spare: what can be measured from there on.

    >>> from ropewalk.models.checkpoint import load
    >>> fitting_tasks(load("tiny").tokenizer, 256)
    ('passkey', 'niah_single', 'niah_multikey', 'cwe')
    """
    made = make_tasks(TASKS, (text or read_text(None))[1])
    return tuple(task.name for task in made if _fits(tokenizer, task, length - length // 10))
