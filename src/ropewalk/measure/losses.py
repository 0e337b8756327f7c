"""Losses of every method on every window: the run and its measurement."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.ledger import Ledger
from ropewalk.measure.copies import WindowSpans
from ropewalk.measure.engine import Job, check_finite, run_jobs
from ropewalk.measure.plan import LossProtocol, Plan, shared_tokens
from ropewalk.methods import METHODS, ConfigForm
from ropewalk.models.config import Positions
from ropewalk.optional import need
from ropewalk.progress import Progress
from ropewalk.readers.losses import cropped_losses
from ropewalk.readers.reader import CHUNK, Advance, Asking, Beginning, Losses, Reader, ReadingOn

PLAIN, CROP = "plain", "crop"


@dataclasses.dataclass(frozen=True)
class WindowResult:
    """One method on one window: sums of losses in nats per block; seconds of work.

    - `peak_rss_bytes`: the process's largest resident memory so far; None in records from Windows before psutil.
    - `asked`: the answers to the questions of `copies.WindowSpans`, by length. `alone`: for plain, the answers after
      each span's first tokens only.
    """

    block_sums: tuple[float, ...]
    seconds: float
    peak_rss_bytes: int | None = None
    asked: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    alone: Sequence[float] = ()

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> WindowResult:
        """Return the result from the ledger's JSON."""
        return cls(
            tuple(result["block_sums"]),
            result["seconds"],
            result["peak_rss_bytes"],
            result.get("asked") or {},
            result.get("alone") or (),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON for the ledger."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Every method's results by window, and the positions used.

    - `own`: the model's original positions. `same_as`: maps a method to an earlier one with equal frequencies at this
      length.
    - `results`: plain and crop have all windows; a method that was given up has only the first ones.
    - `frequencies`: for each window, the loss of token frequencies in each block within the trained length, in nats
      per token; None if they were not counted.
    - `config_form`: the form of the ropes in the model's config. `texts`: the number of each window's text. `share`:
      the effective number of disjoint windows, over the number of windows.
    """

    protocol: LossProtocol
    own: Positions
    positions: dict[str, Positions]
    same_as: dict[str, str]
    results: dict[str, tuple[WindowResult, ...]]
    frequencies: Sequence[Sequence[float]] | None = None
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)
    texts: Sequence[int] = ()
    share: float = 1.0

    @property
    def windows(self) -> int:
        """Return the number of windows measured under plain."""
        return len(self.results[PLAIN])

    def block_means(self, method: str) -> list[list[float]]:
        """Return `[window][block]`, the mean loss in nats per token."""
        counts = self.protocol.weights
        return [
            [total / count for total, count in zip(result.block_sums, counts, strict=True)]
            for result in self.results[method]
        ]

    def within(self, method: str) -> list[float]:
        """Return the mean loss of tokens 1 .. trained_length - 1 for each window."""
        blocks = self.protocol.blocks_within
        return self._means(method, slice(0, blocks))

    def beyond(self, method: str) -> list[float] | None:
        """Return the mean loss of tokens from trained_length on for each window; None if there are no such tokens."""
        blocks = self.protocol.blocks_within
        return self._means(method, slice(blocks, None)) if len(self.protocol.blocks) > blocks else None

    def _means(self, method: str, part: slice) -> list[float]:
        count = sum(self.protocol.weights[part])
        return [sum(result.block_sums[part]) / count for result in self.results[method]]


def peak_memory() -> int:
    """Return this process's largest resident memory so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return int(need("psutil", extra="doctor").Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def frequency_losses(
    texts: Sequence[Sequence[int]], protocol: LossProtocol, *, vocab_size: int
) -> tuple[tuple[float, ...], ...]:
    """Return the mean loss of a unigram model in each block within the trained length, for each window.

    Its token frequencies are counted in the window's text outside the window. A token that occurs c times among N
    tokens, T of them distinct, has the probability (c + T / V) / (N + T). New tokens have the weight T / (N + T), which
    is spread evenly over the V tokens of the vocabulary.

    **Arguments:**
    - `texts`: token ids of each text. `protocol`: places the windows. `vocab_size`: V, at least the largest id + 1.

    **Returns:** nats per token, `[window][block]`, over the tokens 1 .. trained_length - 1 of each window.
    **Source:** Witten and Bell 1991 (method C), interpolated with the uniform distribution as in Chen and Goodman 1999,
    "An empirical study of smoothing techniques for language modeling", section 2.

    >>> protocol = LossProtocol.choose(trained_length=2, target=2, text="t", windows=1)
    >>> round(frequency_losses([[0, 0]], protocol, vocab_size=2)[0][0], 4)  # no token outside the window: log 2
    0.6931
    """
    blocks, losses = protocol.blocks[: protocol.blocks_within], []
    counted = [np.bincount(np.asarray(text, dtype=np.int64), minlength=vocab_size) for text in texts]
    for number, start in protocol.places([len(text) for text in texts]):
        ids = np.asarray(texts[number][start : start + protocol.target], dtype=np.int64)
        outside = counted[number] - np.bincount(ids, minlength=vocab_size)
        total, distinct = int(outside.sum()), int(np.count_nonzero(outside))
        likely = (outside[ids] + distinct / vocab_size) / max(1, total + distinct)
        nats = -np.log(likely) if total else np.full(len(ids), np.log(vocab_size))
        losses.append(tuple(float(nats[max(first, 1) : last].mean()) for first, last in blocks))
    return tuple(losses)


