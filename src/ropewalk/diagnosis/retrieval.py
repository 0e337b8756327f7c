"""Retrieval as the doctor measures it: the same methods, each distinct model once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropewalk.diagnosis.estimate import IN_ATTENTION
from ropewalk.diagnosis.plan import Plan
from ropewalk.diagnosis.settings import ALL, DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.pace import Pace, Workload
from ropewalk.readers.reader import Reader
from ropewalk.retrieval.measure import RetrievalRun, fitting_tasks
from ropewalk.retrieval.protocol import Cell, RetrievalProtocol

SHORTEST = 256
ONE_ON_ALL_CORES = 0.8  # speed of one reader on all cores over that of one on each core


def prepare_retrieval(
    reader: Reader, plan: Plan, settings: DoctorSettings, text: tuple[str, str], folder: Path | None
) -> RetrievalRun | None:
    """The retrieval run that the settings ask for, None for none; crop reads the last trained length of a text.

    Raises `RopeError` for what cannot be measured, before anything is.
    """
    if "retrieval" not in settings.measured:
        return None
    tokenizer, trained = reader.tokenizer, plan.protocol.trained_length
    assert tokenizer is not None, "the doctor refuses models without one"
    lengths = lengths_of(settings.retrieval_lengths, trained_length=trained, target=plan.protocol.target)
    protocol = RetrievalProtocol(
        tasks=_tasks(settings.task_names, tokenizer, lengths, text),
        lengths=lengths,
        chat=settings.retrieval_chat,
        samples=settings.retrieval_samples,
        seed=settings.seed,
        text=text[0],
        trained_length=trained,
    )
    return RetrievalRun.prepare(
        protocol,
        {
            name: reader.under(positions)
            for name, positions in plan.positions.items()
            # frequencies that follow the length are another method's at the target alone, and texts are shorter
            if name not in plan.same_as or positions.needs_seq_len
        },
        tokenizer,
        text[1],
        crop={name: trained for name in plan.methods if METHODS[name].crops},
        state=folder,
        resume=settings.resume,
        chunk=settings.chunk,
    )


def asked_methods(run: RetrievalRun, settings: DoctorSettings, plan: Plan, examined: Sequence[str]) -> tuple[str, ...]:
    """The methods of a run that are asked: all that were named, else those whose use is examined."""
    if settings.names_methods:
        return tuple(run.readers)
    return tuple(dict.fromkeys(name if name in run.readers else plan.same_as[name] for name in examined))


def retrieval_seconds(run: RetrievalRun, methods: Sequence[str], pace: Pace, *, workers: int) -> float:
    """About how long the texts that are due of these methods will take: they are read one by one, on all cores.

    `pace` is that of one of so many `workers`. One text of each kind is made, to count the tokens that are asked.
    """
    alone = max(1.0, ONE_ON_ALL_CORES * workers)
    asked = {cell: _tokens_asked(run, cell) for cell in {job.cell for job in run.due(methods)}}
    seconds = 0.0
    for job in run.due(methods):
        length = min(job.cell.length, run.crop.get(job.method, job.cell.length))
        questions = Workload(calls=1, tokens=asked[job.cell], pairs=asked[job.cell] * length, scored=asked[job.cell])
        slower = IN_ATTENTION if METHODS[job.method].in_attention else 1.0
        seconds += slower * pace.seconds(Workload.of(length, chunk=run.chunk, first=length) + questions) / alone
    return seconds


def _tokens_asked(run: RetrievalRun, cell: Cell) -> int:
    """Tokens of all questions and candidates after one text of a cell."""
    return sum(len(one.input_ids) + sum(map(len, one.continuations)) for one in run.text(cell, 0).questions)


def _tasks(
    names: Sequence[str], tokenizer: Tokenizer, lengths: Sequence[int], text: tuple[str, str]
) -> tuple[str, ...]:
    """The tasks of these names; "all" is every one whose texts fit into the shortest length."""
    if tuple(names) != (ALL,):
        return tuple(names)
    fitting = fitting_tasks(tokenizer, min(lengths), text=text)
    if not fitting:
        raise RopeError(
            "doctor: no retrieval task fits into the shortest length.",
            facts={"lengths": list(lengths)},
            cure="Name longer ones with --retrieval-lengths.",
        )
    return fitting


def lengths_of(given: Sequence[int] | None, *, trained_length: int, target: int) -> tuple[int, ...]:
    """The lengths given; else half the trained length, it, and its doubles up to the target.

    >>> lengths_of(None, trained_length=8192, target=30000)
    (4096, 8192, 16384, 30000)
    """
    if given is not None:
        return tuple(sorted(set(given)))
    doubles, length = [], trained_length
    while length < target:
        doubles.append(length)
        length *= 2
    return tuple(sorted({*[half for half in (trained_length // 2,) if half >= SHORTEST], *doubles, target}))
