"""Jobs of one ledger, several at a time, each on its share of the processor's cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.processes import current
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import Reader

CACHE_BYTES = 2 * 2**30  # caches of all measurements that go on at one time
POLL_SECONDS = 0.5  # between two looks at jobs that another process has leased
JobT = TypeVar("JobT")


class Stopped(Exception):
    """Raised in a worker at its next step once the others are to stop as well."""


class _Shares:
    """The processor's cores, in equal parts for the workers that have a job: the last one gets all of them."""

    def __init__(self, cores: int) -> None:
        self.cores, self._busy, self._lock = cores, 0, threading.Lock()

    @contextmanager
    def job(self) -> Iterator[None]:
        """While this worker has a job."""
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
        """Compute with this worker's part from now on; it finds the same numbers."""
        share = max(1, self.cores // max(1, self._busy))
        if share != torch.get_num_threads():
            torch.set_num_threads(share)


_HERE = threading.local()
"""Of a worker's thread: the `shares` that it takes its part of."""


class WorkersProgress:
    """How several workers report to one `Progress`: one at a time, their pieces numbered, none after `stop` is set.

    - `pieces`: how many there will be.
    """

    def __init__(self, progress: Progress | None, stop: threading.Event, *, pieces: int) -> None:
        self.progress, self.stop, self.pieces = progress or SilentProgress(), stop, pieces
        self._begun, self._one_at_a_time = 0, threading.Lock()

    def begin(self, description: str, tokens: int) -> None:
        """A piece of work begins, for which so many tokens will go through the model."""
        with self._one_at_a_time:
            self._begun += 1
            self.progress.begin(f"[{self._begun}/{self.pieces}] {description}", tokens)

    def advance(self, tokens: int) -> None:
        """So many more tokens have gone through the model: called in the worker's thread, whose cores it shares out.

        Raises `Stopped` once the work is to end.
        """
        if self.stop.is_set():
            raise Stopped
        shares: _Shares | None = getattr(_HERE, "shares", None)
        if shares is not None:
            shares.take()
        with self._one_at_a_time:
            self.progress.advance(tokens)


def fitting_workers(reader: Reader, target: int, jobs: int) -> int:
    """As many as there are cores, jobs, and room for caches of `target` tokens in 2 GiB; one on an accelerator.

    A worker for each core spends nothing on threads that wait for each other, and finds the same numbers.
    """
    if reader.device.type != "cpu" or current().together:
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
) -> None:
    """Have every job's result in the ledger: measured here, or by another process that has leased it.

    **Arguments:**
    - `key`: the job's key in the ledger. `measure`: its result, a JSON object; called in a worker's thread.
    - `stop`: set when an error or Ctrl-C ends the run; `measure` should then raise `Stopped` soon.

    Jobs that another process holds come last: they are waited for, and taken over where that process is gone. Every
    result is kept as soon as it is there. **Raises:** `RopeError` for `workers` below 1, and what `measure` raises.
    """
    if workers < 1:
        raise RopeError("doctor: `workers` must be at least 1.", facts={"workers": workers}, cure="Give 1 or more.")
    stop = stop or threading.Event()

    def attempt(job: JobT) -> None:
        with ledger.lease(key(job)) as ours:
            if not ours:
                return
            ledger.refresh()  # another process may have measured it just before
            if key(job) not in ledger:
                ledger.add(key(job), measure(job))

    due = [job for job in jobs if key(job) not in ledger]
    while due:
        if workers == 1:
            for job in due:
                attempt(job)
        else:
            _at_once(due, attempt, workers=workers, stop=stop)
        ledger.refresh()
        due = [job for job in due if key(job) not in ledger]
        if due:
            stop.wait(POLL_SECONDS)


def _at_once(jobs: Sequence[JobT], attempt: Callable[[JobT], None], *, workers: int, stop: threading.Event) -> None:
    """Attempt every job in a pool; what ends one of them sets `stop`, and is raised once all have ended."""
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
        torch.set_num_threads(all_cores)  # what a worker sets is also where every later thread begins