KEPT_BYTES = 2**30  # of all kept beginnings together; what does not fit is computed again


class Beginnings:
    """The beginnings of windows under plain, kept until no job that is due needs them.

    A method that equals plain in a window's first tokens always takes these from plain, from here or by computing them
    again. Its numbers therefore do not depend on what was kept or on where a run was resumed.

    - `plain`: the reader under plain. `shared`: the number of tokens each method takes over; 0 for most.
    - `due`: the jobs of the run. `chunk`: tokens of one forward pass. `stops`: tokens after which plain is asked.
    """

    def __init__(
        self,
        plain: ReadingOn,
        shared: Mapping[str, int],
        due: Sequence[Job],
        *,
        chunk: int,
        stops: Sequence[int] = (),
    ) -> None:
        self.plain, self.shared, self.chunk, self.stops = plain, shared, chunk, stops
        self._wanted: dict[int, list[int]] = {}
        for job in due:
            if shared[job.method]:
                self._wanted.setdefault(job.window, []).append(shared[job.method])
        self._kept: dict[int, Beginning] = {}
        self._lock = threading.Lock()

    def read_plain(self, ids: Tensor, window: int, *, advance: Advance, asking: Asking) -> Losses:
        """Return plain's losses of a window; keep its beginning if other methods need it and memory allows."""
        keep = max(self._wanted.get(window, ()), default=0)
        if not keep or self.plain.cache_bytes(keep) > KEPT_BYTES:
            return self.plain.window_losses(ids, chunk=self.chunk, advance=advance, asking=asking)

        def add(beginning: Beginning) -> None:
            with self._lock:
                if not self._wanted[window]:
                    return  # they came before it and have read for themselves
                self._kept[window] = beginning
                while sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
                    self._kept.pop(next(iter(self._kept)))  # the oldest: jobs go window by window

        return self.plain.reading_on(ids, keep=keep, kept=add, chunk=self.chunk, advance=advance, asking=asking)

    def read(
        self, variant: ReadingOn, method: str, ids: Tensor, window: int, *, advance: Advance, asking: Asking
    ) -> tuple[Losses, float]:
        """Return a method's losses of a window, and the seconds spent by other methods on the reused part."""
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
        losses = variant.reading_on(ids, after=(beginning, tokens), chunk=self.chunk, advance=advance, asking=asking)
        return losses, spent

    def _again(self, ids: Tensor, tokens: int, advance: Advance) -> Beginning:
        found: list[Beginning] = []
        append: Callable[[Beginning], None] = found.append
        self.plain.reading_on(
            ids[: tokens + 1],
            keep=tokens,
            kept=append,
            chunk=self.chunk,
            advance=advance,
            asking=_pauses(self.stops, tokens),
        )
        return found[0]


def _pauses(stops: Sequence[int], tokens: int) -> Asking:
    """Return stops without questions: a pass in the same chunks gives the same numbers to the bit."""
    return {stop: lambda prefix: None for stop in stops if stop <= tokens}


