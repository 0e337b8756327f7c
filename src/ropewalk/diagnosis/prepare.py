"""Prepare a run: load the model, check the settings, and choose texts, lengths, windows, methods and spans."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import as_path
from ropewalk.audit.sources import audits_of, findings_of
from ropewalk.builtin.texts import LEAST_BYTES, default_texts, read_text, read_texts
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.diagnosis.document import block_under
from ropewalk.diagnosis.run import DoctorRun, doctor_command
from ropewalk.diagnosis.settings import CPU_MINUTES, DoctorSettings, TextSource, refuse_ignored
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.measure.copies import SpanDesign, WindowSpans
from ropewalk.measure.estimate import Clock, Outlook, duration
from ropewalk.measure.losses import frequency_losses
from ropewalk.measure.plan import (
    KIND,
    MOST_WINDOWS,
    LossProtocol,
    Plan,
    fingerprint,
    most_windows,
    plan,
    required_trained_length,
    take_windows,
)
from ropewalk.measure.scaling import ScalingReading, settle_reading
from ropewalk.methods import METHODS, Reach, default_methods, unsettled
from ropewalk.models.precision import chosen_dtype
from ropewalk.models.prompts import Tokenizer
from ropewalk.processes import current, from_first
from ropewalk.progress import Progress, shown
from ropewalk.readers.adapters import fast_copy, open_reader, reader_of
from ropewalk.readers.reader import Reader
from ropewalk.serving.engines import ENGINES, why_not
from ropewalk.serving.served import Served

BUILT_IN = "tiny"
DECIDING = ("yarn", "dca")  # the methods that decide about the built-in model within seconds
PYTHON_ONLY = "dca"  # the method in attention that is measured beside those of a config
TIMES = (3.0, 2.0, 1.5, 1.25)  # of the trained length: shorter targets that are tried when the minutes are few


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of a run: the name, contents and tokens of each. `chosen`: whether the doctor chose them."""

    names: tuple[str, ...]
    contents: tuple[str, ...]
    tokens: tuple[list[int], ...]
    chosen: bool

    @classmethod
    def encode(cls, texts: Sequence[tuple[str, str]], tokenizer: Tokenizer, start_char: int, chosen: bool) -> Texts:
        """Tokenise texts, starting at a character."""
        cut = [(name, contents[max(start_char, 0) :]) for name, contents in texts]
        names, contents = tuple(name for name, _ in cut), tuple(contents for _, contents in cut)
        return cls(names, contents, tuple(tokenizer.encode(one) for one in contents), chosen)

    def long_enough(self, target: int) -> Texts:
        """Return the texts long enough for a window; all of them if none is."""
        keep = [number for number, tokens in enumerate(self.tokens) if len(tokens) >= target]
        if not keep:
            return self
        return Texts(
            tuple(self.names[number] for number in keep),
            tuple(self.contents[number] for number in keep),
            tuple(self.tokens[number] for number in keep),
            self.chosen,
        )

    @property
    def longest(self) -> int:
        """Return the tokens of the longest text."""
        return max(map(len, self.tokens))


