"""What was measured: accuracies with Wilson intervals by cell, by length and by task, and how far a method reaches."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.optional import need
from ropewalk.retrieval.protocol import CONFIDENCE, THRESHOLD, Cell, RetrievalProtocol


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """`correct` of `n` examples were found; `chance` is what guessing would find, as a fraction.

    >>> found = Accuracy(9, 10, 0.125)
    >>> found.value, [round(bound, 3) for bound in found.interval]
    (0.9, [0.596, 0.982])
    """

    correct: int
    n: int
    chance: float

    @property
    def value(self) -> float:
        """correct / n."""
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval (Wilson 1927), by scipy."""
        low, high = need("scipy.stats", extra="cli").binomtest(self.correct, self.n).proportion_ci(CONFIDENCE, "wilson")
        return float(low), float(high)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "n": self.n,
            "correct": self.correct,
            "accuracy": self.value,
            "ci": list(self.interval),
            "chance": self.chance,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalMeasurement:
    """Outcomes of every method, cell by cell; `choices` are the choices of each task's examples.

    `depths` are the parts of the filler, in tokens, that really lay before the asked needles: a needle goes to the end
    of a sentence or word near the depth that the cell asks for.
    """

    protocol: RetrievalProtocol
    outcomes: Mapping[str, Mapping[Cell, Sequence[bool]]]
    choices: Mapping[str, int]
    depths: Mapping[str, Mapping[Cell, Sequence[float]]] = dataclasses.field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in the order in which they were given."""
        return tuple(self.outcomes)

    def accuracy(
        self, method: str, *, length: int | None = None, task: str | None = None, depth: float | None = None
    ) -> Accuracy | None:
        """All examples of a method together, or those of one length, task or depth; None where there are none.

        Every task has as many examples at a length, so this is also the mean over tasks; its interval is the binomial
        one of all examples, which is no narrower than it should be where tasks differ.
        """
        correct, n, expected = 0, 0, 0.0
        for cell, found in self.outcomes[method].items():
            wanted = ((length, cell.length), (task, cell.task), (depth, cell.depth))
            if all(asked is None or asked == there for asked, there in wanted):
                correct, n = correct + sum(found), n + len(found)
                expected += len(found) * self.chance(cell.task)
        return Accuracy(correct, n, expected / n) if n else None

    def chance(self, task: str) -> float:
        """What guessing finds: 1 / choices; 0 for a completion in words."""
        return 1 / self.choices[task] if self.protocol.scoring == "choice" else 0.0

    def effective_length(self, method: str, threshold: float = THRESHOLD) -> int | None:
        """The longest measured length up to which the accuracy over all tasks stays at or above `threshold`.

        None where it is below at the shortest. RULER's bar is 0.856, for its own 13 tasks scored by words.
        """
        reached = None
        for length in self.protocol.lengths:
            found = self.accuracy(method, length=length)
            if found is None or found.value < threshold:
                break
            reached = length
        return reached

    def by_depth(self, method: str) -> list[list[float | None]]:
        """`[depth][length]`: accuracy over the tasks that have a depth; None where nothing was measured."""
        return [self._row(method, depth=depth) for depth in self.protocol.depths]

    def by_task(self, method: str) -> list[list[float | None]]:
        """`[task][length]`: accuracy over all depths."""
        return [self._row(method, task=task) for task in self.protocol.tasks]

    def _row(self, method: str, *, depth: float | None = None, task: str | None = None) -> list[float | None]:
        found = [self.accuracy(method, length=at, depth=depth, task=task) for at in self.protocol.lengths]
        return [None if one is None else one.value for one in found]

    def real_depth(self, method: str, cell: Cell) -> float | None:
        """The mean of a cell's `depths`; None where it has none."""
        found = self.depths.get(method, {}).get(cell) or ()
        return statistics.fmean(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """Every number: cells, means over all tasks by length, and effective lengths."""
        rows = [
            {
                "method": method,
                "task": cell.task,
                "length": cell.length,
                "depth": cell.depth,
                "real_depth": self.real_depth(method, cell),
                **Accuracy(sum(found), len(found), self.chance(cell.task)).to_json(),
            }
            for method, cells in self.outcomes.items()
            for cell, found in cells.items()
        ]
        means = [
            {"method": method, "length": length, **found.to_json()}
            for method in self.methods
            for length in self.protocol.lengths
            if (found := self.accuracy(method, length=length)) is not None
        ]
        reached = {method: self.effective_length(method) for method in self.methods}
        return {
            "protocol": self.protocol.to_json(),
            "results": rows,
            "means": means,
            "effective_length": {"threshold": THRESHOLD, "methods": reached},
        }
