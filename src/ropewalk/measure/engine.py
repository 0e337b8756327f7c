"""Run the jobs of a measurement, each once, several at a time, and save every result in a ledger at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.progress import Progress
from ropewalk.readers.reader import CHUNK, Advance, Losses
from ropewalk.readers.workers import WorkersProgress, complete


@dataclass(frozen=True)
class Workload:
    """The work of processing texts: forward passes, tokens, pairs of a query and a key, and tokens scored.

    >>> Workload.of(2000, chunk=1024)
    Workload(calls=2, tokens=2000, pairs=2001000.0, scored=1999)
    """

    calls: int
    tokens: int
    pairs: float
    scored: int

    @classmethod
    def of(cls, tokens: int, *, chunk: int = CHUNK, first: int = 1) -> Workload:
        """Return the work of one text of `tokens` tokens, in chunks; scoring starts at token `first`."""
        return cls(-(-tokens // chunk), tokens, tokens * (tokens + 1) / 2, max(0, tokens - first))

    def __add__(self, other: Workload) -> Workload:
        return Workload(
            self.calls + other.calls, self.tokens + other.tokens, self.pairs + other.pairs, self.scored + other.scored
        )

    def times(self, count: int) -> Workload:
        """Return this work, `count` times."""
        return Workload(count * self.calls, count * self.tokens, count * self.pairs, count * self.scored)

    @property
    def parts(self) -> tuple[int, int, float, int]:
        """Return the four numbers."""
        return self.calls, self.tokens, self.pairs, self.scored


NOTHING = Workload(0, 0, 0.0, 0)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work of a measurement.

    - `method`: the method that is measured. `window`: the number of its window or text.
    - `key`: the job's key in the ledger. `description`: the job as progress shows it.
    - `tokens`: tokens that progress counts. `work`: the model's work, for estimates.
    """

    method: str
    window: int
    key: str
    description: str
    tokens: int
    work: Workload


def due(jobs: Iterable[Job], ledger: Ledger) -> tuple[Job, ...]:
    """Return the jobs without a result in the ledger."""
    return tuple(job for job in jobs if job.key not in ledger)


def run_jobs(
    ledger: Ledger,
    jobs: Iterable[Job],
    measure: Callable[[Job, Advance], Mapping[str, Any]],
    *,
    workers: int = 1,
    progress: Progress | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Measure every job that is due, and save each result as it is computed.

    **Arguments:**
    - `measure`: returns a job's result, a JSON object; called in a worker's thread. The engine adds `seconds`.
    - `workers`: jobs at one time, each on its share of the cores.
    - `until`: no job begins after it returns True; the remaining jobs stay due.

    A KeyboardInterrupt passes through; finished results are in the ledger.
    """
    waiting, stop = due(jobs, ledger), threading.Event()
    shown = WorkersProgress(progress, stop, pieces=len(waiting))

    def timed(job: Job) -> Mapping[str, Any]:
        shown.begin(job.description, job.tokens)
        started = time.perf_counter()
        result = measure(job, shown.advance)
        return {**result, "seconds": time.perf_counter() - started}

    complete(ledger, waiting, lambda job: job.key, timed, workers=workers, stop=stop, until=until)


def check_finite(losses: Losses, method: str, *, first: int = 1) -> None:
    """Raise `RopeError` if a loss is not finite; `first` is the token of the first loss."""
    if not np.isfinite(losses).all():
        raise RopeError(
            "measurement: a loss is not a finite number.",
            facts={"method": method, "first such token": first + int(np.flatnonzero(~np.isfinite(losses))[0])},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