def prepare(
    model: object,
    settings: DoctorSettings,
    progress: Progress | bool | None = None,
    *,
    clock: Clock = time.perf_counter,
    kept: Sequence[str] = (),
) -> DoctorRun:
    """Load the model and check all settings, before any work; arguments as for `doctor`.

    If it is unknown whether the model was trained with the scaling in its config, this is measured here, because all
    lengths depend on it. `kept`: words of the command line, such as --json FILE, to repeat in the next command.
    """
    began = clock()
    source, reader = _open(model, settings)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "doctor: the model has no tokenizer, so it cannot be measured on a text.",
            facts={"model": source.name},
            cure="Put its tokenizer.json next to the weights, or pass tokenizer=... with a live model.",
        )
    texts = _texts(model, settings, tokenizer, reader.trained_length)
    reader, reading = _settle(reader, list(texts.tokens), settings, progress)
    source = source.known_from(reader.positions)
    trained = required_trained_length(reader.positions, settings.trained_length)
    if texts.chosen and texts.longest < (settings.target or 4 * trained):
        texts = Texts.encode([read_text(None)], tokenizer, settings.protocol.start_char, True)
    engine = settings.engine or ("python" if model == BUILT_IN else None)
    minutes = settings.minutes
    if minutes is None and reader.device.type == "cpu" and not current().several:
        minutes = CPU_MINUTES
    if minutes == math.inf:
        minutes = None
    notes = [] if source.dtype_note is None else [source.dtype_note]
    target, trial = settings.target, None
    longest, whole, needed = 0, 0.0, 0.0
    for shorter in (None, *TIMES):
        if shorter is not None:
            target = round(shorter * trained)
            if target >= longest:
                continue
        protocol, texts_used = _protocol(reader, settings, texts, trained, target)
        work = plan(reader, protocol, _methods(model, reader, settings, protocol, engine))
        runs = _runs(model, source, work, engine)
        work = _ordered(work, runs)
        windows = take_windows(texts_used.tokens, protocol)
        design = None
        if "copies" in settings.measured:
            design = SpanDesign.choose(protocol)
        if minutes is None or protocol.target <= trained:
            break
        outlook = Outlook(
            reader=reader, plan=work, chunk=settings.protocol.chunk, most_workers=settings.protocol.workers
        )
        asked = 0 if design is None else design.tokens
        jobs = work.due(
            Ledger(None, kind=KIND, key=""), chunk=settings.protocol.chunk, windows=range(1), asked=asked,
            methods=_least(work, runs),
        )  # fmt: skip
        if trial is None:
            trial = outlook.try_out(windows[0], jobs, clock)
        needed = from_first(outlook.seconds(jobs, trial) + clock() - began)
        if needed <= 60 * minutes:
            break
        if shorter is None:
            longest, whole = protocol.target, needed
    else:
        raise RopeError(
            "doctor: even a short target cannot be measured in this time.",
            facts={
                "minutes": minutes,
                f"minutes for {longest:,} tokens": float(f"{whole / 60:.2g}"),
                f"minutes for {protocol.target:,} tokens": float(f"{needed / 60:.2g}"),
            },
            cure="Pass more --minutes.",
        )
    if minutes is not None and shorter is not None:
        notes.append(
            f"With {longest:,} tokens, the first answer takes about {duration(whole)}, more than --minutes "
            f"{minutes:g}; the target is {protocol.target:,} tokens instead."
        )
    _refuse_without_owner(work, settings)
    key = hash_of(fingerprint(reader, windows, protocol), design)
    folder = state_folder(settings.state, key)
    ledger = Ledger(folder / "losses", kind=KIND, key=key)
    resumed = ledger.resume() if settings.resume else ledger.begin()
    tokens = [len(one) for one in texts_used.tokens]
    places, vocab_size = protocol.places(tokens), _vocabulary(tokenizer, texts_used.tokens)
    return DoctorRun(
        settings=settings,
        reader=reader,
        name=source.name,
        model=str(model) if isinstance(model, str | Path) else None,
        audits=tuple(audits_of(source, trained_length=protocol.trained_length, target=protocol.target)),
        findings=tuple(findings_of(source, protocol.target)),
        reading=reading,
        plan=work,
        windows=windows,
        spans=() if design is None else _spans(design, protocol, texts_used, places),
        ledger=ledger,
        resumed=resumed,
        trial=trial,
        notes=tuple(notes),
        dtype_note=source.dtype_note,
        frequencies=frequency_losses(texts_used.tokens, protocol, vocab_size=vocab_size),
        vocab_size=vocab_size,
        texts=texts_used.names,
        of_text=tuple(text for text, _ in places),
        share=tuple(protocol.share(tokens, count) for count in range(1, protocol.windows + 1)),
        available=sum(most_windows(length, protocol.target) for length in tokens),
        default_texts=texts_used.chosen,
        engine=engine,
        runs=runs,
        minutes=minutes,
        began=began,
        clock=clock,
        more=lambda **changes: doctor_command(model, settings, kept=kept, **changes),
    )