def run(
    reader: Reader,
    windows: Tensor,
    plan: Plan,
    ledger: Ledger,
    *,
    chunk: int = CHUNK,
    workers: int = 1,
    progress: Progress | None = None,
    jobs: Sequence[Job] | None = None,
    spans: Sequence[WindowSpans] = (),
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run the jobs of the plan that are due (or those given), and save each result as it is computed.

    **Arguments:**
    - `workers`: jobs at one time, each on its share of the cores.
    - `spans`: of each window, asked for during its pass, except under crop. Empty: nothing is asked.
    - `until`: no job begins after it returns True.

    A KeyboardInterrupt passes through; finished results are in the ledger. Raises `RopeError` if a loss is not finite.
    """
    protocol, jobs = plan.protocol, plan.due(ledger, chunk=chunk) if jobs is None else jobs
    plain: dict[int, Losses] = {}
    beginnings, stops = None, spans[0].stops("plain") if spans else ()
    as_plain = reader.under(plan.positions["plain"]) if "plain" in plan.positions else None
    if isinstance(as_plain, ReadingOn):
        shared = {name: shared_tokens(name, protocol, chunk) for name in plan.methods}
        beginnings = Beginnings(as_plain, shared, jobs, chunk=chunk, stops=stops)

    def measure(job: Job, advance: Advance) -> dict[str, Any]:
        spent_before, answers = 0.0, dict[str, list[float]]()
        variant, ids = reader.under(plan.positions[job.method]), windows[job.window]
        asking = spans[job.window].asking(job.method, answers) if spans else {}
        if METHODS[job.method].crops:
            first = plain.get(job.window)
            beginning = _beginning(as_plain, ids, protocol, chunk, stops) if first is None else first
            losses = cropped_losses(
                variant,
                ids,
                trained_length=protocol.trained_length,
                stride=protocol.stride,
                beginning=beginning,
                chunk=chunk,
                advance=advance,
            )
        elif beginnings is not None and job.method == "plain":
            losses = beginnings.read_plain(ids, job.window, advance=advance, asking=asking)
        elif beginnings is not None and beginnings.shared[job.method] and isinstance(variant, ReadingOn):
            losses, spent_before = beginnings.read(variant, job.method, ids, job.window, advance=advance, asking=asking)
        else:
            losses = variant.window_losses(ids, chunk=chunk, advance=advance, asking=asking)
        alone: list[float] = []
        if job.method == "plain":
            plain[job.window] = losses
            alone = spans[job.window].alone(variant) if spans else []
        check_finite(losses, job.method)
        by_position = np.concatenate([[0.0], losses])
        sums = tuple(float(by_position[start:end].sum()) for start, end in protocol.blocks)
        return WindowResult(sums, spent_before, peak_memory(), answers, alone).to_json()

    run_jobs(ledger, jobs, measure, workers=workers, progress=progress, until=until)


def _beginning(
    plain: Reader | None, ids: Tensor, protocol: LossProtocol, chunk: int, stops: Sequence[int]
) -> Losses | None:
    """Return the losses of a window's first tokens, in plain's chunks, equal to the bit to those of its whole pass.

    Crop's numbers therefore do not depend on the process that measured plain. The token after the last chunk is used
    for the loss of its last row.
    """
    whole = -(-protocol.trained_length // chunk) * chunk
    if plain is None:
        return None
    return plain.window_losses(ids[: whole + 1], seq_len=protocol.target, chunk=chunk, asking=_pauses(stops, whole))


def gather(plan: Plan, ledger: Ledger, *, windows: int | None = None) -> Measurement:
    """Return the measurement from the results so far, each method under its own name.

    - `windows`: number of first windows to use; None: all. A method has the windows before its first missing one.
    """
    count = plan.protocol.windows if windows is None else windows
    results: dict[str, tuple[WindowResult, ...]] = {}
    for name in plan.methods:
        found = []
        for window in range(count):
            key = plan.key(plan.same_as.get(name, name), window)
            if key not in ledger:
                break
            found.append(WindowResult.from_json(ledger[key]))
        if found:
            results[name] = tuple(found)
    return Measurement(
        protocol=plan.protocol,
        own=plan.own,
        positions=plan.positions,
        same_as={name: first for name, first in plan.same_as.items() if name in results},
        results=results,
        config_form=plan.config_form,
    )
