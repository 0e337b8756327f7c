"""Time contenders in turns, on buffers that no cache holds, and compare medians."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Call = Callable[[], object]
Clock = Callable[[Sequence[Call]], float]  # microseconds that the calls took together

SAMPLE_US = 300.0  # short calls are timed in bursts of about so long
PAUSE_S = 0.002  # before each sample, so that another runtime's threads have stopped spinning
AWAKE_US = 5000.0  # shorter calls follow an untimed one, so that their own threads are awake
DEFAULT_CACHE = 32 * 2**20


@dataclass(frozen=True)
class Timed:
    """A contender: its name, and its call on each of several sets of buffers."""

    name: str
    calls: Sequence[Call]


def interleave(
    contenders: Sequence[Timed], *, seconds: float, least: int = 5, clock: Clock | None = None
) -> dict[str, dict[str, float]]:
    """Time the contenders in turn until the time is up; p20, p50 and p80 of each, in microseconds a call.

    Contenders take turns in a different order each round, so that the noise of a shared machine meets them all and
    ratios of medians hold even if times do not. Each sample uses the next set of buffers, so that no contender finds in
    the cache what another one just read. A contender that has used its share of the time sits rounds out; each gets
    `least` samples. A new result is freed inside its time, as in use.
    """
    clock = clock or cpu_clock
    once = {timed.name: _once(timed, clock) for timed in contenders}
    bursts = {name: max(1, min(64, round(SAMPLE_US / max(took, 0.1)))) for name, took in once.items()}
    taken: dict[str, list[float]] = {timed.name: [] for timed in contenders}
    spent = dict.fromkeys(taken, 0.0)
    order, shuffle, turn = list(contenders), random.Random(0), 0
    start = time.perf_counter()
    while time.perf_counter() < start + seconds or min(map(len, taken.values())) < least:
        shuffle.shuffle(order)
        for timed in order:
            name, began = timed.name, time.perf_counter()
            if began < start + seconds and spent[name] * len(order) > began - start:
                continue
            sets, count = len(timed.calls), bursts[name]
            calls = [timed.calls[(turn + i) % sets] for i in range(count)]
            time.sleep(PAUSE_S)
            if once[name] < AWAKE_US:
                timed.calls[(turn + count + sets // 2) % sets]()
            taken[name].append(clock(calls) / count)
            spent[name] += time.perf_counter() - began
            turn += count
    return {name: {**percentiles(times), "samples": len(times), "burst": bursts[name]} for name, times in taken.items()}


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return p20, p50 and p80, to a hundredth.

    >>> percentiles([1.0, 2.0, 4.0])
    {'p20': 1.4, 'p50': 2.0, 'p80': 3.2}
    """
    return {f"p{p}": round(float(np.percentile(times, p)), 2) for p in (20, 50, 80)}


def cpu_clock(calls: Sequence[Call]) -> float:
    """Return the wall time of the calls in microseconds."""
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) * 1e6


class CudaClock:
    """Time on the GPU between two events around each call, in microseconds, its L2 cache overwritten before."""

    def __init__(self, device: str) -> None:
        size = 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self.scratch: Tensor = torch.empty(max(size, 2**20), dtype=torch.int8, device=device)

    def __call__(self, calls: Sequence[Call]) -> float:
        new: Any = torch.cuda.Event
        events = []
        for call in calls:
            start, end = new(enable_timing=True), new(enable_timing=True)
            self.scratch.zero_()
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in events)) * 1e3


def last_level_cache() -> int:
    """Return the bytes of the largest cache of a core on Linux; elsewhere 32 MiB."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=DEFAULT_CACHE)


def _once(timed: Timed, clock: Clock) -> float:
    """Return the microseconds of a call: the fastest of three, or the second if it takes long; the first warms up."""
    timed.calls[0]()
    first = clock([timed.calls[-1]])
    return first if first > 1e5 else min(first, *(clock([timed.calls[i]]) for i in (0, -1)))
