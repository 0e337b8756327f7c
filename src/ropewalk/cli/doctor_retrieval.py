"""`ropewalk doctor --retrieval`: whether each method still finds what lies far back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.context.doctor import Plan
    from ropewalk.context.methods import Ropes
    from ropewalk.context.retrieval.measure import RetrievalJob
    from ropewalk.context.retrieval.protocol import RetrievalProtocol
    from ropewalk.context.retrieval.result import RetrievalMeasurement
    from ropewalk.models.decoder import Decoder

SHORTEST = 256


def check_tasks(given: str) -> None:
    """Raise `RopeError` for a task that there is not, before a model is loaded."""
    from ropewalk.context.retrieval.tasks import TASKS

    unknown = [word.strip() for word in given.split(",") if word.strip() not in ("", "all", *TASKS)]
    if unknown or not given.strip(", "):
        raise RopeError(
            "retrieval: unknown task.", facts={"task": ", ".join(unknown)}, cure=f"Choose from all, {', '.join(TASKS)}."
        )


def asked_tasks(given: str, decoder: Decoder, lengths: Sequence[int], text: tuple[str, str]) -> tuple[str, ...]:
    """The tasks named with commas; "all" is every one whose examples fit into the shortest length."""
    from ropewalk.context.retrieval.measure import fitting_tasks

    named = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    if named != ("all",):
        return named
    assert decoder.tokenizer is not None, "the doctor refuses models without one"
    fitting = fitting_tasks(decoder.tokenizer, min(lengths), text=text)
    if not fitting:
        raise RopeError(
            "doctor: no retrieval task fits into the shortest length.",
            facts={"lengths": list(lengths)},
            cure="Name longer ones with --retrieval-lengths.",
        )
    return fitting


def asked_lengths(given: str | None, *, trained_length: int, target: int) -> tuple[int, ...]:
    """The lengths named with commas; else half the trained length, it, and its doubles up to the target.

    >>> asked_lengths(None, trained_length=8192, target=30000)
    (4096, 8192, 16384, 30000)
    """
    if given is not None:
        try:
            return tuple(sorted({int(word) for word in given.split(",") if word.strip()}))
        except ValueError as error:
            raise RopeError(
                "doctor: --retrieval-lengths takes whole numbers with commas between.",
                facts={"retrieval-lengths": given},
                cure="For example 4096,8192,16384.",
            ) from error
    doubles, length = [], trained_length
    while length < target:
        doubles.append(length)
        length *= 2
    return tuple(sorted({*[half for half in (trained_length // 2,) if half >= SHORTEST], *doubles, target}))


def asked(
    decoder: Decoder,
    work: Plan,
    *,
    tasks: str,
    lengths: str | None,
    samples: int,
    scoring: str,
    text: tuple[str, str],
) -> RetrievalProtocol:
    """The protocol that the options ask for; raises `RopeError` for what cannot be, before anything is measured."""
    from ropewalk.context.retrieval.measure import prepare
    from ropewalk.context.retrieval.protocol import RetrievalProtocol

    assert decoder.tokenizer is not None, "the doctor refuses models without one"
    trained = work.protocol.trained_length
    chosen = asked_lengths(lengths, trained_length=trained, target=work.protocol.target)
    protocol = RetrievalProtocol(
        tasks=asked_tasks(tasks, decoder, chosen, text),
        lengths=chosen,
        samples=samples,
        seed=work.protocol.seed,
        scoring=scoring,
        text=text[0],
        trained_length=trained,
    )
    prepare(protocol, decoder.tokenizer, text[1])
    return protocol


def measure(
    decoder: Decoder,
    work: Plan,
    protocol: RetrievalProtocol,
    *,
    text: tuple[str, str],
    state: Path | None,
    resume: bool,
    chunk: int,
) -> RetrievalMeasurement:
    """The doctor's methods on retrieval, each distinct model once; crop reads the last trained length of an example."""
    from ropewalk.context.methods import under
    from ropewalk.context.retrieval.measure import measure_retrieval

    models = {
        name: lambda name=name: under(decoder, work.ropes[name], work.extensions[name])
        for name in work.methods
        if name not in work.same_as or _follows_length(work.ropes[name])
    }
    assert decoder.tokenizer is not None, "the doctor refuses models without one"
    with _progress() as (begin, advance):
        return measure_retrieval(
            models,
            decoder.tokenizer,
            lengths=protocol.lengths,
            tasks=protocol.tasks,
            samples=protocol.samples,
            seed=protocol.seed,
            text=text,
            scoring=protocol.scoring,
            trained_length=protocol.trained_length,
            crop={"crop": work.protocol.trained_length},
            state=state,
            resume=resume,
            chunk=chunk,
            begin=begin,
            advance=advance,
        )


def _follows_length(ropes: Ropes) -> bool:
    """Whether its frequencies are another method's at the target alone, and examples are shorter."""
    return any(rope is not None and rope.needs_seq_len for rope in ropes)


def show(console: Console, found: RetrievalMeasurement) -> None:
    """Accuracy by length, over all tasks and for each, and how far each method reaches."""
    from ropewalk.cli.tables import stacked
    from ropewalk.context.retrieval.summary import accuracy_rows, sentences

    several = len(found.protocol.tasks) > 1
    for task in (None, *found.protocol.tasks) if several else (None,):
        heads, rows = accuracy_rows(found, task)
        title = f"Retrieval: {task or (found.protocol.tasks[0] if not several else 'mean of all tasks')}, part found"
        columns = [(head, "bold") for head in heads[1:]]
        for table in stacked(console, title, columns, {row[0]: row[1:] for row in rows}):
            console.print(table)
    for line in sentences(found):
        console.print(line, markup=False, highlight=False)


@contextmanager
def _progress() -> Iterator[tuple[Any, Any]]:
    """A bar of tokens on a terminal, a line for each cell elsewhere; on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("retrieval", total=None)

        def begin(job: RetrievalJob) -> None:
            where = "" if job.cell.depth is None else f", depth {job.cell.depth:g}"
            said = f"[{job.number}/{job.jobs}] {job.method}: {job.cell.task}, {job.cell.length:,} tokens{where}"
            bar.update(task, description=said, total=job.total_tokens)
            if not console.is_terminal:
                sys.stderr.write(f"{said} ({job.examples} examples)\n")

        yield begin, lambda tokens: bar.advance(task, tokens)
