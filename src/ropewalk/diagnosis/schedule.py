"""The schedule of a measurement: windows, methods and jobs; how jobs are done, several at a time, and their time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ropewalk.checkpoints.reader import Advance, Losses, Reader
from ropewalk.diagnosis.facts import GROUP, Filled, Window, Wording
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS, Reach, chosen_methods
from ropewalk.progress import Progress, SilentProgress, expect
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.tokenizer import TextTokenizer

PLAIN, CROP = "plain", "crop"
LOOKS = (1, 2, 4, 8)
"""Numbers of windows after which a run looks at its results."""
MOST_WINDOWS = LOOKS[-1]
BLOCK = 64  # most positions of a block
CROP_TOKENS = 512  # tokens that crop scores in a window, at least, unless fewer lie beyond
MOST_CONTROLS = 48  # facts asked for at the trained length, of one window
BROKEN = 1.0  # nats per token: a rise above any part within the trained length after which a reading is given up
RECENT = 512  # tokens of such a part, and over which that rise is measured
CACHE_BYTES = 2**31  # for the caches of all concurrent measurements
TRIAL = 1024  # most tokens of the trial
SAFETY = 1.1  # of an estimate of time
SLOWER = 1.3  # attention's time for an operation over that of a matrix product
IN_ATTENTION = 1.2  # time of a method in attention over plain's
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class Text:
    """The name, contents and tokens of a text."""

    name: str
    contents: str
    tokens: Sequence[int]

    @cached_property
    def wording(self) -> Wording:
        """Return the wording of its facts."""
        return Wording.of(self.contents)

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the contents."""
        return fingerprint(self.contents)

    @classmethod
    def encode(cls, texts: Sequence[tuple[str, str]], tokenizer: TextTokenizer) -> tuple[Text, ...]:
        """Tokenise texts, given as names and contents."""
        return tuple(cls(name, contents, tokenizer.encode(contents)) for name, contents in texts)

    @staticmethod
    def characters(texts: Sequence[Text], tokens: int) -> int:
        """Estimate how many characters of these texts have this number of tokens, rounded up to a thousand."""
        characters, of = sum(len(text.contents) for text in texts), sum(len(text.tokens) for text in texts)
        return 1000 * math.ceil(tokens * (characters / of if of else 4) / 1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """The windows of a measurement. Lengths are in tokens.

    - `windows`: their number, of all texts together. They alternate between the texts. `seed` draws their places.
    """

    trained_length: int
    target: int
    windows: int
    seed: int = 0

    @property
    def extends(self) -> bool:
        """Return whether windows are longer than the trained length."""
        return self.target > self.trained_length

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return `[start, end)` of each block of positions: at most 64; a new one begins at the trained length.

        >>> Design(trained_length=128, target=160, windows=1).blocks[-2:]
        ((128, 144), (144, 160))
        """
        block = min(BLOCK, self.trained_length // 8)
        within = min(self.trained_length, self.target)
        return tuple(
            (start, min(start + block, end))
            for first, end in ((0, within), (within, self.target))
            for start in range(first, end, block)
        )

    def crop_steps(self, window: int) -> tuple[tuple[int, int], ...]:
        """Return `[first, end)` of the tokens that crop scores in a window: a sample, spread over the part beyond.

        A step is a quarter of the trained length, which is read in a fresh window.

        >>> Design(trained_length=8192, target=16384, windows=2).crop_steps(0)
        ((12288, 14336),)
        """
        stride = self.trained_length // 4
        starts = range(self.trained_length, self.target, stride)
        count = min(len(starts), -(-CROP_TOKENS // stride))
        offset = (0.5 + window * _GOLDEN) % 1
        chosen = [starts[int((number + offset) * len(starts) / count)] for number in range(count)]
        return tuple((start, min(start + stride, self.target)) for start in chosen)

    def places(self, tokens: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the text and the first token of each window, in rounds over the texts, in random order in each text.

        - `tokens`: of each text, together enough for the windows. Windows of a text are disjoint, with random gaps.
          Texts shorter than a window are left out.
        """
        places = [(number, text) for text, length in enumerate(tokens) for number in range(length // self.target)]
        order = sorted(places)[: self.windows]
        counts = Counter(text for _, text in order)
        starts = [self._starts(length, counts[text], text) for text, length in enumerate(tokens)]
        return tuple((text, starts[text][number]) for number, text in order)

    def _starts(self, tokens: int, windows: int, text: int) -> list[int]:
        """Return the first tokens of a text's windows, in random order."""
        random, spare = np.random.default_rng([self.seed, text]), tokens - windows * self.target
        gaps = np.sort(random.integers(0, spare + 1, windows))
        starts = [int(gap) + index * self.target for index, gap in enumerate(gaps)]
        return [starts[number] for number in random.permutation(windows)]


@dataclasses.dataclass(frozen=True)
class Job:
    """One window under one method. `key`: in the ledger. `tokens`, `pairs` of a query and a key: its work."""

    method: str
    window: int
    key: str
    tokens: int
    pairs: float

    @classmethod
    def of(cls, method: str, window: int, key: str, tokens: int, *, asked: int = 0, times: int = 1) -> Job:
        """Return the job of `times` texts of `tokens` tokens, with so many tokens of questions at the end of one.

        >>> Job.of("plain", 0, "key", 3, asked=2)
        Job(method='plain', window=0, key='key', tokens=5, pairs=12.0)
        """
        pairs = times * tokens * (tokens + 1) / 2 + asked * tokens
        return cls(method, window, key, times * tokens + asked, pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodForm:
    """How a method is set: the keys of config.json; None if no config expresses it.

    - `same_as`: the method with equal frequencies at this length that was measured instead, or None.
    - `engines`: those that can run it; none: only Python.
    """

    config: dict[str, Any] | None = None
    same_as: str | None = None
    engines: tuple[str, ...] = ()

    def runs_in(self, engine: str | None) -> bool:
        """Return whether an engine can run the method; Python, which None includes, runs all."""
        return engine in (None, "python", *self.engines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is measured for one target: each method, in order, with its positions, and the windows.

    - `filled`: the windows of `texts` with their facts. `windows`: the same for the evidence.
    """

    design: Design
    positions: Mapping[str, ModelRopes]
    methods: Mapping[str, MethodForm]
    texts: tuple[Text, ...] = ()
    filled: tuple[Filled, ...] = ()
    windows: tuple[Window, ...] = ()

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: fingerprint(positions) for name, positions in self.positions.items()}

    @property
    def distinct(self) -> tuple[str, ...]:
        """Return the methods with numbers of their own."""
        return tuple(name for name, form in self.methods.items() if form.same_as is None)

    @property
    def first(self) -> list[Job]:
        """Return the jobs of the first answer."""
        return self.due(1, self.distinct)

    def key(self, method: str, window: int) -> str:
        """Return a job's key in the ledger, which contains a digest of the method's positions."""
        return f"{method}/{self._digests[method]}/{window}"

    def due(self, windows: int, methods: Collection[str], saved: Ledger | tuple[()] = ()) -> list[Job]:
        """Return the jobs of these methods in the first windows, by window, but those whose key is in `saved`."""
        jobs, of = list[Job](), self.design
        for window in range(windows):
            for name in (name for name in self.distinct if name in methods):
                key = self.key(name, window)
                if name == CROP:
                    jobs.append(Job.of(name, window, key, of.trained_length, times=len(of.crop_steps(window))))
                else:
                    jobs.append(Job.of(name, window, key, of.target, asked=self.filled[0].asked))
        return [job for job in jobs if job.key not in saved]


def make_schedule(reader: Reader, design: Design, methods: Sequence[str] | None) -> Schedule:
    """Plan the measurement: always plain, crop if the target exceeds the trained length, each distinct form once.

    Raises `RopeError` if a method is unknown or does not apply.
    """
    reach, own = Reach(design.trained_length, design.target), reader.positions
    crop = [CROP] * (design.extends and CROP not in (methods or ()))
    chosen = chosen_methods([*methods, *crop] if methods else None, own, reach)
    if CROP in chosen and not design.extends:
        raise RopeError(
            "doctor: crop differs from plain only if the target exceeds the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure="Pass a longer --target, or leave out crop.",
        )
    positions = {name: METHODS[name].positions(own, reach) for name in chosen}
    forms, seen = dict[str, MethodForm](), dict[object, str]()
    for name in chosen:
        config = None if name == CROP else reader.config_under(name, reach)
        form = name if name == CROP else (_angles(positions[name], reach.target), positions[name].extensions)
        first = seen.setdefault(form, name)
        forms[name] = MethodForm(config=config, same_as=None if first == name else first)
    return Schedule(design=design, positions=positions, methods=forms)


def _angles(positions: ModelRopes, seq_len: int) -> object:
    """Return each layer's frequencies and attention factor at this length, which define a method's computation."""
    distinct = {rope: (rope.columns_at(seq_len), rope.attention_factor_at(seq_len)) for rope in positions.present_ropes}
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)


# How a window is read


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowReading:
    """The results of one method in one window.

    - `loss`: the mean of the counted tokens of each block in nats; None where it was not computed.
    - `answers`: of each fact, the log-probability of its four choices in nats; empty: not asked. `control`: the same
      for the facts asked about at the trained length, by their numbers; only under plain.
    - `stopped`: the tokens after which the reading was given up, because the model had broken down; None: it was not.
    """

    loss: tuple[float | None, ...]
    answers: tuple[tuple[float, ...], ...] = ()
    control: Mapping[int, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    stopped: int | None = None
    seconds: float = 0.0


class Stopped(Exception):
    """The exception that ends a worker's job after a failure in another worker or an interruption."""


def at_once(
    reader: Reader,
    jobs: Sequence[Job],
    measure: Callable[[Job, Advance], None],
    *,
    target: int,
    progress: Progress | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Measure jobs in a pool of threads; the first exception is raised after all have ended.

    One thread for each core, which avoids threads waiting for each other, and at most as many as caches of `target`
    tokens have room for in 2 GiB; one on an accelerator. Their number does not change results.

    - `until`: no job begins after it returns True.
    - `measure`: gets a job and a function to call with processed tokens. That function counts them, gives the thread
      its current share of the cores, and raises `Stopped` after an exception in another thread.
    """
    shown, stop, lock = progress or SilentProgress(), threading.Event(), threading.Lock()
    cores, busy, numbers = torch.get_num_threads(), set[str](), itertools.count(1)
    room = CACHE_BYTES // max(1, reader.cache_bytes(target)) if reader.device.type == "cpu" else 1
    expect(shown, sum(job.tokens for job in jobs))

    def advance(tokens: int) -> None:
        if stop.is_set():
            raise Stopped
        with lock:
            share = cores // len(busy)
            shown.advance(tokens)
        if share != torch.get_num_threads():
            torch.set_num_threads(share)  # of this thread, which does not change its results

    def attempt(job: Job) -> None:
        if until():
            return
        with lock:
            busy.add(job.key)
            description = f"[{next(numbers)}/{len(jobs)}] {job.method}, window {job.window + 1}"
            shown.begin(description, job.tokens)
        try:
            advance(0)
            measure(job, advance)
        finally:
            busy.discard(job.key)

    try:
        with ThreadPoolExecutor(max(1, min(cores, len(jobs), room))) as pool:
            try:
                for done in as_completed([pool.submit(attempt, job) for job in jobs]):
                    done.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(cores)  # a worker's setting is also the default of later threads


def answers_of(reader: Reader, window: Filled, *, advance: Advance | None = None) -> list[list[float]]:
    """Return the log-probabilities of the choices of a window's questions, asked at its end; no losses."""
    rows: list[list[float]] = []
    asking = {window.asked_at: lambda prefix: rows.extend(prefix.ask(window.questions))}
    ids = torch.from_numpy(window.ids)
    reader.window_losses(ids, first=len(ids) - 1, advance=advance, asking=asking)
    return rows


def read_job(
    reader: Reader, schedule: Schedule, job: Job, levels: dict[int, float], advance: Advance
) -> dict[str, Any]:
    """Read the window of a job under its method, and return the result for the ledger.

    - `levels`: plain's loss within the trained length, by window, as far as it is known.

    Raises `RopeError` if a loss is not finite.
    """
    started, variant = time.perf_counter(), reader.under(schedule.positions[job.method])
    window = schedule.filled[job.window]
    if job.method == CROP:
        reading = _read_cropped(variant, window, schedule.design, job.window, advance)
    else:
        reading = _read(variant, window, schedule.design, job, levels, advance)
    return dataclasses.asdict(dataclasses.replace(reading, seconds=round(time.perf_counter() - started, 3)))


def _read(
    reader: Reader, window: Filled, design: Design, job: Job, levels: dict[int, float], advance: Advance
) -> WindowReading:
    """Read a window under a method, and ask for its facts at the end."""
    answers: list[list[float]] = []
    control: dict[int, tuple[float, ...]] = {}
    trained, plain = design.trained_length, job.method == PLAIN
    control_at = trained - (design.target - window.asked_at)
    early = control_facts(window, control_at) if plain and design.extends else []

    def ask(prefix: Any) -> None:
        answers.extend(prefix.ask(window.questions))
        advance(window.asked)

    def ask_early(prefix: Any) -> None:
        rows = prefix.ask([window.questions[number] for number in early])
        control.update(zip(early, map(_rounded, rows), strict=True))

    def broken(losses: Losses) -> bool:
        """Return whether the loss has risen so far that no interval is needed; `losses` begin with token 1."""
        read = len(losses) + 1
        if read < trained or trained < 2 * RECENT:  # few tokens vary by a nat by themselves
            return False
        within = _mean(losses, window, trained // 2, trained)
        if plain:
            levels.setdefault(job.window, within)
        start = max(trained, read - RECENT)
        recent = _mean(losses, window, start, read) if read - start >= RECENT // 2 else within
        parts = [_mean(losses, window, first, first + RECENT) for first in range(RECENT, trained - RECENT + 1, RECENT)]
        varies = max(0.0, max(parts, default=within) - within)  # the text itself, such as tables in code
        return max(within, recent - varies) > min(within, levels.get(job.window, within)) + BROKEN

    losses = reader.window_losses(
        torch.from_numpy(window.ids), advance=advance, until=broken if design.extends else None,
        asking={window.asked_at: ask, **({control_at: ask_early} if early else {})},
    )  # fmt: skip
    _check_finite(losses, job.method)
    whole = np.full(design.target, np.nan)
    whole[1 : 1 + len(losses)] = losses
    stopped = None if len(losses) == design.target - 1 else len(losses) + 1
    return WindowReading(
        loss=_by_block(whole, window, design),
        answers=tuple(map(_rounded, answers)) if stopped is None else (),
        control=control,
        stopped=stopped,
    )


def _read_cropped(reader: Reader, window: Filled, design: Design, number: int, advance: Advance) -> WindowReading:
    """Read only the last tokens before each part of a window that crop scores, at positions from 0."""
    whole = np.full(design.target, np.nan)
    for first, end in design.crop_steps(number):
        start = end - design.trained_length
        ids = torch.from_numpy(window.ids[start:end])
        losses = reader.window_losses(ids, first=first - start, advance=advance)
        _check_finite(losses, CROP)
        whole[first:end] = losses
    return WindowReading(loss=_by_block(whole, window, design))


def control_facts(window: Filled, tokens: int) -> list[int]:
    """Return the far facts to ask for after the first tokens: whole groups, at most twelve of them, evenly chosen."""
    starts = range(0, len(window.facts), GROUP)
    known = [start for start in starts if window.facts[start].far
             and max(fact.end for fact in window.facts[start : start + GROUP]) <= tokens]  # fmt: skip
    count = min(len(known), MOST_CONTROLS // GROUP)
    chosen = dict.fromkeys(np.linspace(0, len(known) - 1, count).astype(int).tolist())
    return [known[number] + place for number in chosen for place in range(GROUP)]


def _rounded(row: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in row)


def _mean(losses: Losses, window: Filled, start: int, end: int) -> float:
    return float(losses[start - 1 : end - 1][window.counted[start:end]].mean())


def _by_block(losses: Losses, window: Filled, design: Design) -> tuple[float | None, ...]:
    """Return the mean of the counted tokens of each block that was computed as a whole; None for the others."""
    means: list[float | None] = []
    for start, end in design.blocks:
        counted = window.counted[start:end]
        part = losses[start:end][counted]
        means.append(round(float(part.mean()), 5) if counted.any() and np.isfinite(part).all() else None)
    return tuple(means)


def _check_finite(losses: Losses, method: str) -> None:
    if not np.isfinite(losses).all():
        raise RopeError(
            "measurement: a loss is not a finite number.",
            facts={"method": method, "first such loss": int(np.flatnonzero(~np.isfinite(losses))[0])},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )


# The time of a measurement, estimated from a short trial


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds on all cores for each token, and for each pair of a query and a key."""

    per_token: float
    per_pair: float

    @classmethod
    def of(cls, reader: Reader, tokens: Sequence[int]) -> Pace:
        """Time one pass over the beginning of a text, after a short one.

        The time of a pair over that of a token comes from the model's size: with L layers of width d, a token costs
        24 L d^2 operations and a pair 4 L d, and there are about 12 L d^2 parameters.
        """
        ids = torch.tensor(tokens[:TRIAL])
        reader.window_losses(ids[:64])
        began = time.perf_counter()
        reader.window_losses(ids)
        seconds, job = time.perf_counter() - began, Job.of(PLAIN, 0, "", len(ids))
        width = math.sqrt(reader.parameters / (12 * len(reader.positions.ropes)))
        ratio = SLOWER / (6 * width)
        per_token = seconds / (job.tokens + ratio * job.pairs)
        return cls(per_token, ratio * per_token)

    def seconds(self, jobs: Iterable[Job]) -> float:
        """Return the seconds that suffice for some jobs."""
        return SAFETY * sum(
            (IN_ATTENTION if METHODS[job.method].in_attention else 1.0)
            * (self.per_token * job.tokens + self.per_pair * job.pairs)
            for job in jobs
        )