def _protocol(
    reader: Reader, settings: DoctorSettings, texts: Texts, trained: int, target: int | None
) -> tuple[LossProtocol, Texts]:
    """Return the protocol, and the texts that are long enough for its windows."""
    given = settings.protocol
    first = LossProtocol.choose(
        trained_length=trained,
        text=texts.names,
        target=target,
        windows=1,
        block=given.block,
        stride=given.stride,
        start_char=given.start_char,
        seed=given.seed,
        tokens=[len(one) for one in texts.tokens],
    )
    used = texts.long_enough(first.target)
    room = sum(most_windows(len(one), first.target) for one in used.tokens)
    windows = max(1, min(room, max(MOST_WINDOWS, given.windows or 0)))
    return dataclasses.replace(first, texts=used.names, windows=windows), used


def _methods(
    model: object, reader: Reader, settings: DoctorSettings, protocol: LossProtocol, engine: str | None
) -> Sequence[str] | None:
    """Return the methods to measure; None: those that a config can express.

    By default, a method in attention is measured last if the model's attention takes it; the verdict may mention it.
    """
    if settings.method_names:
        return _with_crop(settings.method_names, protocol)
    if protocol.target <= protocol.trained_length:
        return None
    if model == BUILT_IN and engine == "python":
        return _with_crop(DECIDING, protocol)
    reach = Reach(protocol.trained_length, protocol.target)
    methods = [*default_methods(reader.positions, reach)]
    with suppress(RopeError):  # not every attention takes an extension
        reader.under(METHODS[PYTHON_ONLY].positions(reader.positions, reach))
        methods.append(PYTHON_ONLY)
    return methods


def _runs(model: object, opened: Checkpoint, work: Plan, engine: str | None) -> frozenset[str]:
    """Return the methods of a plan that the engine can run."""
    protocol, source = work.protocol, None
    if isinstance(model, str | Path) and engine in ENGINES:
        with suppress(RopeError):  # ropewalk's own folders
            source = Served.open(model, protocol.trained_length, opened)
    if source is None:
        return frozenset(name for name in work.methods if why_not(engine, name, block_under(name, work)) is None)
    reach = Reach(protocol.trained_length, protocol.target)
    return frozenset(name for name in work.methods if source.why_not(engine, name, reach) is None)


def _ordered(work: Plan, runs: frozenset[str]) -> Plan:
    """Return the plan with its methods ordered by their influence on the verdict.

    First plain and crop, then the methods the engine can run, then the others; each group by `Method.priority`.
    """

    def rank(name: str) -> tuple[int, int, int]:
        first = name != "plain" and not METHODS[name].crops
        return int(first) + int(first and name not in runs), METHODS[name].priority, list(METHODS).index(name)

    order = sorted(work.positions, key=rank)
    return dataclasses.replace(work, positions={name: work.positions[name] for name in order})


def _least(work: Plan, runs: frozenset[str]) -> tuple[str, ...]:
    """Return the methods required for a verdict: plain, crop, and the first one that the engine can run."""
    fixed = [name for name in work.methods if name == "plain" or METHODS[name].crops]
    others = [name for name in work.methods if name not in fixed and name not in work.same_as]
    return (*fixed, *sorted(others, key=lambda name: name not in runs)[:1])


def _spans(
    design: SpanDesign, protocol: LossProtocol, texts: Texts, places: Sequence[tuple[int, int]]
) -> tuple[WindowSpans, ...]:
    """Return the spans of each window; the unseen ones are of the same text if it is long enough."""
    found = []
    for window, (text, start) in enumerate(places):
        own, end = texts.tokens[text], start + protocol.target
        others = [one for number, one in enumerate(texts.tokens) if number != text]
        longer = own[end:] if len(own) - end > start else own[:start]
        elsewhere = [longer, own[:start] if longer is not own[:start] else own[end:], *others]
        found.append(WindowSpans.draw(design, own[start:end], elsewhere, seed=(protocol.seed, window)))
    return tuple(found)


