"""`rw.doctor`, and what it prepares: the model, texts, lengths, windows, methods and facts of a run."""

from __future__ import annotations

import dataclasses
import filecmp
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.audit.audit import audits_of, inspection
from ropewalk.audit.traps import findings_of
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.opening import fast_copy, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.sources import find
from ropewalk.checkpoints.texts import LEAST_BYTES, default_texts, read_text, read_texts
from ropewalk.diagnosis.evidence import LEVEL, LOOK_CONFIDENCE, groups_of
from ropewalk.diagnosis.facts import FIRST, GROUP, KINDS, Filled, Found, Layout, Teller, Window
from ropewalk.diagnosis.plan import (
    CROP,
    MOST_WINDOWS,
    PLAIN,
    Clock,
    Design,
    Pace,
    Plan,
    Text,
    answers_of,
    characters_of,
    make_plan,
    runs_in,
)
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.run import TIMES, DoctorRun, Opened
from ropewalk.diagnosis.settings import CPU_MINUTES, DoctorSettings, TextSource, listed
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach, default_methods, required_trained_length, unsettled
from ropewalk.precision import chosen_dtype
from ropewalk.progress import Progress, duration, shown
from ropewalk.serving.engines import ENGINES
from ropewalk.serving.plan import ServeConfig, serving_plan
from ropewalk.serving.served import Served
from ropewalk.statistics import counted
from ropewalk.tokenizer import TextTokenizer

KIND = "windows"  # of the ledger
JOB_FORMAT = 9  # of a result and of how it is measured: a change of either takes the next number
BUILT_IN, WEIGHTS = "tiny", "model.safetensors"
COMPARED = ("yarn", "llama3", "dca", "ntk")  # the methods of a run that names none: the first that the engine runs,
MOST_COMPARED = 3  # at most so many of them
TRIED = 1024  # most tokens that are read to choose the kind of facts
ASKED, CLEAR = 32, 0.7  # facts of a kind; with such a share of half of them found, no other kind is tried


def doctor(
    model: object = "tiny",
    *,
    tokenizer: Any = None,
    target: int | None = None,
    trained_length: int | None = None,
    text: TextSource = None,
    methods: str | Sequence[str] | None = None,
    engine: str | None = None,
    minutes: float | None = None,
    windows: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
) -> Diagnosis:
    """Measure how far a model's context really reaches, and what would extend it.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME or OWNER/NAME@REVISION, "tiny"; or
      a `Decoder` in Llama's layout, a live model of transformers with its `tokenizer`, or a pair of the two.
      transformers computes the model; `Diagnosis.environment["library"]` contains its version and the model's class.
    - `target`: the desired length in tokens; None: four times the trained length. `trained_length`: in tokens;
      overrides the config and the table of families.
    - `text`: a file or folder, a list of them, or a list of (name, contents); None: passages of books and of code.
    - `methods`: names, or "all", which includes methods in attention; None: the first three of yarn, llama3, dca and
      ntk that the engine runs, fewer if the minutes are too few. plain and crop are always measured.
    - `engine`: the engine for the model: "vllm", "sglang", "llama.cpp", "ollama", "transformers" or "python". The best
      method that it runs is recommended. None: the best of all, and the best for engines if that runs in Python only.
    - `minutes`: time limit, after which the run ends with the best answer so far. None: 10 on a CPU;
      no limit elsewhere. `math.inf`: no limit.
    - `windows`: most windows of text to read; None: up to 8, until the answer stands. `seed`: of windows and facts.
    - `dtype`, `device`: for a model that is loaded here. "auto" is bfloat16 if the machine multiplies it faster
      (AVX512-BF16, AMX, CUDA from sm_80), else float32.
    - `state`: the folder in which results are saved as they are computed; None: in the user's cache. `resume`: resume
      the same run; else it starts over.
    - `progress`: None: shown on a terminal and in a notebook, nothing elsewhere; False: nothing; or an object that
      gets the progress (`ropewalk.progress.Progress`).

    **Returns:** a `Diagnosis`. Losses are in nats per token.
    **Raises:** `RopeError` if something cannot be measured, before any work if possible; `RunInterrupted` (a
    KeyboardInterrupt) on Ctrl-C, after which `resume=True` resumes the run.

    >>> text = [("story", "The old man and the sea. He went out alone in a skiff. " * 400)]
    >>> diagnosis = doctor("tiny", target=512, text=text, methods=["dca"], windows=1)
    >>> list(diagnosis.readings)
    ['plain', 'dca', 'crop']
    """
    settings = DoctorSettings(
        target=target, trained_length=trained_length, text=text, methods=methods, engine=engine, minutes=minutes,
        windows=windows, seed=seed, dtype=dtype, device=device, device_map=device_map, state=state, resume=resume,
    )  # fmt: skip
    if tokenizer is not None:
        if isinstance(model, str | Path | tuple):
            raise RopeError(
                "doctor: `tokenizer` applies only to a live model; a path or a pair has its own.",
                facts={"model": model if isinstance(model, str | Path) else type(model).__name__},
                cure="Leave it out, or pass the model itself.",
            )
        model = (model, tokenizer)
    return prepare(model, settings, progress).measure(progress)


