"""How long a model takes to read a text, from a short trial, and how much memory it needs meanwhile."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.optional import need
from ropewalk.readers.reader import CHUNK, Reader

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
class Workload:
    """What reading one or several texts consists of: forwards, tokens, pairs of a query and a key, and tokens scored.

    >>> Workload.of(2000, chunk=1024)
    Workload(calls=2, tokens=2000, pairs=2001000.0, scored=1999)
    """

    calls: int
    tokens: int
    pairs: float
    scored: int

    @classmethod
    def of(cls, tokens: int, *, chunk: int = CHUNK, first: int = 1) -> Workload:
        """One text of so many tokens, in chunks, whose tokens from `first` on are scored."""
        return cls(-(-tokens // chunk), tokens, tokens * (tokens + 1) / 2, max(0, tokens - first))

    def __add__(self, other: Workload) -> Workload:
        return Workload(
            self.calls + other.calls, self.tokens + other.tokens, self.pairs + other.pairs, self.scored + other.scored
        )

    def without(self, beginning: Workload) -> Workload:
        """The rest of one text whose beginning is there already; its last token was scored with it."""
        ends = beginning.scored + (1 if beginning.tokens else 0)
        return Workload(
            self.calls - beginning.calls,
            self.tokens - beginning.tokens,
            self.pairs - beginning.pairs,
            self.scored - ends,
        )

    def times(self, count: int) -> Workload:
        """So many of them."""
        return Workload(count * self.calls, count * self.tokens, count * self.pairs, count * self.scored)

    @property
    def parts(self) -> tuple[int, int, float, int]:
        """The four numbers."""
        return self.calls, self.tokens, self.pairs, self.scored


NOTHING = Workload(0, 0, 0.0, 0)


@dataclass(frozen=True)
class Pace:
    """Seconds of one worker for each forward, token, pair of a query and a key, and scored token."""

    per_call: float
    per_token: float
    per_pair: float
    per_score: float

    def seconds(self, work: Workload) -> float:
        """The seconds of some work.

        >>> Pace(0.0, 1e-3, 0.0, 0.0).seconds(Workload.of(2000))
        2.0
        """
        rates = (self.per_call, self.per_token, self.per_pair, self.per_score)
        return sum(rate * part for rate, part in zip(rates, work.parts, strict=True))


@dataclass(frozen=True)
class Trial:
    """What a trial found: the pace, and the bytes that one worker needs beside the weights and the cache."""

    pace: Pace
    workspace: int


def pace_of(timed: Sequence[tuple[Workload, float]], *, pair_over_token: float, per_call: float) -> Pace:
    """The pace that fits some timed readings best, no part of it below zero.

    `pair_over_token` is what arithmetic says of the time of a pair over that of a token, and `per_call` about the
    seconds of a forward without tokens: short readings say little of both, and long ones overrule them.
    """
    rows = [[part / (NOISE * seconds) for part in reading.parts] for reading, seconds in timed]
    wanted = [1 / NOISE] * len(rows)
    longest, seconds = max(timed, key=lambda one: one[0].tokens)
    by_token = seconds / longest.tokens
    rows.append([0.0, -1 / (DOUBT * by_token), 1 / (DOUBT * by_token * pair_over_token), 0.0])
    rows.append([1 / per_call, 0.0, 0.0, 0.0])
    return Pace(*_not_negative(np.array(rows), np.array([*wanted, 0.0, 1.0])))


def _not_negative(rows: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> list[float]:
    """The least squares solution without negative entries: the best of every choice of columns."""
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    best, found = math.inf, np.zeros(rows.shape[1])
    for count in range(rows.shape[1] + 1):
        for columns in map(list, combinations(range(rows.shape[1]), count)):
            solved = np.linalg.lstsq(rows[:, columns] / scale[columns], wanted)[0] if columns else np.zeros(0)
            error = float(np.square((rows[:, columns] / scale[columns]) @ solved - wanted).sum())
            if (solved >= 0).all() and error < best:
                best, found = error, np.zeros(rows.shape[1])
                found[columns] = solved / scale[columns]
    return [float(one) for one in found]


def pair_over_token(reader: Reader) -> float:
    """About the time of one pair of a query and a key over that of a token, of a decoder of this size and depth.

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
    - `workers`: how many will read at one time, each on its share of the cores: so many read here.
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
    """Lengths to read, doubling, down from the whole text: the last of them is that."""
    halvings = max(0, (tokens // SHORTEST).bit_length() - 1)
    for number in range(halvings, -1, -1):
        yield tokens >> number


def _timed(reader: Reader, input_ids: Tensor, first: int, chunk: int, clock: Clock) -> float:
    """Seconds of one reading: the middle of three where that is short."""
    found: list[float] = []
    while len(found) < 3 and sum(found) < AGAIN:
        started = clock()
        reader.window_losses(input_ids, first=first, chunk=chunk)
        found.append(max(clock() - started, 1e-9))
    return statistics.median(found)


@contextmanager
def _company(reader: Reader, input_ids: Tensor, others: int, cores: int, chunk: int) -> Iterator[None]:
    """For the time of the block, others read as well: memory and caches are shared as they will be."""
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
    """The largest resident memory during the block, in bytes, as the only entry of the list that it gives."""
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
    return int(need("psutil", extra="cli").Process().memory_info().rss)
