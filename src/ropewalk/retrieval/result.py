"""What was measured: accuracies with intervals by cell, length, task and distance, and how far a method reaches."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ropewalk.retrieval.protocol import THRESHOLD, Cell, RetrievalProtocol
from ropewalk.retrieval.scoring import Answer
from ropewalk.statistics import Interval, share_of_clusters

LEAST = 20
"""Answers in a cell of a map or a step of a curve: with fewer, neighbours are put together."""
_DEPTHS, _DISTANCES = 5, 8  # at most so many parts
Texts = Sequence[Sequence[Answer]]
"""The answers after each text."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How many answers were found, text by text (found, answers); `chance` is what guessing would find, as a fraction.

    >>> found = Accuracy(((20, 24), (18, 24)), 1 / 12)
    >>> round(found.value, 3), found.n, [round(bound, 2) for bound in found.interval]
    (0.792, 48, [0.15, 0.99])
    >>> Accuracy.independent(9, 10, 0.125).interval[0] > 0.59
    True
    """

    texts: tuple[tuple[int, int], ...]
    chance: float

    @classmethod
    def independent(cls, correct: int, n: int, chance: float) -> Accuracy:
        """Of answers that are each of a text of its own."""
        return cls(((1, 1),) * correct + ((0, 1),) * (n - correct), chance)

    @property
    def correct(self) -> int:
        """Answers that were found."""
        return sum(found for found, _ in self.texts)

    @property
    def n(self) -> int:
        """Answers that were looked for."""
        return sum(of for _, of in self.texts)

    @property
    def value(self) -> float:
        """correct / n."""
        return self.correct / self.n

    @property
    def interval(self) -> Interval:
        """95 %, by `share_of_clusters`: Wilson's for independent answers, None for one text with several."""
        return share_of_clusters(self.texts)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        interval = self.interval
        return {
            "asked": self.n,
            "found": self.correct,
            "interval": None if interval is None else list(interval),
            "texts": len(self.texts),
            "chance": self.chance,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalMeasurement:
    """The answers of every method, cell by cell and text by text; `seconds` is what each method's answers took."""

    protocol: RetrievalProtocol
    answers: Mapping[str, Mapping[Cell, Texts]]
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in the order in which they were given."""
        return tuple(self.answers)

    def accuracy(
        self,
        method: str,
        *,
        length: int | None = None,
        task: str | None = None,
        where: Callable[[Answer], bool] | None = None,
        raw: bool = False,
    ) -> Accuracy | None:
        """All answers of a method together, or those of one length or task, or those of which `where` is true; None
        where there are none. `raw`: by the log-probabilities as they are."""
        texts, chances = [], []
        for answers in self._texts(method, length, task):
            chosen = [answer for answer in answers if where is None or where(answer)]
            if chosen:
                texts.append((sum(answer.raw if raw else answer.found for answer in chosen), len(chosen)))
                chances += [1 / answer.choices for answer in chosen]
        if not texts:
            return None
        return Accuracy(tuple(texts), sum(chances) / len(chances) if self.protocol.scoring == "choice" else 0.0)

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

    def depth_edges(self, task: str) -> tuple[float, ...] | None:
        """Where depths are cut into up to five parts, so that every cell of every length has at least 20 answers.

        One part where there are fewer answers; None for a task without depths.
        """
        of_length = [
            [answer.depth for texts in self._texts(self.methods[0], length, task) for answer in texts]
            for length in self.protocol.lengths
        ]
        depths = [[depth for depth in row if depth is not None] for row in of_length]
        return even_edges([row for row in depths if row], 1.0, _DEPTHS)

    def distance_edges(self, task: str, length: int) -> tuple[float, ...] | None:
        """Where distances are cut into up to eight parts in the same way, in tokens; None for a task without them."""
        found = [answer.distance for texts in self._texts(self.methods[0], length, task) for answer in texts]
        distances = [float(one) for one in found if one is not None]
        return even_edges([distances] if distances else [], float(length), _DISTANCES)

    def rows(self) -> list[dict[str, Any]]:
        """Every cell as JSON holds it: {method, task, length, depth, asked, found, interval, ...}.

        `depth` is the middle of the part `depths`; None for a task without depths.
        """
        rows = []
        for method, task, length in self._each():
            for part, inside in _parts(self.depth_edges(task), lambda answer: answer.depth):
                found = self.accuracy(method, length=length, task=task, where=inside)
                if found is not None:
                    depth = None if part is None else (part[0] + part[1]) / 2
                    raw = self.accuracy(method, length=length, task=task, where=inside, raw=True)
                    more = {"depths": part, "found_raw": None if raw is None else raw.correct}
                    row: dict[str, Any] = {"method": method, "task": task, "length": length, "depth": depth}
                    rows.append({**row, **found.to_json(), **more})
        return rows

    def details(self) -> dict[str, Any]:
        """All that the rows leave out: the protocol, means by length and task, distances, reaches and costs."""
        means, distances = [], []
        for method in self.methods:
            for length in self.protocol.lengths:
                for task in (None, *self.protocol.tasks):
                    found, raw = (self.accuracy(method, length=length, task=task, raw=raw) for raw in (False, True))
                    if found is not None and raw is not None:
                        head = {"method": method, "task": task, "length": length}
                        means.append({**head, **found.to_json(), "found_raw": raw.correct})
        for method, task, length in self._each():
            edges = self.distance_edges(task, length)
            for part, inside in _parts(edges, lambda answer: answer.distance) if edges else ():
                found = self.accuracy(method, length=length, task=task, where=inside)
                if found is not None:
                    at = {"method": method, "task": task, "length": length}
                    distances.append({**at, "distances": part, **found.to_json()})
        return {
            "protocol": self.protocol.to_json(),
            "means": means,
            "by_distance": distances,
            "effective_length": {
                "threshold": THRESHOLD,
                "methods": {method: self.effective_length(method) for method in self.methods},
            },
            "seconds": dict(self.seconds),
        }

    def _each(self) -> Iterator[tuple[str, str, int]]:
        for method in self.methods:
            for task in self.protocol.tasks:
                for length in self.protocol.lengths:
                    yield method, task, length

    def _texts(self, method: str, length: int | None, task: str | None) -> Iterator[Sequence[Answer]]:
        for cell, texts in self.answers[method].items():
            if length in (None, cell.length) and task in (None, cell.task):
                yield from texts


def even_edges(rows: Sequence[Sequence[float]], end: float, most: int) -> tuple[float, ...] | None:
    """The edges of the most even parts of 0 .. end, at most `most`, that each hold 20 numbers of every row, or of one.

    >>> even_edges([[n / 48 for n in range(48)]], 1.0, 5)
    (0.0, 0.5, 1.0)
    >>> even_edges([[0.1, 0.9]], 1.0, 5)
    (0.0, 1.0)
    """
    if not rows:
        return None
    for parts in range(most, 1, -1):
        edges = tuple(end * part / parts for part in range(parts + 1))
        if all(min(_counts(row, edges)) >= LEAST for row in rows):
            return edges
    return 0.0, end


def _counts(row: Sequence[float], edges: Sequence[float]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for value in row:
        counts[_part(value, edges)] += 1
    return counts


def _part(value: float, edges: Sequence[float]) -> int:
    """The part that holds a value; the last one holds its end as well."""
    return min(bisect_right(edges, value), len(edges) - 1) - 1


def _parts(
    edges: Sequence[float] | None, of: Callable[[Answer], float | None]
) -> Iterator[tuple[tuple[float, float] | None, Callable[[Answer], bool]]]:
    """Each part with whether an answer lies in it; without edges the one part None, in which all lie."""
    if edges is None:
        yield None, lambda answer: True
        return

    def inside(number: int) -> Callable[[Answer], bool]:
        return lambda answer: (value := of(answer)) is not None and _part(value, edges) == number

    for number, part in enumerate(pairwise(edges)):
        yield part, inside(number)
