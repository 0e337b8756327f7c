"""How the windows of a measurement are read, several at a time, and the time that this takes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import torch

from ropewalk.checkpoints.reader import Advance, Losses, Reader
from ropewalk.diagnosis.evidence import WindowReading
from ropewalk.diagnosis.facts import GROUP, Filled
from ropewalk.diagnosis.plan import CROP, PLAIN, Design, Job, Plan
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.progress import Progress, SilentProgress

MOST_CONTROLS = 48  # facts asked for at the trained length, of one window
BROKEN = 1.0  # nats per token: a rise above any part within the trained length after which a reading is given up
RECENT = 512  # tokens of such a part, and over which that rise is measured
CACHE_BYTES = 2 * 2**30  # for the caches of all concurrent measurements
TRIAL = 1024  # most tokens of the trial
SAFETY = 1.1  # of an estimate of time
SLOWER = 1.3  # attention's time for an operation over that of a matrix product
IN_ATTENTION = 1.2  # time of a method in attention over plain's
Clock = Callable[[], float]


class Stopped(Exception):
    """The exception that ends a worker's job after a failure in another worker or an interruption."""


def fitting_workers(reader: Reader, target: int, jobs: int) -> int:
    """Return the number of workers: at most the cores, the jobs, and the caches of `target` tokens in 2 GiB.

    On an accelerator it is 1. One worker for each core avoids threads waiting for each other, and does not
    change results.
    """
    if reader.device.type != "cpu":
        return 1
    return max(1, min(torch.get_num_threads(), jobs, CACHE_BYTES // max(1, reader.cache_bytes(target))))


def at_once(
    jobs: Sequence[Job],
    measure: Callable[[Job, Advance], None],
    *,
    workers: int,
    progress: Progress | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Measure jobs in a pool of threads; the first exception is raised after all have ended.

    - `workers`: jobs at one time. `until`: no job begins after it returns True.
    - `measure`: gets a job and a function to call with processed tokens. That function counts them, gives the thread
      its current share of the cores, and raises `Stopped` after an exception in another thread.
    """
    shown, stop, lock = progress or SilentProgress(), threading.Event(), threading.Lock()
    cores, busy, numbers = torch.get_num_threads(), set[str](), itertools.count(1)

    def advance(tokens: int) -> None:
        if stop.is_set():
            raise Stopped
        with lock:
            share = max(1, cores // max(1, len(busy)))
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
        with ThreadPoolExecutor(workers) as pool:
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


def read_job(reader: Reader, plan: Plan, job: Job, levels: dict[int, float], advance: Advance) -> dict[str, Any]:
    """Read the window of a job under its method, and return the result for the ledger.

    - `levels`: plain's loss within the trained length, by window, as far as it is known.

    Raises `RopeError` if a loss is not finite.
    """
    started, variant = time.perf_counter(), reader.under(plan.positions[job.method])
    window = plan.filled[job.window]
    if job.method == CROP:
        reading = _read_cropped(variant, window, plan.design, job.window, advance)
    else:
        reading = _read(variant, window, plan.design, job, levels, advance)
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
    counted = window.counted[max(1, start) : end]
    part = losses[max(1, start) - 1 : end - 1]
    return float(part[counted].mean()) if counted.any() else 0.0


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
        seconds, job = max(time.perf_counter() - began, 1e-6), Job.of(PLAIN, 0, "", len(ids))
        width = max(1.0, math.sqrt(reader.parameters / (12 * max(1, len(reader.positions.ropes)))))
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
