"""The doctor's run: each job measured once, kept, and gathered."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.diagnosis.beginnings import Beginnings
from ropewalk.diagnosis.measurement import Measurement, WindowResult, peak_memory
from ropewalk.diagnosis.plan import Job, Plan, shared_tokens
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.methods import METHODS
from ropewalk.progress import Progress
from ropewalk.readers.losses import cropped_losses
from ropewalk.readers.reader import CHUNK, Losses, Reader, ReadingOn
from ropewalk.readers.workers import WorkersProgress, complete


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
    protocol, stop, due = plan.protocol, threading.Event(), plan.due(ledger)
    shown = WorkersProgress(progress, stop, pieces=len(due))
    plain: dict[int, Losses] = {}
    beginnings = None
    as_plain = reader.under(plan.positions["plain"]) if "plain" in plan.positions else None
    if isinstance(as_plain, ReadingOn):
        shared = {name: shared_tokens(name, protocol, chunk) for name in plan.methods}
        beginnings = Beginnings(as_plain, shared, due, chunk=chunk)

    def measure(job: Job) -> dict[str, Any]:
        shown.begin(f"{job.method}, window {job.window + 1} of {protocol.total_windows}", job.tokens)
        started, spent_before = time.perf_counter(), 0.0
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
                advance=shown.advance,
            )
        elif beginnings is not None and job.method == "plain":
            losses = beginnings.read_plain(ids, job.window, advance=shown.advance)
        elif beginnings is not None and beginnings.shared[job.method] and isinstance(variant, ReadingOn):
            losses, spent_before = beginnings.read(variant, job.method, ids, job.window, advance=shown.advance)
        else:
            losses = variant.window_losses(ids, chunk=chunk, advance=shown.advance)
        if job.method == "plain":
            plain[job.window] = losses
        return _sums(losses, protocol, job.method, time.perf_counter() - started + spent_before).to_json()

    complete(ledger, due, lambda job: plan.key(job.method, job.window), measure, workers=workers, stop=stop)
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


def _sums(losses: Losses, protocol: Protocol, method: str, seconds: float) -> WindowResult:
    if not np.isfinite(losses).all():
        raise RopeError(
            "measurement: a loss is not a finite number.",
            facts={"method": method, "first such token": int(np.flatnonzero(~np.isfinite(losses))[0]) + 1},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
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
