"""Prepare a run: the model, its texts and lengths, and the windows, methods and facts for a target."""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import math
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.atomic_io import as_path
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.opening import fast_copy, open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.sources import find
from ropewalk.checkpoints.texts import LEAST_BYTES, default_texts, read_text, read_texts
from ropewalk.diagnosis.evidence import LEVEL, LOOK_CONFIDENCE, groups_of
from ropewalk.diagnosis.facts import DENSEST, FIRST, GROUP, KINDS, Filled, Found, Layout, Teller, Window
from ropewalk.diagnosis.schedule import (
    CROP,
    MOST_WINDOWS,
    PLAIN,
    Design,
    Job,
    Pace,
    Schedule,
    Text,
    answers_of,
    make_schedule,
)
from ropewalk.diagnosis.settings import CPU_MINUTES, DoctorSettings, listed
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, cache_folder, fingerprint
from ropewalk.methods import Reach, required_trained_length, settled, settled_by_length, unsettled
from ropewalk.methods.table import METHODS, default_methods
from ropewalk.precision import chosen_dtype, computing_device
from ropewalk.progress import Progress, duration, expect, shown
from ropewalk.rope.config import RopeConfig
from ropewalk.serving.engines import ENGINES
from ropewalk.serving.plan import ServeConfig, Served, serving_plan
from ropewalk.statistics import mean_and_interval, signed
from ropewalk.tokenizer import TextTokenizer
from ropewalk.version import __version__

Clock = Callable[[], float]
BUILT_IN, WEIGHTS = "tiny", "model.safetensors"
TIMES = (4.0, 3.0, 2.0, 1.5, 1.25)  # of the trained length: the targets that are tried if none is given
COMPARED = ("yarn", "llama3", "dca", "ntk")  # the methods of a run that names none: the first that the engine runs
TRIED = 1024  # most tokens that are read to choose the kind of facts
ASKED, CLEAR = 32, 0.7  # facts of a kind; with such a share of half of them found, no other kind is tried
SCALED = ("as-is", "plain")  # the methods with the scaling of the config and without it
SCALED_WINDOWS, LONGEST = 8, 1024  # 16,384 tokens for the two readings together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """A loaded model and its texts: what every measurement begins with. Lengths are in tokens, `minutes` the limit.

    - `model`: as given, a path, a name or an object. `scaling`: as in the record. `began`: by the `clock`, in seconds.
    """

    model: object
    settings: DoctorSettings
    source: Checkpoint
    reader: Reader
    dtype_choice: str | None
    texts: tuple[Text, ...]
    scaling: dict[str, Any] | None
    trained: int
    vocabulary: int
    teller: Teller
    pace: Pace
    minutes: float
    began: float
    clock: Clock

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the weights."""
        return self.reader.digest()

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return self.clock() - self.began

    @property
    def targets(self) -> list[int]:
        """Return the targets to try, the longest first: the given one, or those with facts and enough text."""
        longest, least = max(len(text.tokens) for text in self.texts), self.teller.least(self.trained)
        fitting = [round(times * self.trained) for times in TIMES if least <= times * self.trained <= longest]
        return [self.settings.target] if self.settings.target else fitting or [max(self.trained, longest)]

    def fits(self, jobs: Iterable[Job], slower: float = 1.0) -> bool:
        """Return whether jobs fit into the minutes; `slower`: times the pace."""
        return self.spent + slower * self.pace.seconds(jobs) <= 60 * self.minutes

    def too_long(self, what: str, seconds: float, target: int, kept: Sequence[str], cure: str = "") -> RopeError:
        """Return the error of work that needs more than the minutes, with the command that fits."""
        command = self.settings.command(self.model, kept=kept, minutes=float(math.ceil(seconds / 60)))
        return RopeError(
            f"doctor: the {what} takes longer than --minutes allows.",
            facts={"minutes": self.minutes, "needed": duration(seconds), "target": target},
            cure=f"Run: {command}.{cure}",
        )

    def ledger(self, kind: str, form: int, windows: Iterable[Filled], *parts: object) -> Ledger:
        """Return the ledger of a measurement, with the results that were saved before if the run is to resume.

        - `form`: the number of its format. `parts`: what the results depend on, besides model and windows.
        """
        state, ids = self.settings.state, [one.ids.tobytes() for one in windows]
        key = fingerprint(form, torch.__version__, self.digest, *parts, ids)
        folder = cache_folder("doctor", key) if state is None else as_path(state, "doctor")
        if folder.exists() and not folder.is_dir():
            raise RopeError(
                "doctor: `state` must be a folder, but it is a file.",
                facts={"state": str(folder)},
                cure="Pass a new folder: --state DIR.",
            )
        made = Ledger(folder / kind, kind=kind, key=key)
        made.open(resume=self.settings.resume)
        return made

    def environment(self) -> dict[str, Any]:
        """Return the versions, the machine and the model's settings, for a record."""
        reader, choice_of_dtype = self.reader, {"dtype_choice": self.dtype_choice} if self.dtype_choice else {}
        return {
            "ropewalk": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "machine": platform.machine(), "device": str(reader.device), "threads": torch.get_num_threads(),
            "parameters": reader.parameters, "library": reader.library,
            "dtype": str(reader.dtype).removeprefix("torch."), **choice_of_dtype,
            "model_digest": self.digest, "seconds": round(self.spent, 1),
        }  # fmt: skip


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
        vocabulary=max([tokenizer.vocab_size, *(max(text.tokens) + 1 for text in texts if text.tokens)]),
        minutes=settings.minutes or (CPU_MINUTES if reader.device.type == "cpu" else math.inf), began=began,
        clock=clock,
    )  # fmt: skip


