"""Measure losses: each method on each window once, kept in a ledger, and gathered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.ledger import Ledger
from ropewalk.measure.engine import Job, check_finite, run_jobs
from ropewalk.measure.losses import Measurement, WindowResult, peak_memory
from ropewalk.measure.plan import Plan, Protocol, shared_tokens
from ropewalk.methods import METHODS
from ropewalk.progress import Progress
from ropewalk.readers.beginning import Beginning
from ropewalk.readers.losses import cropped_losses
from ropewalk.readers.reader import CHUNK, Advance, Losses, Reader, ReadingOn

KEPT_BYTES = 2**30  # of all beginnings that wait at one time; what does not fit is read again


class Beginnings:
    """Plain's beginnings of windows, kept from when plain has read them until no job that is due wants them.

    A method that equals plain in a window's first tokens takes these from plain in any case, from here or by reading
    them again: so its numbers do not depend on what was kept, nor on what a run was resumed from.

    - `plain`: the reader under plain. `shared`: for each method how many tokens it takes over; 0 for most.
    - `due`: the jobs of the run. `chunk`: tokens of one forward.
    """

    def __init__(self, plain: ReadingOn, shared: Mapping[str, int], due: Sequence[Job], *, chunk: int) -> None:
        self.plain, self.shared, self.chunk = plain, shared, chunk
        self._wanted: dict[int, list[int]] = {}
        for job in due:
            if shared[job.method]:
                self._wanted.setdefault(job.window, []).append(shared[job.method])
        self._kept: dict[int, Beginning] = {}
        self._lock = threading.Lock()

    def read_plain(self, ids: Tensor, window: int, *, advance: Advance) -> Losses:
        """Plain's losses of a window, its beginning kept where others want it and there is room."""
        keep = max(self._wanted.get(window, ()), default=0)
        if not keep or self.plain.cache_bytes(keep) > KEPT_BYTES:
            return self.plain.window_losses(ids, chunk=self.chunk, advance=advance)

        def add(beginning: Beginning) -> None:
            with self._lock:
                if not self._wanted[window]:
                    return  # they came before it and have read for themselves
                self._kept[window] = beginning
                while sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
                    self._kept.pop(next(iter(self._kept)))  # the oldest: jobs go window by window

        return self.plain.reading_on(ids, keep=keep, kept=add, chunk=self.chunk, advance=advance)

    def read(
        self, variant: ReadingOn, method: str, ids: Tensor, window: int, *, advance: Advance
    ) -> tuple[Losses, float]:
        """A method's losses of a window, and the seconds that others spent on what it took over."""
        tokens = self.shared[method]
        with self._lock:
            beginning = self._kept.get(window)
            waiting = self._wanted[window]
            waiting.remove(tokens)
            if not waiting:
                self._kept.pop(window, None)
        spent = 0.0
        if beginning is None:
            beginning = self._again(ids, tokens, advance)
        else:
            spent = beginning.seconds * tokens / beginning.tokens
            advance(tokens)
        losses = variant.reading_on(ids, after=(beginning, tokens), chunk=self.chunk, advance=advance)
        return losses, spent

    def _again(self, ids: Tensor, tokens: int, advance: Advance) -> Beginning:
        found: list[Beginning] = []
        append: Callable[[Beginning], None] = found.append
        self.plain.reading_on(ids[: tokens + 1], keep=tokens, kept=append, chunk=self.chunk, advance=advance)
        return found[0]


def run(
    reader: Reader,
    windows: Tensor,
    plan: Plan,
    ledger: Ledger,
    *,
    chunk: int = CHUNK,
    workers: int = 1,
    progress: Progress | None = None,
) -> Measurement:
    """Do every job of the plan that is due, keeping each result in the ledger as soon as it is there, and gather them.

    `workers` jobs go on at once, each on its share of the cores. Jobs that another process has leased are waited for.
    A KeyboardInterrupt passes through: what
    was done is in the ledger. Raises `RopeError` where a loss is not finite.
    """
    protocol, jobs = plan.protocol, plan.due(ledger, chunk=chunk)
    plain: dict[int, Losses] = {}
    beginnings = None
    as_plain = reader.under(plan.positions["plain"]) if "plain" in plan.positions else None
    if isinstance(as_plain, ReadingOn):
        shared = {name: shared_tokens(name, protocol, chunk) for name in plan.methods}
        beginnings = Beginnings(as_plain, shared, jobs, chunk=chunk)

    def measure(job: Job, advance: Advance) -> dict[str, Any]:
        spent_before = 0.0
        variant, ids = reader.under(plan.positions[job.method]), windows[job.window]
        if METHODS[job.method].crops:
            losses = cropped_losses(
                variant,
                ids,
                trained_length=protocol.trained_length,
                stride=protocol.stride,
                beginning=plain.get(job.window) if job.window in plain else _beginning(as_plain, ids, protocol, chunk),
                seq_len=plan.crop_seq_len,
                chunk=chunk,
                advance=advance,
            )
        elif beginnings is not None and job.method == "plain":
            losses = beginnings.read_plain(ids, job.window, advance=advance)
        elif beginnings is not None and beginnings.shared[job.method] and isinstance(variant, ReadingOn):
            losses, spent_before = beginnings.read(variant, job.method, ids, job.window, advance=advance)
        else:
            losses = variant.window_losses(ids, chunk=chunk, advance=advance)
        if job.method == "plain":
            plain[job.window] = losses
        check_finite(losses, job.method)
        return _sums(losses, protocol, spent_before).to_json()

    run_jobs(ledger, jobs, measure, workers=workers, progress=progress)
    return gather(plan, ledger)


def _beginning(plain: Reader | None, ids: Tensor, protocol: Protocol, chunk: int) -> Losses | None:
    """The losses of a window's first tokens as plain's pass over all of it finds them, to the bit: by whole chunks.

    So crop's numbers do not depend on which process has read plain. The token after the last chunk is read for the loss
    of its last row alone.
    """
    whole = -(-protocol.trained_length // chunk) * chunk
    if plain is None:
        return None
    return plain.window_losses(ids[: whole + 1], seq_len=protocol.target, chunk=chunk)


def _sums(losses: Losses, protocol: Protocol, seconds: float) -> WindowResult:
    """Return the sums of a window's losses; `seconds`: those that others spent on what was taken over."""
    by_position = np.concatenate([[0.0], losses])
    sums = tuple(float(by_position[start:end].sum()) for start, end in protocol.blocks)
    return WindowResult(sums, float(by_position[: protocol.trained_length].sum()), seconds, peak_memory())


def gather(plan: Plan, ledger: Ledger) -> Measurement:
    """The measurement of a finished plan, each method under its own name."""
    results = {
        name: tuple(
            WindowResult.from_json(ledger[plan.key(plan.same_as.get(name, name), window)])
            for window in range(plan.protocol.total_windows)
        )
        for name in plan.methods
    }
    return Measurement(
        protocol=plan.protocol,
        own=plan.own,
        positions=plan.positions,
        same_as=plan.same_as,
        results=results,
        config_form=plan.config_form,
    )