def open_model(
    model: object, settings: DoctorSettings, progress: Progress | bool | None = None, clock: Clock = time.perf_counter
) -> Opened:
    """Load the model, encode the texts and choose the kind of facts; arguments as for `doctor`.

    If it is unknown whether the model was trained with the scaling in its config, this is measured here, because all
    lengths depend on it.
    """
    began = clock()
    source, reader, dtype_choice = _open(model, settings)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "doctor: the model has no tokenizer, so it cannot be measured on a text.",
            facts={"model": source.name},
            cure="Put its tokenizer.json next to the weights, or pass tokenizer=... with a live model.",
        )
    texts = _texts(_is_built_in(source), settings, reader)
    scaling: dict[str, Any] | None = None
    if unsettled(reader.positions) is not None:
        from ropewalk.diagnosis.scaling import settle_reading

        with shown("doctor", progress) as display:
            reader, scaling = settle_reading(reader, [text.tokens for text in texts], settings, display)
    trained = required_trained_length(reader.positions, settings.trained_length)
    if settings.text is None and _longest(texts) < (settings.target or TIMES[0] * trained):
        texts = Text.encode([read_text(None)], tokenizer)
    teller = _teller(reader, tokenizer, texts, trained, settings)
    return Opened(
        model=model, settings=settings, source=source.known_from(reader.positions), reader=reader,
        dtype_choice=dtype_choice, texts=texts, scaling=scaling, trained=trained, teller=teller,
        pace=Pace.of(reader, max((text.tokens for text in texts), key=len)),
        vocabulary=max(tokenizer.vocab_size, *(max(text.tokens) + 1 for text in texts if text.tokens), 1),
        minutes=settings.minutes or (CPU_MINUTES if reader.device.type == "cpu" else math.inf), began=began,
        clock=clock,
    )  # fmt: skip


