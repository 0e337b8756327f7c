"""Concurrent jobs of one ledger, each on its share of the processor's cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ropewalk.diagnosis.ledger import Ledger
from ropewalk.errors import RopeError
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import Reader

CACHE_BYTES = 2 * 2**30  # for the caches of all concurrent measurements
JobT = TypeVar("JobT")


class Stopped(Exception):
    """The exception that ends a worker's job after a failure in another worker or an interruption."""


class _Shares:
    """The processor's cores in equal shares for the workers with a job."""

    def __init__(self, cores: int) -> None:
        self.cores, self._busy, self._lock = cores, 0, threading.Lock()

    @contextmanager
    def job(self) -> Iterator[None]:
        """Count this worker inside the block, and give it its share."""
        with self._lock:
            self._busy += 1
        _HERE.shares = self
        try:
            self.take()
            yield
        finally:
            _HERE.shares = None
            with self._lock:
                self._busy -= 1

    def take(self) -> None:
        """Set this thread's number of cores to its current share, which does not change its results."""
        share = max(1, self.cores // max(1, self._busy))
        if share != torch.get_num_threads():
            torch.set_num_threads(share)


_HERE = threading.local()
"""The `shares` of a worker's thread."""


class WorkersProgress:
    """The `Progress` of several workers, with numbered pieces of work; raises `Stopped` after `stop` is set.

    - `pieces`: their number.
    """

    def __init__(self, progress: Progress | None, stop: threading.Event, *, pieces: int) -> None:
        self.progress, self.stop, self.pieces = progress or SilentProgress(), stop, pieces
        self._begun, self._one_at_a_time = 0, threading.Lock()

    def begin(self, description: str, tokens: int) -> None:
        """Begin a piece of work with `tokens` tokens to process."""
        with self._one_at_a_time:
            self._begun += 1
            self.progress.begin(f"[{self._begun}/{self.pieces}] {description}", tokens)

    def advance(self, tokens: int) -> None:
        """Count `tokens` more processed tokens, and update the cores of the worker's thread.

        Raises `Stopped` after `stop` is set.
        """
        if self.stop.is_set():
            raise Stopped
        shares: _Shares | None = getattr(_HERE, "shares", None)
        if shares is not None:
            shares.take()
        with self._one_at_a_time:
            self.progress.advance(tokens)


def fitting_workers(reader: Reader, target: int, jobs: int) -> int:
    """Return the number of workers: at most the cores, the jobs, and the caches of `target` tokens in 2 GiB.

    On an accelerator it is 1. One worker for each core avoids threads waiting for each other, and does not
    change results.
    """
    if reader.device.type != "cpu":
        return 1
    return max(1, min(torch.get_num_threads(), jobs, CACHE_BYTES // max(1, reader.cache_bytes(target))))


def complete(
    ledger: Ledger,
    jobs: Sequence[JobT],
    key: Callable[[JobT], str],
    measure: Callable[[JobT], Mapping[str, Any]],
    *,
    workers: int = 1,
    stop: threading.Event | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Measure every job that the ledger lacks, and save each result as it is computed.

    **Arguments:**
    - `key`: returns a job's key in the ledger. `measure`: returns its result, a JSON object, in a worker's thread.
    - `until`: no job begins after it returns True.
    - `stop`: set when an error or Ctrl-C ends the run; `measure` should then raise `Stopped` soon.

    **Raises:** `RopeError` for `workers` below 1, and the exceptions of `measure`.
    """
    if workers < 1:
        raise RopeError("doctor: `workers` must be at least 1.", facts={"workers": workers}, cure="Pass 1 or more.")

    def attempt(job: JobT) -> None:
        if not until():
            ledger.add(key(job), measure(job))

    due = [job for job in jobs if key(job) not in ledger]
    if workers > 1:
        _at_once(due, attempt, workers=workers, stop=stop or threading.Event())
        return
    for job in due:
        attempt(job)


def _at_once(jobs: Sequence[JobT], attempt: Callable[[JobT], None], *, workers: int, stop: threading.Event) -> None:
    """Attempt every job in a pool; the first exception sets `stop`, and is raised after all jobs have ended."""
    all_cores = torch.get_num_threads()
    shares = _Shares(all_cores)

    def with_a_share(job: JobT) -> None:
        with shares.job():
            attempt(job)

    try:
        with ThreadPoolExecutor(workers) as pool:
            try:
                for done in as_completed([pool.submit(with_a_share, job) for job in jobs]):
                    done.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(all_cores)  # a worker's setting is also the default of later threads
