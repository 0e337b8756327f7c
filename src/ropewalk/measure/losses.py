"""Losses by method and window: the measured sums, the means that a verdict rests on, and those of token frequencies."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.measure.plan import Protocol
from ropewalk.methods import ConfigForm
from ropewalk.models.positions import Positions
from ropewalk.optional import need

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
        """Windows of all texts."""
        return len(self.within[PLAIN])

    def over_texts(self) -> WindowLosses:
        """The same with one mean for each text in place of its windows."""

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
        """As the ledger has it."""
        return cls(tuple(result["block_sums"]), result["within_sum"], result["seconds"], result["peak_rss_bytes"])

    def to_json(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Every method's results, window by window, and the positions that they were measured with.

    `own` are the model's positions as it was given; `same_as` names, for a method whose frequencies equal an earlier
    one's at this length, that earlier method. `frequencies`: for each window what token frequencies lose on the tokens
    of `within`; None where they were not counted. `config_form`: where the model's config says its ropes.
    """

    protocol: Protocol
    own: Positions
    positions: dict[str, Positions]
    same_as: dict[str, str]
    results: dict[str, tuple[WindowResult, ...]]
    frequencies: tuple[float, ...] | None = None
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    def block_means(self, method: str) -> list[list[float]]:
        """`[window][block]`: mean loss in nats per token."""
        counts = _block_counts(self.protocol)
        return [
            [total / count for total, count in zip(result.block_sums, counts, strict=True)]
            for result in self.results[method]
        ]

    def within(self, method: str) -> list[float]:
        """For each window, the mean loss of tokens 1 .. trained_length - 1."""
        count = min(self.protocol.trained_length, self.protocol.target) - 1
        return [result.within_sum / count for result in self.results[method]]

    def beyond(self, method: str) -> list[float] | None:
        """For each window, the mean loss of tokens from trained_length on; None where there are none."""
        count = self.protocol.target - self.protocol.trained_length
        if count <= 0:
            return None
        return [(sum(result.block_sums) - result.within_sum) / count for result in self.results[method]]

    def stretches(self) -> tuple[tuple[int, int], ...]:
        """`[start, end)` of at most three parts of the positions beyond the trained length, each of whole blocks."""
        trained = self.protocol.trained_length
        ends = [end for _, end in self.protocol.blocks if end > trained]
        parts = min(MOST_STRETCHES, len(ends))
        cuts = [trained, *(ends[len(ends) * (part + 1) // parts - 1] for part in range(parts))]
        return tuple(pairwise(cuts))

    def by_stretch(self, method: str) -> list[list[float]]:
        """`[window][stretch]`: mean loss in nats per token."""
        ends = [end for _, end in self.protocol.blocks]
        rows = []
        for result in self.results[method]:
            until = dict(zip(ends, accumulate(result.block_sums), strict=True))
            until[self.protocol.trained_length] = result.within_sum
            rows.append([(until[end] - until[start]) / (end - start) for start, end in self.stretches()])
        return rows

    def losses(self) -> WindowLosses:
        """What a verdict is made of: every method that was measured on its own, and crop.

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


def _block_counts(protocol: Protocol) -> list[int]:
    """Losses in each block: the first token of a window has none."""
    return [end - max(start, 1) for start, end in protocol.blocks]


def peak_memory() -> int:
    """Return this process's largest resident memory so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return int(need("psutil", extra="cli").Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def frequency_losses(texts: Sequence[Sequence[int]], protocol: Protocol, *, vocab_size: int) -> tuple[float, ...]:
    """For each window the mean loss, within the trained length, of token frequencies counted outside the window.

    A token that occurs c times among the N tokens of its text outside the window, T of them distinct, has the
    probability (c + T / V) / (N + T): with the weight T / (N + T) for a token that is new, spread evenly over the V
    tokens of the vocabulary.

    **Arguments:**
    - `texts`: token ids of each text. `protocol`: where its windows lie. `vocab_size`: V, at least the largest id + 1.

    **Returns:** nats per token, window by window, over the tokens 1 .. trained_length - 1 of each: those of
    `Measurement.within`.
    **Source:** Witten and Bell 1991 (method C), interpolated with the uniform distribution as in Chen and Goodman 1999,
    "An empirical study of smoothing techniques for language modeling", section 2.

    >>> protocol = Protocol.choose(trained_length=2, target=2, text="t", windows=1)
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