def prepare(
    model: object,
    settings: DoctorSettings,
    progress: Progress | bool | None = None,
    *,
    clock: Clock = time.perf_counter,
    kept: Sequence[str] = (),
    record: Path | None = None,
) -> DoctorRun:
    """Load the model and check all settings, before any work; arguments as for `doctor`.

    `kept`: words of the command line, such as --json FILE, to repeat in the next command. `record`: the file into which
    the diagnosis will be written.
    """
    opened = open_model(model, settings, progress, clock)
    fewer = [MOST_COMPARED] if settings.method_names else range(MOST_COMPARED, 0 if settings.target else 1, -1)
    first, *others = [(target, most) for target in opened.targets for most in fewer]
    asked = chosen = plan_of(opened, *first)
    for one in others:
        if opened.fits(chosen.first):
            break
        with suppress(RopeError):  # too short for facts
            chosen = plan_of(opened, *one)
    seconds = opened.pace.seconds(asked.first)
    if not opened.fits(chosen.first):
        less = " Fewer --methods or a shorter --target take less." if settings.target or settings.methods else ""
        raise opened.too_long("first answer", opened.spent + seconds, asked.design.target, kept, less)
    design = chosen.design
    notes = [] if isinstance(model, str | Path) or opened.dtype_choice is None else [opened.dtype_choice]
    if chosen is not asked:
        notes.append(
            f"With {asked.design.target:,} tokens and {', '.join(asked.distinct)}, the first answer takes about "
            f"{duration(seconds)}, more than --minutes {opened.minutes:g}. Measured is {', '.join(chosen.distinct)} "
            f"with {design.target:,} tokens."
        )
    notes += _short_text(chosen, opened.texts)
    ledger = opened.ledger(KIND, JOB_FORMAT, chosen.filled, repr(design), repr(opened.teller.kind.name))
    audits = audits_of(opened.source, trained_length=design.trained_length, target=design.target)
    return DoctorRun(
        opened=opened, plan=chosen, ledger=ledger, notes=tuple(notes), kept=tuple(kept), record=record,
        inspection=inspection(opened.source.name, audits, findings_of(opened.source)),
    )  # fmt: skip


