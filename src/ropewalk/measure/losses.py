"""Losses of every method on every window: the run and its measurement."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ropewalk.ledger import Ledger
from ropewalk.measure.copies import WindowSpans
from ropewalk.measure.engine import Job, check_finite, run_jobs
from ropewalk.measure.plan import LossProtocol, Plan
from ropewalk.methods import METHODS, ConfigForm
from ropewalk.models.config import Positions
from ropewalk.optional import need
from ropewalk.progress import Progress
from ropewalk.readers.losses import cropped_losses
from ropewalk.readers.reader import CHUNK, Advance, Asking, Losses, Reader

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
    stops = spans[0].stops("plain") if spans else ()
    as_plain = reader.under(plan.positions["plain"]) if "plain" in plan.positions else None

    def measure(job: Job, advance: Advance) -> dict[str, Any]:
        answers = dict[str, list[float]]()
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
        else:
            losses = variant.window_losses(ids, chunk=chunk, advance=advance, asking=asking)
        alone: list[float] = []
        if job.method == "plain":
            plain[job.window] = losses
            alone = spans[job.window].alone(variant) if spans else []
        check_finite(losses, job.method)
        by_position = np.concatenate([[0.0], losses])
        sums = tuple(float(by_position[start:end].sum()) for start, end in protocol.blocks)
        return WindowResult(sums, 0.0, peak_memory(), answers, alone).to_json()

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
