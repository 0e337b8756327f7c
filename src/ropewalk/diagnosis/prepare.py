"""Prepare a run: load the model, check the settings, and choose lengths, windows and methods."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ropewalk.audit.sources import Source, read_source, source_of
from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis.run import DoctorRun, doctor_command
from ropewalk.diagnosis.settings import ALL, DoctorSettings, TextSource, refuse_ignored
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.measure.answers import RetrievalProtocol
from ropewalk.measure.copy_test import UseRun
from ropewalk.measure.copy_windows import UseProtocol, UseText
from ropewalk.measure.estimate import Clock, Outlook, fit_minutes
from ropewalk.measure.losses import frequency_losses
from ropewalk.measure.plan import KIND, LossProtocol, Plan, fingerprint, plan, take_windows, trained_length_of
from ropewalk.measure.retrieval import RetrievalRun, fitting_tasks
from ropewalk.measure.scaling import ScalingReading, settle_reading
from ropewalk.methods import METHODS, unsettled
from ropewalk.models.precision import chosen_dtype
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress, shown
from ropewalk.readers.adapters import fast_copy, open_reader, reader_of
from ropewalk.readers.reader import Reader

SHORTEST = 256  # tokens: of the shortest text of retrieval that is chosen here


def prepare(
    model: object,
    settings: DoctorSettings,
    progress: Progress | bool | None = None,
    *,
    clock: Clock = time.perf_counter,
) -> DoctorRun:
    """Load the model and check all settings, before any work; arguments as for `doctor`.

    If it is not known whether the model was trained with the scaling in its config, this is measured here, because all
    lengths follow from it.
    """
    began = clock()
    source, reader = _open(model, settings)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "doctor: the model has no tokenizer, so a text cannot be measured.",
            facts={"model": source.name},
            cure="Put its tokenizer.json next to the weights; with a live model pass tokenizer=...",
        )
    texts = texts_of(settings.text)
    texts = [(name, contents[max(settings.protocol.start_char, 0) :]) for name, contents in texts]
    tokens = [tokenizer.encode(contents) for _, contents in texts]
    reader, reading = _settle(reader, tokens, settings, progress)
    source = source.known_from(reader)
    protocol = LossProtocol.choose(
        trained_length=trained_length_of(reader, settings.trained_length),
        text=[name for name, _ in texts],
        target=settings.target,
        block=settings.protocol.block,
        windows=settings.protocol.windows,
        stride=settings.protocol.stride,
        start_char=settings.protocol.start_char,
        seed=settings.protocol.seed,
        unscaled_tokens=settings.protocol.unscaled_tokens,
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
        refuse_ignored([name] if name in settings.protocol.changed else [], present, owner, cure)
    parts = " and ".join(name for name, _ in texts), "\n".join(contents for _, contents in texts)
    key = fingerprint(reader, windows, protocol)
    trial, left_out = None, tuple[str, ...]()
    folder = state_folder(settings.state, key if settings.minutes is None else hash_of(key, settings.minutes))
    if settings.minutes is not None:
        use = prepare_use(reader, protocol, settings, texts, tokens, None)
        retrieval = prepare_retrieval(reader, work, settings, parts, None)
        outlook = Outlook(
            reader=reader,
            plan=work,
            chunk=settings.protocol.chunk,
            most_workers=settings.protocol.workers,
            use=use,
            retrieval=retrieval,
            every=settings.names_methods,
        )
        fitted, trial = fit_minutes(
            outlook,
            windows[0],
            folder,
            minutes=settings.minutes,
            resume=settings.resume,
            key=key,
            began=began,
            clock=clock,
        )
        protocol, left_out = dataclasses.replace(protocol, windows=fitted.windows), fitted.left_out
        windows, work = take_windows(tokens, protocol), plan(reader, protocol, fitted.methods)
        key = fingerprint(reader, windows, protocol)
    chosen = None if settings.minutes is None else [name for name in work.methods if name != "plain"]
    use = prepare_use(reader, protocol, settings, texts, tokens, folder / "use")
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
        available=min(map(len, tokens)) // protocol.target,
        command=lambda count: doctor_command(model, settings, windows=count, methods=chosen),
    )


def _with_crop(methods: Sequence[str], protocol: LossProtocol) -> Sequence[str]:
    """Return the named methods, and crop, which a verdict needs if the target exceeds the trained length."""
    crop = next(name for name, method in METHODS.items() if method.crops)
    extends = protocol.target > protocol.trained_length > 1
    return [*methods, crop] if methods and extends and crop not in methods else methods


def _vocabulary(tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> int:
    """Return the number of token ids, including those of added tokens."""
    return max(tokenizer.vocab_size, *(max(text) + 1 for text in texts if text), 1)


def _settle(
    reader: Reader, tokens: Sequence[Sequence[int]], settings: DoctorSettings, progress: Progress | bool | None
) -> tuple[Reader, ScalingReading | None]:
    """Return the reader with its scaling settled: measure whether the model was trained with it if that is unknown."""
    if unsettled(reader.positions) is None:
        return reader, None
    folder = None if settings.state is None else state_folder(settings.state, "") / "reading"
    with shown("doctor", progress) as display:
        return settle_reading(
            reader,
            tokens,
            trained_length=settings.trained_length,
            seed=settings.protocol.seed,
            chunk=settings.protocol.chunk,
            folder=folder,
            progress=display,
        )


def with_tokenizer(model: object, tokenizer: Any) -> object:
    """Return a live model and its tokenizer; raise `RopeError` for a path, which has its own."""
    if isinstance(model, str | Path | tuple):
        raise RopeError(
            "doctor: `tokenizer` belongs to a live model; a path or a pair has its own.",
            facts={"model": model if isinstance(model, str | Path) else type(model).__name__},
            cure="Leave it out, or pass the model itself.",
        )
    return model, tokenizer


def _open(model: object, settings: DoctorSettings) -> tuple[Source, Reader]:
    """Return the model's config, and its reader on its device."""
    if not isinstance(model, str | Path):
        given = {name: getattr(settings, name) for name in ("dtype", "device") if settings.changes(name)}
        placed = [name for name in ("device_map", "tp_plan") if name in settings.protocol.changed]
        given |= {name: getattr(settings.protocol, name) for name in placed}
        if given:
            raise RopeError(
                "doctor: a model that is passed as an object has its dtype and its device already.",
                facts=given,
                cure="Move it before: model.to(...).",
            )
        model, note = fast_copy(model)
        reader = reader_of(model)
        return dataclasses.replace(source_of(reader), dtype_note=note), _sharded(reader, settings)
    source = read_source(model)
    try:
        device = torch.device(settings.device)
        torch.zeros(1, device=device).item()  # also refuses "meta", which has no numbers
    except (RuntimeError, AssertionError) as error:
        raise RopeError(
            "doctor: this device cannot be used.",
            facts={"device": settings.device, "error": str(error)},
            cure="Try --device cpu.",
        ) from error
    dtype, _ = chosen_dtype(settings.dtype, str(device))
    where = {"device_map": settings.protocol.device_map, "tp_plan": settings.protocol.tp_plan}
    reader = open_reader(model, name=source.name, dtype=dtype, device=device, **where)
    return source, _sharded(reader, settings)


