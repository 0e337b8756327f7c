"""Answers of retrieval: the protocol, accuracies with intervals by length, task and distance, rows, and sentences."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from ropewalk.errors import RopeError
from ropewalk.measure import SAMPLES
from ropewalk.statistics import Interval, mean_and_interval, share_of_clusters

THRESHOLD = 0.856
"""RULER's bar for an effective length: what Llama-2-7B reaches at 4,096 tokens (Hsieh et al. 2024, section 4)."""
CONFIDENCE = 0.95
NORMAL = 1.959964
"""The standard normal's quantile of 0.975."""
CROP = "crop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One task at one length."""

    task: str
    length: int


def draws(seed: int, task: str, length: int, sample: int) -> Random:
    """Return the random numbers of one text: the same in every run and for every method."""
    return Random(f"{seed}:{task}:{length}:None:{sample}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalProtocol:
    """One protocol; lengths are in tokens with a question and its answer.

    - `samples`: number of texts for each task and length.
    - `chat`: whether the questions are formatted with the model's chat template.

    Raises `RopeError` for numbers out of range.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    samples: int = SAMPLES
    seed: int = 0
    text: str
    haystack: str | None = None
    chat: bool = False
    trained_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "lengths"):
            values = getattr(self, name)
            object.__setattr__(self, name, tuple(values) if name == "tasks" else tuple(sorted(values)))
            if not values or len(set(values)) < len(values):
                raise RopeError(
                    f"retrieval: `{name}` must not be empty or contain duplicates.",
                    facts={name: values},
                    cure="Pass at least one, each once.",
                )
        if min(self.lengths) < 1 or self.samples < 1:
            raise RopeError(
                "retrieval: lengths and samples must be at least 1.",
                facts={"lengths": self.lengths, "samples": self.samples},
                cure="Give lengths in tokens.",
            )

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, short inputs first."""
        for length in self.lengths:
            for task in self.tasks:
                yield Cell(task=task, length=length)

    def sentence(self) -> str:
        """Return a description of the protocol."""
        fillers = {None: f"repeated noise or {self.text}", "noise": "repeated noise", "text": self.text}
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        frame = ", formatted with the model's chat template" if self.chat else ""
        return (
            f"Retrieval: {', '.join(self.tasks)}, generated from seed {self.seed}, the same texts for every method; "
            f"{self.samples} texts of at most {lengths} tokens for each task and length, needles spread evenly over "
            f"the filler ({fillers[self.haystack]}). The model processes each text once, and each question follows "
            f"the text as if it were the only one{frame}. An answer is correct if its calibrated log-probability is "
            "higher than that of every other candidate (the answers to other questions). Calibrated: minus the "
            f"candidate's mean over all questions. Raw: not calibrated. Intervals: {CONFIDENCE:.0%}, from resampling "
            "whole texts, because answers after one text are not independent; never narrower than Wilson's with "
            "Student's t over texts; none for one text. They apply to texts of this kind, made of this filler."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as JSON, with its description."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}


class Answer(NamedTuple):
    """Whether one answer was found, and among how many choices.

    - `found`: by calibrated log-probabilities. `raw`: by uncalibrated ones.
    - `depth`: the fraction of the text before the needle. `distance`: tokens from there to the end of the question.
    """

    found: bool
    raw: bool
    choices: int
    depth: float
    distance: int


LEAST = 20
"""Least number of answers in a cell of a map or a step of a curve; neighbours with fewer are merged."""
_DEPTHS, _DISTANCES = 5, 8  # the largest numbers of parts
Texts = Sequence[Sequence[Answer]]
"""The answers after each text."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Number of answers found: (found, answers) for each text. `chance` is the accuracy of guessing, as a fraction.

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
        """Return the accuracy of answers from different texts, one for each text."""
        return cls(((1, 1),) * correct + ((0, 1),) * (n - correct), chance)

    @property
    def correct(self) -> int:
        """Return the number of answers found."""
        return sum(found for found, _ in self.texts)

    @property
    def n(self) -> int:
        """Return the number of answers asked for."""
        return sum(of for _, of in self.texts)

    @property
    def value(self) -> float:
        """Return correct / n."""
        return self.correct / self.n

    @property
    def interval(self) -> Interval:
        """Return the 95 % interval of `share_of_clusters`; None for several answers of one text.

        It is Wilson's for independent answers.
        """
        return share_of_clusters(self.texts)

    def to_json(self) -> dict[str, Any]:
        """Return the accuracy as JSON."""
        interval = self.interval
        return {
            "asked": self.n,
            "found": self.correct,
            "interval": None if interval is None else list(interval),
            "texts": len(self.texts),
            "chance": self.chance,
        }


class Paired(NamedTuple):
    """Mean difference of paired answers, its 95 % interval (None for one text), and the number of pairs."""

    difference: float
    interval: Interval
    asked: int


def paired_shares(texts: Sequence[Sequence[tuple[int, int]]]) -> Paired:
    """Return the share found by the first method minus the second's, from pairs (0 or 1 each) by text.

    Each end of the interval is the wider of two: Student's t over texts, and the paired interval of Agresti and Min
    (2005). The latter adds half an answer to each combination, so its width is never 0.

    >>> found = paired_shares([[(1, 0), (1, 1), (0, 0), (1, 0)], [(1, 0), (0, 0), (1, 1), (1, 0)]])
    >>> found.difference, [round(end, 2) for end in found.interval]
    (0.5, [0.04, 0.76])
    """
    differences = [one - other for text in texts for one, other in text]
    mean, asked = sum(differences) / len(differences), len(differences)
    if len(texts) < 2:
        return Paired(mean, None, asked)
    _, around = mean_and_interval([sum(one - other for one, other in text) / len(text) for text in texts])
    assert around is not None, "there are several texts"
    discordant = sum(difference != 0 for difference in differences) + 1
    n = asked + 2
    middle = sum(differences) / n
    half = NORMAL * math.sqrt(max(0.0, discordant - n * middle**2)) / n
    low, high = min(around[0], middle - half), max(around[1], middle + half)
    return Paired(mean, (max(-1.0, low), min(1.0, high)), asked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalMeasurement:
    """The answers of every method by cell and text; `seconds` is the time of each method's answers."""

    protocol: RetrievalProtocol
    answers: Mapping[str, Mapping[Cell, Texts]]
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods in the given order."""
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
        """Return a method's accuracy over all answers, or those of one length or task, or those selected by `where`.

        None if there are none. `raw`: by uncalibrated log-probabilities.
        """
        texts, chances = [], []
        for answers in self._texts(method, length, task):
            chosen = [answer for answer in answers if where is None or where(answer)]
            if chosen:
                texts.append((sum(answer.raw if raw else answer.found for answer in chosen), len(chosen)))
                chances += [1 / answer.choices for answer in chosen]
        if not texts:
            return None
        return Accuracy(tuple(texts), sum(chances) / len(chances))

    def more_than(self, method: str, against: str, *, length: int, task: str, raw: bool = False) -> Paired | None:
        """Return the share found by `method` minus that of `against` on the same questions; None without answers."""
        pairs = [
            [(int(getattr(a, name)), int(getattr(b, name))) for a, b in zip(one, other, strict=True)]
            for name in ("raw" if raw else "found",)
            for one, other in zip(self._texts(method, length, task), self._texts(against, length, task), strict=True)
        ]
        return paired_shares(pairs) if pairs and all(pairs) else None

    def effective_length(self, method: str, threshold: float = THRESHOLD) -> int | None:
        """Return the longest measured length up to which the accuracy over all tasks is at least `threshold`.

        None if it is below at the shortest. RULER's bar is 0.856, for its own 13 tasks scored by words.
        """
        reached = None
        for length in self.protocol.lengths:
            found = self.accuracy(method, length=length)
            if found is None or found.value < threshold:
                break
            reached = length
        return reached

    def depth_edges(self, task: str) -> tuple[float, ...]:
        """Return the edges of up to five parts of the depths, with at least 20 answers in every cell."""
        rows = [
            [answer.depth for texts in self._texts(self.methods[0], length, task) for answer in texts]
            for length in self.protocol.lengths
        ]
        return even_edges(rows, 1.0, _DEPTHS)

    def distance_edges(self, task: str, length: int) -> tuple[float, ...]:
        """Return the edges of up to eight parts of the distances in the same way, in tokens."""
        found = [float(one.distance) for texts in self._texts(self.methods[0], length, task) for one in texts]
        return even_edges([found], float(length), _DISTANCES)

    def rows(self) -> list[dict[str, Any]]:
        """Return every cell as JSON: {method, task, length, depth, asked, found, interval, ...}.

        `depth` is the middle of the part `depths`.
        """
        rows = []
        for method, task, length in self._each():
            for part, inside in _parts(self.depth_edges(task), lambda answer: answer.depth):
                found = self.accuracy(method, length=length, task=task, where=inside)
                if found is not None:
                    depth = (part[0] + part[1]) / 2
                    raw = self.accuracy(method, length=length, task=task, where=inside, raw=True)
                    more = {"depths": part, "found_raw": None if raw is None else raw.correct}
                    row: dict[str, Any] = {"method": method, "task": task, "length": length, "depth": depth}
                    rows.append({**row, **found.to_json(), **more})
        return rows

    def details(self) -> dict[str, Any]:
        """Return everything except the rows: the protocol, means by length and task, distances, reaches and costs."""
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
            for part, inside in _parts(edges, lambda answer: float(answer.distance)):
                found, raw = (
                    self.accuracy(method, length=length, task=task, where=inside, raw=raw) for raw in (False, True)
                )
                if found is not None and raw is not None:
                    at = {"method": method, "task": task, "length": length}
                    distances.append({**at, "distances": part, **found.to_json(), "found_raw": raw.correct})
        return {
            "protocol": self.protocol.to_json(),
            "means": means,
            "by_distance": distances,
            "more_than_crop": self._more_than_crop(),
            "answer_fields": list(Answer._fields),
            "answers": [
                {
                    "method": method,
                    "task": cell.task,
                    "length": cell.length,
                    "texts": [[list(one) for one in text] for text in texts],
                }
                for method, cells in self.answers.items()
                for cell, texts in cells.items()
            ],
            "effective_length": {
                "threshold": THRESHOLD,
                "methods": {method: self.effective_length(method) for method in self.methods},
            },
            "seconds": dict(self.seconds),
        }

    def _more_than_crop(self) -> list[dict[str, Any]]:
        """Return the share found minus crop's by method, task and length, calibrated and raw; none without crop."""
        rows: list[dict[str, Any]] = []
        for method, task, length in self._each() if CROP in self.answers else ():
            if method == CROP:
                continue
            found, raw = (self.more_than(method, CROP, length=length, task=task, raw=raw) for raw in (False, True))
            if found is not None and raw is not None:
                at = {"method": method, "task": task, "length": length, "asked": found.asked}
                row = {"difference": found.difference, "interval": found.interval}
                rows.append({**at, **row, "difference_raw": raw.difference, "interval_raw": raw.interval})
        return rows

    def _each(self) -> Iterator[tuple[str, str, int]]:
        for method in self.methods:
            for task in self.protocol.tasks:
                for length in self.protocol.lengths:
                    yield method, task, length

    def _texts(self, method: str, length: int | None, task: str | None) -> Iterator[Sequence[Answer]]:
        for cell, texts in self.answers[method].items():
            if length in (None, cell.length) and task in (None, cell.task):
                yield from texts


def even_edges(rows: Sequence[Sequence[float]], end: float, most: int) -> tuple[float, ...]:
    """Return the edges of at most `most` even parts of 0 .. end that each contain 20 numbers of every row, or of one.

    >>> even_edges([[n / 48 for n in range(48)]], 1.0, 5)
    (0.0, 0.5, 1.0)
    >>> even_edges([[0.1, 0.9]], 1.0, 5)
    (0.0, 1.0)
    """
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
    """Return the part that contains a value; the last part includes its end."""
    return min(bisect_right(edges, value), len(edges) - 1) - 1


def _parts(
    edges: Sequence[float], of: Callable[[Answer], float]
) -> Iterator[tuple[tuple[float, float], Callable[[Answer], bool]]]:
    """Yield each part with a function that tells whether an answer lies in it."""

    def inside(number: int) -> Callable[[Answer], bool]:
        return lambda answer: _part(of(answer), edges) == number

    for number, part in enumerate(pairwise(edges)):
        yield part, inside(number)


def accuracy_rows(measurement: RetrievalMeasurement, task: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows: each method's accuracy with its interval at each length, over all tasks or for one."""
    heads = ["method", *(f"{length:,}" for length in measurement.protocol.lengths)]
    rows = [
        [method, *(_cell(measurement.accuracy(method, length=at, task=task)) for at in measurement.protocol.lengths)]
        for method in measurement.methods
    ]
    return heads, rows


def sentences(measurement: RetrievalMeasurement, threshold: float = THRESHOLD) -> Iterator[str]:
    """Return the chance level, how far each method reaches, whether any differs from guessing, and the cost."""
    protocol = measurement.protocol
    of_tasks = [found for task in protocol.tasks if (found := measurement.accuracy(measurement.methods[0], task=task))]
    low, high = (end(found.chance for found in of_tasks) for end in (min, max))
    chance = f"{low:.1%}" if f"{low:.1%}" == f"{high:.1%}" else f"{low:.1%} to {high:.1%}"
    yield f"Guessing finds {chance}."
    longest = protocol.lengths[-1]
    for method in measurement.methods:
        reached = measurement.effective_length(method, threshold)
        reach = "at no measured length" if reached is None else f"up to {reached:,} tokens"
        sentence = f"{method} finds {threshold:.1%} or more {reach}"
        found, raw = (measurement.accuracy(method, length=longest, raw=raw) for raw in (False, True))
        if found is not None and raw is not None:
            sentence += f"; calibrated {_cell(found)} and raw {_cell(raw)} at {longest:,}{_doubt(found)}"
        yield f"{sentence}."
    if any(found.interval is None for found in _cells(measurement)):
        yield "One text for each task and length gives no interval. Measure more texts."
    yield from _costs(measurement)


def _cells(measurement: RetrievalMeasurement) -> list[Accuracy]:
    """Return each task at each length, of the first method."""
    found = [
        measurement.accuracy(measurement.methods[0], length=length, task=task)
        for length in measurement.protocol.lengths
        for task in measurement.protocol.tasks
    ]
    return [one for one in found if one is not None]


def _costs(measurement: RetrievalMeasurement) -> Iterator[str]:
    """Return the number of answers for each text, and the time of an answer."""
    found = [one for method in measurement.methods if (one := measurement.accuracy(method)) is not None]
    answers, texts, seconds = sum(one.n for one in found), sum(len(one.texts) for one in found), measurement.seconds
    if seconds:
        yield f"{answers / texts:.3g} answers for each text, {sum(seconds.values()) / answers:.2g} seconds each."


def _doubt(found: Accuracy) -> str:
    """Return a note if an accuracy may be guessing; nothing without an interval."""
    if found.interval is None:
        return ""
    return ", not distinguishable from guessing" if found.interval[0] <= found.chance else ""


def _cell(found: Accuracy | None) -> str:
    """Return an accuracy with its interval, 0.90 (0.60 to 0.98), or without one, 0.90."""
    if found is None:
        return "\u2013"
    if found.interval is None:
        return f"{found.value:.2f}"
    low, high = found.interval
    return f"{found.value:.2f} ({low:.2f} to {high:.2f})"
