"""Estimate how long a measurement takes and how much memory it needs, from a short trial; choose what fits a time."""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.measure.copy_test import UseRun
from ropewalk.measure.engine import NOTHING, Job, Workload
from ropewalk.measure.plan import KIND, Plan
from ropewalk.measure.retrieval import RetrievalRun
from ropewalk.methods import METHODS
from ropewalk.optional import need
from ropewalk.processes import current
from ropewalk.readers.reader import CHUNK, Reader, ReadingOn
from ropewalk.readers.workers import fitting_workers

Clock = Callable[[], float]
SHORTEST = 64  # tokens of the first reading
SHARE = 0.03  # of the work ahead that a trial may take
BOUNDS = (1.5, 12.0)  # seconds of a trial, at least and at most
NOISE = 0.05  # of one reading, relative
DOUBT = 0.5  # of what arithmetic says of attention's share, relative
SLOWER = 1.3  # attention's time for an operation over that of a matrix product
PER_LAYER = 3e-4  # seconds that a layer costs in each forward, however few its tokens
AGAIN = 0.2  # seconds: a reading that takes less is repeated, and the middle one counts
SAMPLE_SECONDS = 0.01


@dataclass(frozen=True)
class Pace:
    """Seconds of one worker for each forward, token, pair of a query and a key, and scored token."""

    per_call: float
    per_token: float
    per_pair: float
    per_score: float

    def seconds(self, work: Workload) -> float:
        """Return the seconds of some work.

        >>> Pace(0.0, 1e-3, 0.0, 0.0).seconds(Workload.of(2000))
        2.0
        """
        rates = (self.per_call, self.per_token, self.per_pair, self.per_score)
        return sum(rate * part for rate, part in zip(rates, work.parts, strict=True))


@dataclass(frozen=True)
class Trial:
    """The result of a trial: the pace, and the bytes that one worker needs besides the weights and the cache."""

    pace: Pace
    workspace: int


def pace_of(timed: Sequence[tuple[Workload, float]], *, pair_over_token: float, per_call: float) -> Pace:
    """Return the pace that fits some timed readings best, without negative parts.

    `pair_over_token` is what arithmetic says of the time of a pair over that of a token, and `per_call` about the
    seconds of a forward without tokens: short readings say little of both, and long ones overrule them.
    """
    rows = [[part / (NOISE * seconds) for part in reading.parts] for reading, seconds in timed]
    wanted = [1 / NOISE] * len(rows)
    longest, seconds = max(timed, key=lambda one: one[0].tokens)
    by_token = seconds / longest.tokens
    rows.append([0.0, -1 / (DOUBT * by_token), 1 / (DOUBT * by_token * pair_over_token), 0.0])
    rows.append([1 / per_call, 0.0, 0.0, 0.0])
    columns = np.array(rows)
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    rates, _ = need("scipy.optimize", extra="doctor").nnls(columns / scale, np.array([*wanted, 0.0, 1.0]))
    return Pace(*(rates / scale).tolist())


def pair_over_token(reader: Reader) -> float:
    """Return the approximate time of one pair of a query and a key over that of a token, for this size and depth.

    With L layers of width d, a token costs 24 L d^2 operations and a pair 4 L d, and there are 12 L d^2 parameters.
    """
    layers = max(1, len(reader.positions.ropes))
    width = max(1.0, math.sqrt(reader.parameters / (12 * layers)))
    return SLOWER / (6 * width)