def _refuse_without_owner(work: Plan, settings: DoctorSettings) -> None:
    """Raise `RopeError` for settings that no method of the plan uses."""
    of_work = [METHODS[name] for name in work.methods]
    changed = [name for name in ("stride",) if name in settings.protocol.changed]
    refuse_ignored(changed, any(method.crops for method in of_work), "crop", "Add crop to the methods")


def _texts(model: object, settings: DoctorSettings, tokenizer: Tokenizer, trained: int | None) -> Texts:
    """Return the texts of the settings; else packaged passages, and for the built-in model a novel it has not seen.

    At most 16 bytes of a text are read for each token of the windows, or 8 MB if that is more.
    """
    chosen, given = settings.text is None, settings.protocol
    tokens = (settings.target or 4 * (settings.trained_length or trained or 0)) * max(MOST_WINDOWS, given.windows or 0)
    most = min(2**30, max(LEAST_BYTES, 16 * tokens)) + 4 * given.start_char
    texts = texts_of(settings.text, most) if not chosen or model == BUILT_IN else default_texts()
    return Texts.encode(texts, tokenizer, settings.protocol.start_char, chosen)


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
    """Return the reader with a known training status of its scaling, measured if it is unknown."""
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
            "doctor: `tokenizer` applies only to a live model; a path or a pair has its own.",
            facts={"model": model if isinstance(model, str | Path) else type(model).__name__},
            cure="Leave it out, or pass the model itself.",
        )
    return model, tokenizer


def _open(model: object, settings: DoctorSettings) -> tuple[Checkpoint, Reader]:
    """Return the model's config, and its reader on its device."""
    if not isinstance(model, str | Path):
        given = {name: getattr(settings, name) for name in ("dtype", "device") if settings.changes(name)}
        given |= {"device_map": settings.protocol.device_map} if settings.protocol.device_map else {}
        if given:
            raise RopeError(
                "doctor: `dtype` and `device` do not apply to a model that is passed as an object.",
                facts=given,
                cure="Move it before: model.to(...).",
            )
        model, note = fast_copy(model)
        reader = reader_of(model)
        return dataclasses.replace(Checkpoint.of_positions(reader.name, reader.positions), dtype_note=note), reader
    source = Checkpoint.open(model)
    try:
        device = torch.device(settings.device)
        torch.zeros(1, device=device).item()  # also refuses "meta", which has no numbers
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise RopeError(
            "doctor: this device cannot be used.",
            facts={"device": settings.device, "error": str(error)},
            cure="Try --device cpu.",
        ) from error
    dtype, _ = chosen_dtype(settings.dtype, str(device))
    reader = open_reader(model, name=source.name, dtype=dtype, device=device, device_map=settings.protocol.device_map)
    return source, reader


def texts_of(text: TextSource, most: int = LEAST_BYTES) -> list[tuple[str, str]]:
    """Return the name and the contents of each text: a file or a folder, several, or a list of such pairs.

    At most `most` bytes of a file are read. Raises `RopeError` as `read_texts`, and for anything else.

    >>> texts_of([("a", "words")])
    [('a', 'words')]
    """
    given: list[Any] = list(text) if isinstance(text, Sequence) and not isinstance(text, str) else [text]
    found: list[tuple[str, str]] = []
    for one in given:
        pair = isinstance(one, tuple) and len(one) == 2 and all(isinstance(part, str) for part in one)
        found += [one] if pair else read_texts([one], most) if one is not None else [read_text(None)]
    return found


def state_folder(state: str | Path | None, key: str) -> Path:
    """Return the folder of a run's ledgers. Raises `RopeError` if it is a file."""
    folder = cache_folder("doctor", key) if state is None else as_path(state, "doctor")
    if folder.exists() and not folder.is_dir():
        raise RopeError(
            "doctor: `state` must be a folder, but it is a file.",
            facts={"state": str(folder)},
            cure="Pass a new folder: --state DIR.",
        )
    return folder
