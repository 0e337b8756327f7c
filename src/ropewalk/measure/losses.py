"""Losses of every method on every window: the run, and what it measured."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.measure.engine import Job, check_finite, run_jobs
from ropewalk.measure.plan import LossProtocol, Plan, shared_tokens
from ropewalk.methods import METHODS, ConfigForm
from ropewalk.models.config import Positions
from ropewalk.optional import need
from ropewalk.progress import Progress
from ropewalk.readers.losses import cropped_losses
from ropewalk.readers.reader import CHUNK, Advance, Beginning, Losses, Reader, ReadingOn

PLAIN, CROP = "plain", "crop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowLosses:
    """Each method's mean loss in nats per token, window by window.

    - `within`: of the tokens up to the `trained` length. `beyond`: of those after it, up to the `target`; empty where
      there are none. Methods that were measured once for two are in it once; `plain` is.
    - `frequencies`: what smoothed token frequencies of the text outside the window lose on the tokens of `within`.
    - `stretches`: `[start, end)` of some parts of the positions beyond, which `by_stretch` has for each window.
    - `texts`: how many; the windows of each follow one another, as many of each.

    Raises `RopeError` where the windows differ in number, or plain is missing.
    """

    trained: int
    target: int
    within: Mapping[str, Sequence[float]]
    frequencies: Sequence[float]
    beyond: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    stretches: tuple[tuple[int, int], ...] = ()
    by_stretch: Mapping[str, Sequence[Sequence[float]]] = dataclasses.field(default_factory=dict)
    texts: int = 1

    def __post_init__(self) -> None:
        counts = {len(values) for values in (*self.within.values(), *self.beyond.values(), self.frequencies)}
        known = not self.beyond or (
            self.beyond.keys() == self.within.keys() == self.by_stretch.keys() and bool(self.stretches)
        )
        if PLAIN not in self.within or counts == {0} or len(counts) != 1 or not known or self.windows % self.texts:
            raise RopeError(
                "verdict: every method needs one loss for each window, and plain must be among them.",
                facts={
                    "windows within": {name: len(values) for name, values in self.within.items()},
                    "windows beyond": {name: len(values) for name, values in self.beyond.items()},
                    "windows of token frequencies": len(self.frequencies),
                    "texts": self.texts,
                },
                cure="Measure plain and every other method on the same windows.",
            )

    @property
    def windows(self) -> int:
        """Return the number of windows of all texts."""
        return len(self.within[PLAIN])

    def over_texts(self) -> WindowLosses:
        """Return the same with one mean for each text instead of its windows."""

        def means(values: Sequence[float]) -> list[float]:
            return [float(mean) for mean in np.reshape(values, (self.texts, -1)).mean(1)]

        return dataclasses.replace(
            self,
            within={name: means(values) for name, values in self.within.items()},
            frequencies=means(self.frequencies),
            beyond={name: means(values) for name, values in self.beyond.items()},
            by_stretch={
                name: np.transpose([means(column) for column in zip(*rows, strict=True)]).tolist()
                for name, rows in self.by_stretch.items()
            },
        )


MOST_STRETCHES = 3


@dataclasses.dataclass(frozen=True)
class WindowResult:
    """One method on one window: sums of losses in nats per block and within the trained length; seconds of work.

    `peak_rss_bytes` is the process's largest resident memory by then; None in records from Windows before psutil.
    """

    block_sums: tuple[float, ...]
    within_sum: float
    seconds: float
    peak_rss_bytes: int | None = None

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> WindowResult:
        """Return the result that the ledger contains as JSON."""
        return cls(tuple(result["block_sums"]), result["within_sum"], result["seconds"], result["peak_rss_bytes"])

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON for the ledger."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Every method's results, window by window, and the positions that they were measured with.

    `own` are the model's positions as it was given; `same_as` names, for a method whose frequencies equal an earlier
    one's at this length, that earlier method. `frequencies`: for each window what token frequencies lose on the tokens
    of `within`; None where they were not counted. `config_form`: where the model's config says its ropes.
    """

    protocol: LossProtocol
    own: Positions
    positions: dict[str, Positions]
    same_as: dict[str, str]
    results: dict[str, tuple[WindowResult, ...]]
    frequencies: tuple[float, ...] | None = None
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    def block_means(self, method: str) -> list[list[float]]:
        """Return `[window][block]`, the mean loss in nats per token."""
        counts = _block_counts(self.protocol)
        return [
            [total / count for total, count in zip(result.block_sums, counts, strict=True)]
            for result in self.results[method]
        ]

    def within(self, method: str) -> list[float]:
        """Return for each window the mean loss of tokens 1 .. trained_length - 1."""
        count = min(self.protocol.trained_length, self.protocol.target) - 1
        return [result.within_sum / count for result in self.results[method]]

    def beyond(self, method: str) -> list[float] | None:
        """Return for each window the mean loss of tokens from trained_length on; None if there are none."""
        count = self.protocol.target - self.protocol.trained_length
        if count <= 0:
            return None
        return [(sum(result.block_sums) - result.within_sum) / count for result in self.results[method]]

    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Return `[start, end)` of at most three parts beyond the trained length, each of whole blocks."""
        trained = self.protocol.trained_length
        ends = [end for _, end in self.protocol.blocks if end > trained]
        parts = min(MOST_STRETCHES, len(ends))
        cuts = [trained, *(ends[len(ends) * (part + 1) // parts - 1] for part in range(parts))]
        return tuple(pairwise(cuts))

    def by_stretch(self, method: str) -> list[list[float]]:
        """Return `[window][stretch]`, the mean loss in nats per token."""
        ends = [end for _, end in self.protocol.blocks]
        rows = []
        for result in self.results[method]:
            until = dict(zip(ends, accumulate(result.block_sums), strict=True))
            until[self.protocol.trained_length] = result.within_sum
            rows.append([(until[end] - until[start]) / (end - start) for start, end in self.stretches()])
        return rows

    def losses(self) -> WindowLosses:
        """Return the losses for a verdict: those of every distinct method, and crop.

        Raises `RopeError` where token frequencies were not counted.
        """
        if self.frequencies is None:
            raise RopeError(
                "verdict: the losses of token frequencies are not in this measurement.",
                facts={"methods": list(self.results)},
                cure="Measure by `ropewalk.doctor`, or add `token_frequencies.frequency_losses`.",
            )
        names = [name for name in self.results if name not in self.same_as]
        beyond = {name: values for name in names if (values := self.beyond(name)) is not None}
        return WindowLosses(
            trained=self.protocol.trained_length,
            target=self.protocol.target,
            within={name: self.within(name) for name in names},
            frequencies=self.frequencies,
            beyond=beyond,
            stretches=self.stretches() if beyond else (),
            by_stretch={name: self.by_stretch(name) for name in beyond},
            texts=len(self.protocol.texts),
        )


def _block_counts(protocol: LossProtocol) -> list[int]:
    """Return the number of losses in each block: the first token of a window has none."""
    return [end - max(start, 1) for start, end in protocol.blocks]


def peak_memory() -> int:
    """Return this process's largest resident memory so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return int(need("psutil", extra="doctor").Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def frequency_losses(texts: Sequence[Sequence[int]], protocol: LossProtocol, *, vocab_size: int) -> tuple[float, ...]:
    """Return for each window the mean loss within the trained length of token frequencies counted outside the window.

    A token that occurs c times among the N tokens of its text outside the window, T of them distinct, has the
    probability (c + T / V) / (N + T): with the weight T / (N + T) for a token that is new, spread evenly over the V
    tokens of the vocabulary.

    **Arguments:**
    - `texts`: token ids of each text. `protocol`: where its windows lie. `vocab_size`: V, at least the largest id + 1.

    **Returns:** nats per token, window by window, over the tokens 1 .. trained_length - 1 of each: those of
    `Measurement.within`.
    **Source:** Witten and Bell 1991 (method C), interpolated with the uniform distribution as in Chen and Goodman 1999,
    "An empirical study of smoothing techniques for language modeling", section 2.

    >>> protocol = LossProtocol.choose(trained_length=2, target=2, text="t", windows=1)
    >>> round(frequency_losses([[0, 0]], protocol, vocab_size=2)[0], 4)  # nothing lies outside: log 2
    0.6931
    """
    length = min(protocol.trained_length, protocol.target)
    losses = []
    for number, text in enumerate(texts):
        ids = np.asarray(text, dtype=np.int64)
        counts = np.bincount(ids, minlength=vocab_size)
        for start in protocol.starts(len(ids), number):
            outside = counts - np.bincount(ids[start : start + protocol.target], minlength=vocab_size)
            total, distinct = int(outside.sum()), int(np.count_nonzero(outside))
            scored = ids[start + 1 : start + length]
            if total == 0:
                losses.append(float(np.log(vocab_size)))
            else:
                likely = (outside[scored] + distinct / vocab_size) / (total + distinct)
                losses.append(float(-np.log(likely).mean()))
    return tuple(losses)


