"""From what was asked to a run: the model loaded, everything checked, the lengths, windows and methods chosen."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ropewalk.audit.sources import Source, read_source, source_of
from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis.conclude import doctor_command
from ropewalk.diagnosis.doctor_run import DoctorRun
from ropewalk.diagnosis.minutes import fit_minutes
from ropewalk.diagnosis.outlook import Outlook
from ropewalk.diagnosis.plan import KIND, fingerprint, plan, take_windows, trained_length_of
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.reading import ScalingReading, settle_reading
from ropewalk.diagnosis.retrieval import prepare_retrieval
from ropewalk.diagnosis.settings import DoctorSettings, TextSource, refuse_ignored
from ropewalk.diagnosis.token_frequencies import frequency_losses
from ropewalk.diagnosis.use import prepare_use
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.methods import METHODS, unsettled
from ropewalk.models.precision import chosen_dtype
from ropewalk.models.tokens import Tokenizer
from ropewalk.progress import Progress
from ropewalk.progress.shown import shown
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.pace import Clock
from ropewalk.readers.reader import Reader


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
            cure="Put its tokenizer.json beside the weights; with a live model pass tokenizer=...",
        )
    texts = texts_of(settings.text)
    texts = [(name, contents[max(settings.start_char, 0) :]) for name, contents in texts]
    tokens = [tokenizer.encode(contents) for _, contents in texts]
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
        use = prepare_use(reader, protocol, settings, texts, tokens, None)
        retrieval = prepare_retrieval(reader, work, settings, parts, None)
        outlook = Outlook(reader, work, settings, use=use, retrieval=retrieval)
        fitted, trial = fit_minutes(outlook, windows[0], folder, key=key, began=began, clock=clock)
        protocol, left_out = dataclasses.replace(protocol, windows=fitted.windows), fitted.left_out
        windows, work = take_windows(tokens, protocol), plan(reader, protocol, fitted.methods)
        key = fingerprint(reader, windows, protocol)
    chosen = {} if settings.minutes is None else {"methods": [name for name in work.methods if name != "plain"]}
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


def with_tokenizer(model: object, tokenizer: Any) -> object:
    """A live model and its tokenizer; raises `RopeError` for a path, which brings its own."""
    if isinstance(model, str | Path | tuple):
        raise RopeError(
            "doctor: `tokenizer` belongs to a live model; a path or a pair has its own.",
            facts={"model": model if isinstance(model, str | Path) else type(model).__name__},
            cure="Leave it out, or pass the model itself.",
        )
    return model, tokenizer


def _open(model: object, settings: DoctorSettings) -> tuple[Source, Reader]:
    """The model's config, and its reader on its device."""
    if not isinstance(model, str | Path):
        given = [name for name in ("dtype", "device", "device_map", "tp_plan") if settings.changes(name)]
        if given:
            raise RopeError(
                "doctor: a model that is passed as an object has its dtype and its device already.",
                facts={name: getattr(settings, name) for name in given},
                cure="Move it before: model.to(...).",
            )
        reader = reader_of(model)
        return source_of(reader), _sharded(reader, settings)
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
    where = {"device_map": settings.device_map, "tp_plan": settings.tp_plan}
    reader = open_reader(model, name=source.name, dtype=dtype, device=device, **where)
    return source, _sharded(reader, settings)


def _sharded(reader: Reader, settings: DoctorSettings) -> Reader:
    """The reader, its windows over all processes where that was asked for."""
    if not settings.shard_window:
        return reader
    from ropewalk.readers.sharded import ShardedReader

    return ShardedReader.of(reader)


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