def _sharded(reader: Reader, settings: DoctorSettings) -> Reader:
    """Return the reader; with shard_window, the one that splits windows over all processes."""
    if not settings.protocol.shard_window:
        return reader
    from ropewalk.readers.sharded import ShardedReader

    return ShardedReader.of(reader)


def texts_of(text: TextSource) -> list[tuple[str, str]]:
    """Return the name and the contents of each text: a file, several, or a list of such pairs; None is Moby Dick.

    >>> texts_of([("a", "words")])
    [('a', 'words')]
    """
    if text is None or isinstance(text, str | Path):
        return [read_text(None if text is None else Path(text))]
    pairs: list[Any] = list(text) or [None]
    return [one if isinstance(one, tuple) else read_text(None if one is None else Path(one)) for one in pairs]


def state_folder(state: str | Path | None, key: str) -> Path:
    """Return the folder of a run's ledgers. Raises `RopeError` if it is a file."""
    folder = cache_folder("doctor", key) if state is None else Path(state)
    if folder.exists() and not folder.is_dir():
        raise RopeError(
            "doctor: the state is a folder, but a file has this name.",
            facts={"state": str(folder)},
            cure="Name a new folder: --state DIR.",
        )
    return folder


def prepare_use(
    reader: Reader,
    protocol: LossProtocol,
    settings: DoctorSettings,
    texts: Sequence[tuple[str, str]],
    tokens: Sequence[Sequence[int]],
    folder: Path | None,
) -> UseRun | None:
    """Return the measurement of use on the protocol's windows; None if the settings leave it out.

    - `texts`, `tokens`: each text's name and contents, and their tokens. `folder`: of its results; None: in memory.

    Raises `RopeError` for what cannot be measured, before anything is.
    """
    if "use" not in settings.measured:
        return None
    parts = [
        UseText(name, contents, ids, protocol.starts(len(ids), number))
        for number, ((name, contents), ids) in enumerate(zip(texts, tokens, strict=True))
    ]
    of_use = UseProtocol.choose(
        trained_length=protocol.trained_length,
        target=protocol.target,
        texts=protocol.texts,
        windows=protocol.windows,
        seed=protocol.seed,
    )
    return UseRun.prepare(of_use, reader, parts, state=folder, resume=settings.resume, chunk=settings.protocol.chunk)