KEPT_BYTES = 2**30  # of all kept beginnings together; what does not fit is computed again


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
        """Return plain's losses of a window; keep its beginning if other methods need it and memory allows."""
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
        """Return a method's losses of a window, and the seconds that other methods spent on the reused part."""
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
    """Run every job of the plan that is due, save each result as it is computed, and gather all results.

    `workers` jobs run at once, each on its share of the cores. Jobs that another process has leased are waited for.
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


def _beginning(plain: Reader | None, ids: Tensor, protocol: LossProtocol, chunk: int) -> Losses | None:
    """Return the losses of a window's first tokens, equal to the bit to those of plain's whole pass: by whole chunks.

    So crop's numbers do not depend on which process has read plain. The token after the last chunk is read for the loss
    of its last row only.
    """
    whole = -(-protocol.trained_length // chunk) * chunk
    if plain is None:
        return None
    return plain.window_losses(ids[: whole + 1], seq_len=protocol.target, chunk=chunk)


def _sums(losses: Losses, protocol: LossProtocol, seconds: float) -> WindowResult:
    """Return the sums of a window's losses; `seconds`: those that others spent on what was taken over."""
    by_position = np.concatenate([[0.0], losses])
    sums = tuple(float(by_position[start:end].sum()) for start, end in protocol.blocks)
    return WindowResult(sums, float(by_position[: protocol.trained_length].sum()), seconds, peak_memory())


def gather(plan: Plan, ledger: Ledger) -> Measurement:
    """Return the measurement of a finished plan, each method under its own name."""
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