def plan_of(opened: Opened, target: int, most_compared: int) -> Plan:
    """Return the plan for a target; raise `RopeError` if the texts are too short for it, or a method does not apply.

    - `most_compared`: methods, if none is named.
    """
    reader, trained, teller, settings = opened.reader, opened.trained, opened.teller, opened.settings
    texts = tuple(text for text in opened.texts if len(text.tokens) >= target) or opened.texts
    if _longest(texts) < target or (settings.target is None and target < teller.least(trained)):
        raise _too_short(texts, settings, trained, teller)
    room = sum(len(text.tokens) // target for text in texts)
    most = min(max(MOST_WINDOWS, settings.windows or 0), max(1, room))  # a place depends on their number
    design = Design(trained_length=trained, target=target, windows=most, seed=settings.seed)
    names, chosen = list(settings.method_names), not settings.method_names and design.extends
    if chosen:
        usual = default_methods(reader.positions, Reach(trained, target))
        names = [name for name in COMPARED if name in usual or METHODS[name].in_attention]
        names += [name for name in usual if METHODS[name].keeps_own]
    plan = make_plan(reader, design, names or None)
    engines = _engines(opened, plan)
    runs = {name: runs_in(settings.engine, of) for name, of in engines.items()}
    if chosen:  # what the engine cannot run is measured only if it is named
        able = [name for name in names if name in plan.distinct and runs[name] and METHODS[name].extends]
        names = [PLAIN, CROP, *able[:most_compared], *(name for name in names if METHODS[name].keeps_own)]
    place = {name: number for number, name in enumerate(names)}
    kept = [name for name in plan.positions if not chosen or name in place]
    order = sorted(kept, key=lambda x: (x != PLAIN, x == CROP, not runs[x], place.get(x, len(place))))
    layout, told, filled, windows = teller.layout(trained, target), set[tuple[str, str]](), [], []
    for text, start in design.places([len(text.tokens) for text in texts]):
        of = texts[text]
        seed, body = (settings.seed, of.digest, start), of.tokens[start : start + target]
        filled.append(teller.fill(layout, body, seed=seed, told=told, wording=of.wording))
        windows.append(_entry(design, of, text, start, filled[-1], opened.vocabulary))
    return dataclasses.replace(
        plan, positions={name: plan.positions[name] for name in order}, engines=engines, texts=texts,
        same_as={name: first for name, first in plan.same_as.items() if {name, first} <= {*order}},
        filled=tuple(filled), windows=tuple(windows),
    )  # fmt: skip


def _entry(design: Design, text: Text, number: int, start: int, filled: Filled, vocabulary: int) -> Window:
    """Return a window's entry in the evidence, with the loss of token frequencies within the trained length."""
    outside, within = [*text.tokens[:start], *text.tokens[start + design.target :]], slice(1, design.trained_length)
    loss = frequency_loss(outside, filled.ids[within][filled.counted[within]], vocabulary)
    counted = tuple(int(filled.counted[first:end].sum()) for first, end in design.blocks)
    return Window(text=number, start=start, facts=filled.facts, counted=counted, frequencies=loss)


def frequency_loss(outside: Sequence[int], ids: np.ndarray, vocab_size: int) -> float:
    """Return the mean loss of a unigram model on token ids, in nats per token.

    A token that occurs c times among the N tokens `outside` the window, T of them distinct, has the probability
    (c + T / V) / (N + T).

    **Source:** Witten and Bell 1991 (method C), interpolated with the uniform distribution as in Chen and Goodman 1999,
    "An empirical study of smoothing techniques for language modeling", section 2.

    >>> round(frequency_loss([], np.array([0, 0]), 2), 4)  # no token outside: log 2
    0.6931
    """
    if not outside:
        return math.log(vocab_size)
    counts = np.bincount(np.asarray(outside, dtype=np.int64), minlength=vocab_size)
    distinct = int(np.count_nonzero(counts))
    return float(-np.log((counts[ids] + distinct / vocab_size) / (len(outside) + distinct)).mean())


def _longest(texts: Sequence[Text]) -> int:
    """Return the tokens of the longest text."""
    return max(len(text.tokens) for text in texts)


def _too_short(texts: Sequence[Text], settings: DoctorSettings, trained: int, teller: Teller) -> RopeError:
    """Return the error of texts without a window of the target, or of the shortest target with facts if none is given.

    It names the length that suffices, and that for all windows.
    """
    least, target = settings.target or teller.least(trained), settings.target or round(TIMES[0] * trained)
    return RopeError(
        "doctor: the text is too short.",
        facts={"tokens of the longest text": _longest(texts), "trained_length": trained},
        cure=f"Give a text of at least {least:,} tokens, about {characters_of(texts, least):,} characters; "
        f"about {characters_of(texts, MOST_WINDOWS * target):,} hold {MOST_WINDOWS} windows of {target:,} tokens.",
    )


def _short_text(chosen: Plan, texts: Sequence[Text]) -> list[str]:
    """Return a sentence if the text has too few windows for an answer about a method that finds half of the facts."""
    far, windows = sum(fact.far for fact in chosen.filled[0].facts), chosen.design.windows
    if not far or far * windows >= 6 * GROUP:
        return []
    needed = -(-6 * GROUP // far)
    return [
        f"The text holds {counted(windows, 'window')} with {far * windows} far facts, too few for most answers; "
        f"{counted(needed, 'window')} need about {characters_of(texts, needed * chosen.design.target):,} characters."
    ]


def _teller(
    reader: Reader, tokenizer: TextTokenizer, texts: Sequence[Text], trained: int, settings: DoctorSettings
) -> Teller:
    """Return the teller of the first kind of facts, unless another serves and it does not, or another is shown better.

    A kind serves if the unchanged model finds more of its facts in short windows than chance explains.
    """
    longest, most = max(texts, key=lambda text: len(text.tokens)), min(TRIED, trained)
    best, errors = None, list[RopeError]()
    for kind in KINDS.values():
        try:
            teller = Teller(kind, tokenizer.encode, tokenizer.decode, [text.wording for text in (longest, *texts)])
        except RopeError as error:
            errors.append(error)
            continue
        found = _found_nearby(reader, teller, longest.tokens, most, settings.seed)
        serves = found.exceeds_chance(LEVEL)
        known = best is not None and best[0].asked > 0
        if best is None or not known or (serves and not best[0].exceeds_chance(LEVEL)) or found.low > best[0].high:
            best = (found, teller)
        if found.share >= CLEAR:
            break
    if best is None:
        raise errors[0]
    if not best[0].asked:
        if len(longest.tokens) < most:
            raise _too_short(texts, settings, trained, best[1])
        raise RopeError(
            "doctor: the trained length is too short for four facts.",
            facts={"trained_length": trained, "tokens of four facts": GROUP * best[1].size},
            cure="Pass the right --trained-length.",
        )
    return best[1]


def _found_nearby(reader: Reader, teller: Teller, text: Sequence[int], most: int, seed: int) -> Found:
    """Return how many facts are found in up to four windows of `most` tokens, until 32 are asked or the share is clear.

    None is asked if a window has no room for four.
    """
    length, groups = min(most, len(text)), list[list[int]]()
    asked_at = length - teller.question
    count = GROUP * min(4, int(0.3 * (asked_at - FIRST) / teller.size) // GROUP)
    layout = Layout(length, asked_at, teller.size, 0, ((FIRST, asked_at - teller.size, count),))
    windows = min(4, -(-ASKED // count)) if count >= GROUP else 0
    found = Found.of(groups, confidence=LOOK_CONFIDENCE)
    for start in dict.fromkeys(np.linspace(0, len(text) - length, windows).astype(int).tolist()):
        window = teller.fill(layout, text[start : start + length], seed=(seed,))
        groups += groups_of(zip(window.facts, answers_of(reader, window), strict=True))
        found = Found.of(groups, confidence=LOOK_CONFIDENCE)
        if found.asked >= ASKED // 2 and found.share >= CLEAR:
            break
    return found


def _engines(opened: Opened, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the engines that can run each method of a plan."""
    trained, reach = plan.design.trained_length, Reach(plan.design.trained_length, plan.design.target)
    try:
        if isinstance(opened.model, str | Path):
            source = Served.open(opened.model, trained, opened.source)
        else:
            source = Served.of(opened.reader.model.config.to_dict(), trained)
    except RopeError:  # ropewalk's own folders
        return dict.fromkeys(plan.positions, ())
    plans = {name: [serving_plan(source, engine, name, reach) for engine in ENGINES] for name in plan.positions}
    return {name: tuple(one.engine for one in of if isinstance(one, ServeConfig)) for name, of in plans.items()}


def _is_built_in(source: Checkpoint) -> bool:
    """Return whether the weights are those of the built-in model, which was trained on some of the packaged texts."""
    weights = None if source.path is None else source.path / WEIGHTS
    return weights is not None and weights.is_file() and filecmp.cmp(weights, find(BUILT_IN) / WEIGHTS, shallow=False)


def _texts(built_in: bool, settings: DoctorSettings, reader: Reader) -> tuple[Text, ...]:
    """Return the texts of the settings; else packaged passages, and for the built-in model a novel it has not seen.

    At most 16 bytes of a text are read for each token of the windows, or 8 MB if that is more.
    """
    assert reader.tokenizer is not None
    tokens = (settings.target or 4 * (settings.trained_length or reader.trained_length or 0)) * MOST_WINDOWS
    most, text = min(2**30, max(LEAST_BYTES, 16 * tokens)), settings.text
    if text is None:
        return Text.encode([read_text(None)] if built_in else default_texts(), reader.tokenizer)
    named = list[tuple[str, str]]()
    for one in listed(text):
        pair = isinstance(one, tuple) and len(one) == 2 and all(isinstance(part, str) for part in one)
        named += [one] if pair else read_texts([one], most)
    return Text.encode(named, reader.tokenizer)


def _open(model: object, settings: DoctorSettings) -> tuple[Checkpoint, Reader, str | None]:
    """Return the model's config, its reader on its device, and a reason for its dtype, if there is one."""
    if not isinstance(model, str | Path):
        given = {name: getattr(settings, name) for name in ("dtype", "device", "device_map") if settings.changes(name)}
        if given:
            raise RopeError(
                "doctor: `dtype` and `device` do not apply to a model that is passed as an object.",
                facts=given,
                cure="Move it before: model.to(...).",
            )
        model, note = fast_copy(model)
        reader = reader_of(model)
        return Checkpoint.of_positions(reader.name, reader.positions), reader, note
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
    dtype, reason = chosen_dtype(settings.dtype, str(device))
    reader = open_reader(model, name=source.name, dtype=dtype, device=device, device_map=settings.device_map)
    return source, reader, reason
