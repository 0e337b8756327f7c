"""What was measured: sums of losses by method and window, and the means made of them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any

from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.window_losses import WindowLosses
from ropewalk.errors import RopeError
from ropewalk.methods import ConfigForm
from ropewalk.models.positions import Positions
from ropewalk.optional import need

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

    def mean_over(self, method: str, blocks: Iterable[int]) -> float:
        """Mean loss over some blocks, by their numbers, and over all windows."""
        chosen, counts = list(blocks), _block_counts(self.protocol)
        total = sum(result.block_sums[index] for result in self.results[method] for index in chosen)
        return total / (sum(counts[index] for index in chosen) * len(self.results[method]))

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