def prepare_retrieval(
    reader: Reader, plan: Plan, settings: DoctorSettings, text: tuple[str, str], folder: Path | None
) -> RetrievalRun | None:
    """Return the retrieval run, or None if the settings leave it out; crop processes the last trained length of a text.

    Raises `RopeError` for what cannot be measured, before anything is.
    """
    if "retrieval" not in settings.measured:
        return None
    tokenizer, trained = reader.tokenizer, plan.protocol.trained_length
    assert tokenizer is not None, "the doctor refuses models without one"
    lengths = lengths_of(settings.protocol.retrieval_lengths, trained_length=trained, target=plan.protocol.target)
    protocol = RetrievalProtocol(
        tasks=_tasks(settings.task_names, tokenizer, lengths, text),
        lengths=lengths,
        chat=settings.protocol.retrieval_chat,
        samples=settings.protocol.retrieval_samples,
        seed=settings.protocol.seed,
        text=text[0],
        trained_length=trained,
    )
    return RetrievalRun.prepare(
        protocol,
        {
            name: reader.under(positions)
            for name, positions in plan.positions.items()
            # frequencies that follow the length equal those of a different method only at the target; texts are shorter
            if name not in plan.same_as or positions.needs_seq_len
        },
        tokenizer,
        text[1],
        crop={name: trained for name in plan.methods if METHODS[name].crops},
        state=folder,
        resume=settings.resume,
        chunk=settings.protocol.chunk,
    )


def _tasks(
    names: Sequence[str], tokenizer: Tokenizer, lengths: Sequence[int], text: tuple[str, str]
) -> tuple[str, ...]:
    """Return the tasks of these names; "all" stands for those with texts that fit into the shortest length."""
    if tuple(names) != (ALL,):
        return tuple(names)
    fitting = fitting_tasks(tokenizer, min(lengths), text=text)
    if not fitting:
        raise RopeError(
            "doctor: no retrieval task fits into the shortest length.",
            facts={"lengths": list(lengths)},
            cure="Put longer ones into `retrieval_lengths` of the protocol.",
        )
    return fitting


def lengths_of(given: Sequence[int] | None, *, trained_length: int, target: int) -> tuple[int, ...]:
    """Return the given lengths; else half the trained length, that length, and its doubles up to the target.

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
