"""Estimate the time and memory of a measurement from a short trial."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.diagnosis.plan import Job, Work
from ropewalk.methods import METHODS
from ropewalk.optional import need
from ropewalk.readers.reader import CHUNK, Reader

Clock = Callable[[], float]
TRIAL = 1024  # most tokens of the trial
SLOWER = 1.3  # attention's time for an operation over that of a matrix product
IN_ATTENTION = 1.2  # time of a method in attention over plain's
SHARED = 1.1  # time of a job beside others over its time alone on its share of the cores
BUSY = 0.7  # of its cores: with less processor time, the machine is busy with other work


@dataclass(frozen=True)
class Pace:
    """Seconds of one worker for each token, and for each pair of a query and a key.

    - `cores`: the share of its cores that the trial got. `memory`: bytes of one worker beside weights and cache.
    """

    per_token: float
    per_pair: float
    cores: float = 1.0
    memory: int = 0

    def seconds(self, work: Work) -> float:
        """Return the seconds of some work.

        >>> Pace(1e-3, 0.0).seconds(Work.of(2000))
        2.0
        """
        return self.per_token * work.tokens + self.per_pair * work.pairs

    def of_job(self, job: Job) -> float:
        """Return the seconds of one worker for a job."""
        return (IN_ATTENTION if METHODS[job.method].in_attention else 1.0) * self.seconds(job.work)

    def memory_of(self, reader: Reader, target: int, workers: int) -> str:
        """Return the largest resident memory of a run as words, such as ", 1.2 GB"; empty if it is unknown."""
        if reader.device.type != "cpu" or not self.memory:
            return ""
        each = reader.cache_bytes(target) + self.memory
        return f", {(resident_bytes() + workers * each) / 1e9:.1f} GB"

    @property
    def busy(self) -> str | None:
        """Return a sentence if the machine is busy with other work, else None."""
        if self.cores >= BUSY:
            return None
        return f"This machine is busy: the trial got {100 * self.cores:.0f} % of its cores, so everything takes longer."


def try_out(reader: Reader, input_ids: Tensor, *, workers: int = 1, clock: Clock = time.perf_counter) -> Pace:
    """Time one pass over the beginning of a text on one worker's share of the cores, after a short one.

    The time of a pair over that of a token comes from the model's size: with L layers of width d, a token costs
    24 L d^2 operations and a pair 4 L d, and there are about 12 L d^2 parameters.
    """
    cores = torch.get_num_threads()
    share = max(1, cores // workers)
    before = resident_bytes()
    try:
        torch.set_num_threads(share)
        reader.window_losses(input_ids[:64], chunk=CHUNK)
        ids = input_ids[:TRIAL]
        began, work = clock(), time.process_time()
        reader.window_losses(ids, chunk=CHUNK)
        spent = max(clock() - began, 1e-6)
        got = (time.process_time() - work) / spent / min(share, os.cpu_count() or 1)
    finally:
        torch.set_num_threads(cores)
    width = max(1.0, math.sqrt(reader.parameters / (12 * max(1, len(reader.positions.ropes)))))
    ratio, done = SLOWER / (6 * width), Work.of(len(ids))
    per_token = spent / (done.tokens + ratio * done.pairs) * (SHARED if workers > 1 else 1.0)
    on_cpu = reader.device.type == "cpu"
    memory = max(0, resident_bytes() - before - reader.cache_bytes(len(ids)))
    return Pace(per_token, ratio * per_token, got if on_cpu and share == 1 else 1.0, memory * CHUNK // len(ids))


def seconds_at_once(jobs: Iterable[float], workers: int) -> float:
    """Return the seconds until all jobs are done, if the first free worker takes the next job.

    >>> seconds_at_once([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    free = [0.0] * max(1, workers)
    for seconds in jobs:
        free[free.index(min(free))] += seconds
    return max(free)


def resident_bytes() -> int:
    """Return this process's resident memory, in bytes."""
    return int(need("psutil", extra="doctor").Process().memory_info().rss)


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