def schedule_of(opened: Opened, target: int, most_compared: int) -> Schedule:
    """Return the schedule for a target; raise `RopeError` if texts are too short for it, or a method does not apply.

    - `most_compared`: methods, if none is named.
    """
    reader, trained, teller, settings = opened.reader, opened.trained, opened.teller, opened.settings
    texts = tuple(text for text in opened.texts if len(text.tokens) >= target) or opened.texts
    if _longest(texts) < target or (settings.target is None and target < teller.least(trained)):
        raise _too_short(texts, settings, trained, teller)
    room = sum(len(text.tokens) // target for text in texts)
    most = min(max(MOST_WINDOWS, settings.windows or 0), room)  # a place depends on their number
    design = Design(trained_length=trained, target=target, windows=most, seed=settings.seed)
    names, chosen = list(settings.method_names), not settings.method_names and design.extends
    if chosen:
        usual = default_methods(reader.positions, Reach(trained, target))
        names = [name for name in COMPARED if name in usual or METHODS[name].in_attention]
        names += [name for name in usual if METHODS[name].keeps_own]
    schedule = make_schedule(reader, design, names or None)
    engines = _engines(opened, schedule)
    forms = {name: dataclasses.replace(form, engines=engines[name]) for name, form in schedule.methods.items()}
    runs = {name: form.runs_in(settings.engine) for name, form in forms.items()}
    if chosen:  # what the engine cannot run is measured only if it is named
        able = [name for name in names if name in schedule.distinct and runs[name] and METHODS[name].extends]
        names = [PLAIN, CROP, *able[:most_compared], *(name for name in names if METHODS[name].keeps_own)]
    place = {name: number for number, name in enumerate(names)}
    kept = [name for name in schedule.positions if not chosen or name in place]
    order = sorted(kept, key=lambda x: (x != PLAIN, x == CROP, not runs[x], place.get(x, len(place))))
    layout, told, filled, windows = teller.layout(trained, target), set[tuple[str, str]](), [], []
    for text, start in design.places([len(text.tokens) for text in texts]):
        of = texts[text]
        seed, body = (settings.seed, of.digest, start), of.tokens[start : start + target]
        filled.append(teller.fill(layout, body, seed=seed, told=told, wording=of.wording))
        windows.append(_entry(design, of, text, start, filled[-1], opened.vocabulary))
    alone = {name: dataclasses.replace(form, same_as=None) for name, form in forms.items()}
    return Schedule(
        design=design, positions={name: schedule.positions[name] for name in order}, texts=texts,
        methods={name: forms[name] if forms[name].same_as in order else alone[name] for name in order},
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
        cure=f"Give a text of at least {least:,} tokens, about {Text.characters(texts, least):,} characters; "
        f"about {Text.characters(texts, MOST_WINDOWS * target):,} hold {MOST_WINDOWS} windows of {target:,} tokens.",
    )


def _teller(
    reader: Reader, tokenizer: TextTokenizer, texts: Sequence[Text], trained: int, settings: DoctorSettings
) -> Teller:
    """Return the teller of the first kind of facts, unless another serves and it does not, or another is shown better.

    A kind serves if the unchanged model finds more of its facts in short windows than chance explains.
    """
    longest, most = max(texts, key=lambda text: len(text.tokens)), min(TRIED, trained)
    tried, errors = list[tuple[Found, Teller]](), list[RopeError]()
    for kind in KINDS.values():
        try:
            teller = Teller(kind, tokenizer.encode, tokenizer.decode, [text.wording for text in (longest, *texts)])
        except RopeError as error:
            errors.append(error)
            continue
        tried.append((_found_nearby(reader, teller, longest.tokens, most, settings.seed), teller))
        if tried[-1][0].share >= CLEAR:
            break
    if not tried:
        raise errors[0]
    (found, teller), (other, another) = tried[0], tried[-1]
    serves = other.exceeds_chance(LEVEL) and not found.exceeds_chance(LEVEL)
    if not found.asked or serves or other.low > found.high:
        found, teller = other, another
    if not found.asked:
        if len(longest.tokens) < most:
            raise _too_short(texts, settings, trained, teller)
        raise RopeError(
            "doctor: the trained length is too short for four facts.",
            facts={"trained_length": trained, "tokens of four facts": GROUP * teller.size},
            cure="Pass the right --trained-length.",
        )
    return teller


def _found_nearby(reader: Reader, teller: Teller, text: Sequence[int], most: int, seed: int) -> Found:
    """Return how many facts are found in up to four windows of `most` tokens, until 32 are asked or the share is clear.

    None is asked if a window has no room for four.
    """
    length, groups = min(most, len(text)), list[list[int]]()
    asked_at = length - teller.question
    count = GROUP * min(4, int(DENSEST * (asked_at - FIRST) / teller.size) // GROUP)
    layout = Layout(length, asked_at, teller.size, 0, ((FIRST, asked_at - teller.size, count),))
    windows = min(4, -(-ASKED // count)) if count >= GROUP else 0
    for start in dict.fromkeys(np.linspace(0, len(text) - length, windows).astype(int).tolist()):
        window = teller.fill(layout, text[start : start + length], seed=(seed,))
        groups += groups_of(zip(window.facts, answers_of(reader, window), strict=True))
        found = Found.of(groups, confidence=LOOK_CONFIDENCE)
        if found.asked >= ASKED // 2 and found.share >= CLEAR:
            break
    return Found.of(groups, confidence=LOOK_CONFIDENCE)


def _engines(opened: Opened, schedule: Schedule) -> dict[str, tuple[str, ...]]:
    """Return the engines that can run each method of a schedule."""
    trained, reach = schedule.design.trained_length, Reach(schedule.design.trained_length, schedule.design.target)
    try:
        if isinstance(opened.model, str | Path):
            source = Served.open(opened.model, trained, opened.source)
        else:
            source = Served.of(opened.reader.model.config.to_dict(), trained)
    except RopeError:  # ropewalk's own folders
        return dict.fromkeys(schedule.positions, ())
    served = {name: PLAIN if name == CROP else name for name in schedule.positions}  # the client crops
    plans = {name: [serving_plan(source, engine, of, reach) for engine in ENGINES] for name, of in served.items()}
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
        given = {name: getattr(settings, name) for name in ("dtype", "device") if settings.changes(name)}
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
    dtype, reason = chosen_dtype(settings.dtype, str(computing_device(settings.device)))
    return source, open_reader(model, name=source.name, dtype=dtype, device=settings.device), reason


# Find the frequencies of the training: those with the scaling in the config, or those without it


def settle_reading(
    reader: Reader, tokens: Sequence[Sequence[int]], settings: DoctorSettings, progress: Progress
) -> tuple[Reader, dict[str, Any] | None]:
    """Return the reader with its scaling settled, and the measurement if one was needed.

    - `tokens`: of each text; windows are drawn from all of them.

    If the stated trained length exceeds the length before the scaling, the model was trained with the scaling, else
    without it. If none is stated, the losses under both are measured within the length before the scaling: that of the
    training is lower. Results are saved, so that a stopped measurement resumes. Raises `RopeError` if the texts are too
    short for two windows of 16 tokens.
    """
    reader = reader.under(settled_by_length(reader.positions, settings.trained_length))
    rope = unsettled(reader.positions)
    if rope is None:
        return reader, None
    shortest = min(map(len, tokens))
    of_each = -(-SCALED_WINDOWS // len(tokens))
    length = min(LONGEST, rope.original_length or LONGEST, shortest // min(of_each, 2))
    if length < 16:
        raise RopeError(
            "doctor: it is not known whether this model was trained with its scaling, and the text is too short to "
            "measure it.",
            facts={"scaling": rope.scaling, "tokens in the text": shortest},
            cure="Give a longer --text, or pass --trained-length.",
        )
    count = len(tokens) * min(of_each, shortest // length)
    design = Design(trained_length=length, target=length, windows=count, seed=settings.seed)
    places = design.places(list(map(len, tokens)))
    windows = [torch.tensor(tokens[text][start : start + length]) for text, start in places]
    under = {name: reader.under(METHODS[name].positions(reader.positions, Reach(length, length))) for name in SCALED}
    key = fingerprint(reader.digest(), length, [window.numpy().tobytes() for window in windows])
    folder = cache_folder("doctor", "reading") if settings.state is None else Path(settings.state) / "reading"
    ledger = Ledger(folder / key, kind="reading", key=key)
    ledger.open()
    expect(progress, len(SCALED) * count * length)
    for name, number in itertools.product(SCALED, range(count)):
        if f"{name}/{number}" not in ledger:
            losses = under[name].window_losses(windows[number], advance=progress.advance)
            ledger.add(f"{name}/{number}", {"loss": float(losses.mean())})
    scaled, unscaled = ([ledger[f"{name}/{number}"]["loss"] for number in range(count)] for name in SCALED)
    measured = _conclusion(rope, length, scaled, unscaled)
    found = settled(reader.positions, bool(measured["with_scaling"]), "measured within the original length")
    return reader.under(found), measured


def _conclusion(rope: RopeConfig, length: int, scaled: list[float], unscaled: list[float]) -> dict[str, Any]:
    """Return whether the weights were trained with the scaling, with the losses of each window in nats per token.

    The difference is paired by window, with its 95 % interval (Student's t). If the interval contains 0, the result is
    open (None), and the scaling is treated as an option of inference.
    """
    difference, interval = mean_and_interval([one - other for one, other in zip(scaled, unscaled, strict=True)])
    assert interval is not None
    with_scaling = None if interval[0] <= 0 <= interval[1] else interval[1] < 0
    rule = "" if rope.scaling is None else rope.scaling.rope_type
    trained = rope.scaled_length if with_scaling else rope.original_length
    said = f"scaled minus unscaled is {signed(difference, interval)} nats per token in windows of {length:,} tokens"
    if with_scaling is None:
        sentence = (
            f"It is open whether the weights were trained with the {rule} scaling: {said}. It is treated as an option "
            "of inference; --trained-length overrides this."
        )
    else:
        how, to = "with" if with_scaling else "without", "" if trained is None else f" to {trained:,} tokens"
        sentence = f"The weights were trained {how} the {rule} scaling{to}: {said}."
    return {
        "rule": rule, "length": length, "scaled": scaled, "unscaled": unscaled, "scaled_length": rope.scaled_length,
        "original_length": rope.original_length, "difference": difference, "interval": interval,
        "with_scaling": with_scaling, "trained_length": trained, "sentence": sentence,
    }  # fmt: skip
