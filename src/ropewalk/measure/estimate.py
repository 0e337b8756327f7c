"""Estimate the time and memory of a measurement from a short trial."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ropewalk.measure.engine import NOTHING, Job, Workload
from ropewalk.measure.plan import Plan
from ropewalk.methods import METHODS
from ropewalk.optional import need
from ropewalk.readers.reader import CHUNK, Reader
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
    """Seconds of one worker for each forward pass, token, pair of a query and a key, and scored token."""

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
    """The result of a trial: the pace, and the bytes one worker needs in addition to the weights and the cache."""

    pace: Pace
    workspace: int


def pace_of(timed: Sequence[tuple[Workload, float]], *, pair_over_token: float, per_call: float) -> Pace:
    """Fit a pace without negative parts to timed passes.

    - `pair_over_token`: the expected time of a pair over that of a token. `per_call`: about the seconds of a forward
      pass without tokens. Both are priors: short passes contain little information about them, and long ones dominate.
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
    """Return the approximate time of a pair of a query and a key over that of a token, for this size and depth.

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
    """Time passes over the beginning of a text, each twice as long as the last, and estimate the pace.

    **Arguments:**
    - `input_ids`: int64 `[tokens]`, a window of the text. `ahead`: the work to estimate. The trial takes at most a
      thirtieth of its time, but 1.5 to 12 seconds.
    - `workers`: workers at one time, each on its share of the cores; the trial uses the same number.
    - `clock`: returns seconds.

    **Returns:** a `Trial`. The first, shortest pass is not counted.
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
    """Return the lengths to process, doubling up to the whole text."""
    halvings = max(0, (tokens // SHORTEST).bit_length() - 1)
    for number in range(halvings, -1, -1):
        yield tokens >> number


def _timed(reader: Reader, input_ids: Tensor, first: int, chunk: int, clock: Clock) -> float:
    """Return the seconds of one pass: the median of three if it is short."""
    found: list[float] = []
    while len(found) < 3 and sum(found) < AGAIN:
        started = clock()
        reader.window_losses(input_ids, first=first, chunk=chunk)
        found.append(max(clock() - started, 1e-9))
    return statistics.median(found)


@contextmanager
def _company(reader: Reader, input_ids: Tensor, others: int, cores: int, chunk: int) -> Iterator[None]:
    """Run other workers during the block, so memory and caches are shared as in the run."""
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
    """Yield a list; after the block it contains the largest resident memory during the block, in bytes."""
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
    """Return the seconds until all jobs are done, if the first free worker takes the next job.

    >>> seconds_at_once([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    free = [0.0] * max(1, workers)
    for seconds in jobs:
        first = free.index(min(free))
        free[first] += seconds
    return max(free)


def estimate_memory(reader: Reader, trial: Trial, target: int, *, workers: int) -> int | None:
    """Return the largest resident memory of these jobs of losses with `workers` at one time; None if unknown.

    Each worker has a cache of the whole window.
    """
    now = resident_bytes()
    if not now or reader.device.type != "cpu":
        return None
    return now + workers * (reader.cache_bytes(target) + trial.workspace)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The inputs of an estimate: the model and the plan of its losses.

    - `most_workers`: most jobs at one time; None: as many as cores and memory allow.
    """

    reader: Reader
    plan: Plan
    chunk: int = CHUNK
    most_workers: int | None = None

    def workers(self, jobs: int) -> int:
        """Return the number of jobs that run at one time."""
        if self.most_workers is not None:
            return self.most_workers
        return fitting_workers(self.reader, self.plan.protocol.target, jobs)

    def try_out(self, window: Tensor, jobs: Sequence[Job], clock: Clock) -> Trial:
        """Run the trial for these jobs on a window of the text, and return it."""
        ahead = sum((job.work for job in jobs), NOTHING)
        workers = self.workers(len(jobs))
        return time_trial(self.reader, window, ahead=ahead, workers=workers, chunk=self.chunk, clock=clock)

    def seconds(self, jobs: Sequence[Job], trial: Trial) -> float:
        """Return the seconds of these jobs."""
        return seconds_at_once((job_seconds(job, trial.pace) for job in jobs), self.workers(len(jobs)))

    def memory(self, jobs: Sequence[Job], trial: Trial) -> int | None:
        """Return the largest resident memory of these jobs in bytes; None if it is unknown."""
        target = self.plan.protocol.target
        return estimate_memory(self.reader, trial, target, workers=self.workers(len(jobs)))