def time_trial(
    reader: Reader,
    input_ids: Tensor,
    *,
    ahead: Workload,
    workers: int = 1,
    chunk: int = CHUNK,
    clock: Clock = time.perf_counter,
) -> Trial:
    """Read the beginning of a text, twice as long each time, and find the pace.

    **Arguments:**
    - `input_ids`: int64 `[tokens]`, a window of the text. `ahead`: the work that the trial is for; a thirtieth of its
      time may be spent, and 1.5 to 12 seconds.
    - `workers`: workers at one time, each on its share of the cores; the trial uses the same number.
    - `clock`: seconds.

    **Returns:** a `Trial`. Its first, shortest reading is not counted.
    """
    cores = torch.get_num_threads()
    share = max(1, cores // workers)
    before, longest = resident_bytes(), 0
    timed: list[tuple[Workload, float]] = []
    try:
        torch.set_num_threads(share)
        with _company(reader, input_ids[:SHORTEST], workers - 1, share, chunk), _peak() as peak:
            reader.window_losses(input_ids[: min(SHORTEST, len(input_ids))], chunk=chunk)
            began = clock()
            for length in _lengths(len(input_ids)):
                timed.append((Workload.of(length, chunk=chunk), _timed(reader, input_ids[:length], 1, chunk, clock)))
                longest, spent = length, clock() - began
                rough = timed[-1][1] / length * ahead.tokens / workers
                if 2 * timed[-1][1] + spent > min(max(SHARE * rough, BOUNDS[0]), BOUNDS[1]):
                    break
            last = Workload.of(longest, chunk=chunk, first=longest - 1)
            timed.append((last, _timed(reader, input_ids[:longest], longest - 1, chunk, clock)))
    finally:
        torch.set_num_threads(cores)
    layers = len(reader.positions.ropes)
    pace = pace_of(timed, pair_over_token=pair_over_token(reader), per_call=PER_LAYER * layers)
    workspace = max(0, peak[0] - before - reader.cache_bytes(longest))
    return Trial(pace, workspace // max(1, workers))


def _lengths(tokens: int) -> Iterator[int]:
    """Return the lengths to read, doubling up to the whole text."""
    halvings = max(0, (tokens // SHORTEST).bit_length() - 1)
    for number in range(halvings, -1, -1):
        yield tokens >> number


def _timed(reader: Reader, input_ids: Tensor, first: int, chunk: int, clock: Clock) -> float:
    """Return the seconds of one reading: the median of three if that is short."""
    found: list[float] = []
    while len(found) < 3 and sum(found) < AGAIN:
        started = clock()
        reader.window_losses(input_ids, first=first, chunk=chunk)
        found.append(max(clock() - started, 1e-9))
    return statistics.median(found)


@contextmanager
def _company(reader: Reader, input_ids: Tensor, others: int, cores: int, chunk: int) -> Iterator[None]:
    """Let other workers read during the block, so that memory and caches are shared as in the run."""
    if others < 1:
        yield
        return
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            reader.window_losses(input_ids, chunk=chunk)

    with ThreadPoolExecutor(others, initializer=torch.set_num_threads, initargs=(cores,)) as pool:
        working = [pool.submit(read) for _ in range(others)]
        try:
            yield
        finally:
            done.set()
    for one in working:
        one.result()


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Yield a list that contains the largest resident memory during the block, in bytes, after it ends."""
    found, done = [resident_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            found[0] = max(found[0], resident_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found[0] = max(found[0], resident_bytes())


def resident_bytes() -> int:
    """Return this process's resident memory, in bytes."""
    return int(need("psutil", extra="doctor").Process().memory_info().rss)


IN_ATTENTION = 1.2  # time of a method in attention over plain's; recorded: 1.03 to 1.14 of SmolLM2, 0.9 to 1.5 of tiny
ONE_ON_ALL_CORES = 0.8  # speed of one reader on all cores over that of one on each core
PLANNED = 0.9  # of the minutes that is planned for: what an estimate may be wrong by
FITTED = "fitted"  # the job of a plan's ledger
ENOUGH_WINDOWS = 4  # more methods come before more windows than these


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of a run from its start, and the process's largest resident memory in bytes (None: not known)."""

    seconds: float
    peak_bytes: int | None

    @property
    def sentence(self) -> str:
        """Return the estimate in words.

        >>> Estimate(seconds=190.0, peak_bytes=1_230_000_000).sentence
        'about 3 min, 1.2 GB'
        """
        words = f"about {duration(self.seconds)}"
        return words if self.peak_bytes is None else f"{words}, {self.peak_bytes / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """Return a time in one or two units, rounded for an estimate.

    >>> [duration(seconds) for seconds in (0.4, 52, 100, 3000, 8000, 200_000)]
    ['1 s', '50 s', '2 min', '50 min', '2 h 15 min', '56 h']
    """
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"{hours} h {rest} min" if rest and hours < 10 else f"{round(minutes / 60)} h"


def job_seconds(job: Job, pace: Pace) -> float:
    """Return the seconds of one worker for a job."""
    return (IN_ATTENTION if METHODS[job.method].in_attention else 1.0) * pace.seconds(job.work)


def seconds_at_once(jobs: Iterable[float], workers: int) -> float:
    """Return the seconds until all jobs are done, if the first free worker takes the next one.

    >>> seconds_at_once([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    free = [0.0] * max(1, workers)
    for seconds in jobs:
        first = free.index(min(free))
        free[first] += seconds
    return max(free)


def estimate_memory(reader: Reader, trial: Trial, target: int, jobs: Sequence[Job], *, workers: int) -> int | None:
    """Return the largest resident memory of these jobs of losses with `workers` at one time; None if unknown.

    Each worker has a cache of the whole window. Methods that continue plain's beginning of a window keep it next to the
    caches: jobs go window by window, so that there are never more beginnings than workers.
    """
    now = resident_bytes()
    if not now or reader.device.type != "cpu":
        return None
    sharing, beginnings = [job for job in jobs if job.part], 0
    if sharing and isinstance(reader, ReadingOn):
        longest = max(job.part for job in sharing)
        beginnings = min(workers, len({job.window for job in sharing})) * reader.cache_bytes(longest)
    return now + workers * (reader.cache_bytes(target) + trial.workspace) + beginnings


@dataclass(frozen=True)
class Fitted:
    """What fits into a time: windows of each text, and methods; `left_out` says in sentences what does not."""

    windows: int
    methods: tuple[str, ...]
    left_out: tuple[str, ...]


def fit(
    budget: float, *, windows: int, texts: int, methods: Sequence[str], seconds: Callable[[int, Sequence[str]], float]
) -> Fitted:
    """Return the largest part of a plan that fits into `budget` seconds; it always contains plain and crop.

    **Arguments:**
    - `windows`: of each text, as planned. `methods`: as planned, in order.
    - `seconds`: returns the seconds of a run with a number of windows of each text and these methods.

    Windows are left out first, down to four in all; then methods by `Method.priority`, down to one besides plain and
    crop; then further windows; then that method.

    **Raises:** `RopeError` where plain and crop on one window of each text do not fit.
    """
    required = tuple(name for name in methods if name == "plain" or METHODS[name].crops)
    ranked = sorted((name for name in methods if name not in required), key=_rank)
    enough = min(windows, -(-ENOUGH_WINDOWS // texts))
    choices = [(kept, enough) for kept in range(len(ranked), 0, -1)]
    choices += [(kept, fewest) for kept in sorted({min(1, len(ranked)), 0}, reverse=True) for fewest in (enough, 1)]
    for kept, fewest in choices:
        chosen = {*required, *ranked[:kept]}
        named = tuple(name for name in methods if name in chosen)
        for count in range(windows, fewest - 1, -1):
            if seconds(count, named) <= budget:
                return Fitted(windows=count, methods=named, left_out=_left_out(windows, count, methods, named))
    least = seconds(1, required)
    raise RopeError(
        f"doctor: {' and '.join(required)} on one window of each text take longer than that.",
        facts={"minutes left": max(0.0, round(budget / 60, 2)), "minutes needed": round(least / 60, 2)},
        cure="Give more --minutes, or a shorter --target.",
    )


def _rank(name: str) -> tuple[int, int]:
    return METHODS[name].priority, list(METHODS).index(name)


def _left_out(windows: int, count: int, methods: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Return sentences that name what is not measured."""
    gone = [name for name in methods if name not in named]
    said = (
        [f"Left out to fit the time: {windows - count} of {windows} windows of each text."] if count < windows else []
    )
    return (*said, *([f"Left out to fit the time: {', '.join(gone)}."] if gone else []))


def likely_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Return methods that take as long as those for which use will be measured, before the best one is known.

    >>> likely_methods(["plain", "dca", "yarn", "crop"])
    ('plain', 'dca', 'crop')
    """
    others = [name for name in methods if name != "plain" and not METHODS[name].forgets]
    slowest = sorted(others, key=lambda name: METHODS[name].in_attention)[-1:]
    return tuple(name for name in methods if name == "plain" or METHODS[name].crops or name in slowest)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Everything that the time of a run depends on: the model, the plan of its losses, and further measurements.

    - `most_workers`: jobs at one time; None: as cores and memory allow. `every`: whether retrieval asks every method.
    """

    reader: Reader
    plan: Plan
    chunk: int = CHUNK
    most_workers: int | None = None
    use: UseRun | None = None
    retrieval: RetrievalRun | None = None
    every: bool = False

    def workers(self, jobs: int) -> int:
        """Return the number of jobs that run at one time."""
        if self.most_workers is not None:
            return self.most_workers
        return fitting_workers(self.reader, self.plan.protocol.target, jobs)

    def try_out(self, window: Tensor, jobs: Sequence[Job], clock: Clock) -> Trial:
        """Return the trial before these jobs, on a window of the text."""
        ahead = sum((job.work for job in jobs), NOTHING)
        return time_trial(self.reader, window, ahead=ahead, workers=self._busy(jobs), chunk=self.chunk, clock=clock)

    def others(self, examined: Sequence[str]) -> tuple[Job, ...]:
        """Return the jobs due besides the losses; `examined`: the methods for which use is measured."""
        return (*self._readings(examined), *self._texts(examined))

    def seconds(
        self, jobs: Sequence[Job], examined: Sequence[str], trial: Trial, *, windows: int | None = None
    ) -> float:
        """Return the seconds of these jobs, and of all else that is due; `windows` limits their number."""
        workers = self._busy(jobs)
        readings = [job for job in self._readings(examined) if windows is None or job.window < windows]
        measured = {job.method for job in jobs}
        texts = [job for job in self._texts(examined) if windows is None or job.method in measured]
        return (
            seconds_at_once((job_seconds(job, trial.pace) for job in jobs), workers)
            + seconds_at_once((job_seconds(job, trial.pace) for job in readings), workers)
            + self._retrieval_seconds(texts, trial.pace, workers)
        )

    def estimate(self, jobs: Sequence[Job], examined: Sequence[str], trial: Trial) -> Estimate:
        """Return time and memory of these jobs, and of all else that is due."""
        target, workers = self.plan.protocol.target, self._busy(jobs)
        memory = estimate_memory(self.reader, trial, target, jobs, workers=workers)
        return Estimate(seconds=self.seconds(jobs, examined, trial), peak_bytes=memory)

    def _busy(self, jobs: Sequence[Job]) -> int:
        """Return the number of workers for these jobs; for what follows them if none of them is due."""
        return self.workers(len(jobs) or self.plan.protocol.total_windows)

    def _readings(self, examined: Sequence[str]) -> tuple[Job, ...]:
        if self.use is None:
            return ()
        return self.use.due({name: self.use.model(name, self.reader, self.plan) for name in examined})

    def _texts(self, examined: Sequence[str]) -> tuple[Job, ...]:
        if self.retrieval is None:
            return ()
        return self.retrieval.due(self.retrieval.asked_methods(self.plan, examined, every=self.every))

    def _retrieval_seconds(self, jobs: Sequence[Job], pace: Pace, workers: int) -> float:
        """Return the seconds of these texts, which are read one by one, on all cores.

        `pace` is that of one of `workers`. One text of each kind is made, to count the tokens of its questions.
        """
        if self.retrieval is None:
            return 0.0
        counts = {}
        for cell in {job.part for job in jobs}:
            asked = self.retrieval.text(cell, 0).questions
            counts[cell] = sum(len(one.input_ids) + sum(map(len, one.continuations)) for one in asked)
        seconds = 0.0
        for job in jobs:
            count = counts[job.part]
            questions = Workload(calls=1, tokens=count, pairs=count * job.work.tokens, scored=count)
            seconds += job_seconds(dataclasses.replace(job, work=job.work + questions), pace)
        return seconds / max(1.0, ONE_ON_ALL_CORES * workers)


def fit_minutes(
    outlook: Outlook,
    window: Tensor,
    folder: Path,
    *,
    minutes: float,
    resume: bool,
    key: str,
    began: float,
    clock: Clock,
) -> tuple[Fitted, Trial | None]:
    """Return the part of a plan that fits into these minutes from `began` on, and the trial.

    - `window`: of the text, for the trial. `folder`, `key`: of the whole plan's results.

    The choice is kept next to the results: a resumed run has the same windows and methods, and no trial. Of several
    processes rank 0 chooses; the estimate is that of one process, so that they end sooner.
    """
    plan = outlook.plan
    ledger = Ledger(folder / "plan", kind="plan", key=fingerprint(key, minutes, plan.methods))
    _ = ledger.resume() if resume else ledger.begin()
    if FITTED in ledger:
        return _fitted(ledger[FITTED]), None
    jobs, texts = plan.due(Ledger(None, kind=KIND, key=key), chunk=outlook.chunk), len(plan.protocol.texts)
    trial: Trial | None = None

    def seconds(windows: int, methods: Sequence[str]) -> float:
        assert trial is not None
        chosen = [job for job in jobs if job.method in methods and job.window < windows * texts]
        return outlook.seconds(chosen, likely_methods(methods), trial, windows=windows * texts)

    def choose() -> dict[str, Any]:
        nonlocal trial
        trial = outlook.try_out(window, jobs, clock)
        fitted = fit(
            PLANNED * (60 * minutes - (clock() - began)),
            windows=plan.protocol.windows,
            texts=texts,
            methods=plan.methods,
            seconds=seconds,
        )
        ledger.add(FITTED, dataclasses.asdict(fitted))
        return ledger[FITTED]

    return _fitted(current().first(current().numbered(f"minutes/{key}"), choose)), trial


def _fitted(kept: Mapping[str, Any]) -> Fitted:
    return Fitted(kept["windows"], tuple(kept["methods"]), tuple(kept["left_out"]))
