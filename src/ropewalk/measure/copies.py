"""Copies: does a model repeat distant text of its own context? Measured in the same pass as the losses.

After a number of tokens of a window, the model is asked for spans of the window's own text: it gets the first tokens of
a span, and the log-probability of the others is measured. The questions are branches after the cached prefix, so the
window and its losses do not change. Spans of unseen text are asked for in the same way.

The gain of a span is its log-probability per token after the window, minus that after its own first tokens only. The
mean of the same difference over the unseen spans is subtracted. The difficulty of a span cancels, and so does the cost
of a long context for every prediction.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.measure.plan import LossProtocol
from ropewalk.readers.reader import Prefix, Reader
from ropewalk.statistics import CONFIDENCE, LOOK_CONFIDENCE, STUDENT_FROM, Interval, t_quantile

LONG_SPAN, SHORT_SPAN = (32, 8), (16, 4)  # tokens of a span, and of its first part, which is given
LONG_TARGET = 6144  # tokens: shorter windows have short spans, of which the fewest fit into the share of time
SHARE_OF_READING = 0.15  # of the time of a reading that all questions may take
COST = {True: 1.7, False: 0.9}  # time of a token that is asked for over that of one that is read; of long windows
MOST_SPANS = 64
SKIPPED = 8  # first tokens of a window: models treat them differently
SHARE = 1 / 3  # of the gain within the trained length that a method must exceed to copy
LEAST_GAIN = 0.1  # nats per token within the trained length: below, the model does not copy, and nothing is concluded
PRIOR, PRIOR_DF = 1.25, 8  # of the moderated t: a window varies this much more than its spans say

Result = Literal["shown", "refuted", "open"]


@dataclass(frozen=True)
class Range:
    """A range of distances: `count` spans in each window start at least `start` and less than `stop` tokens back."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True)
class Stop:
    """A length at which spans are asked for. Questions end at `length` tokens and begin one span earlier.

    - `ranges`: the ranges of distances. `decides`: whether the last range decides if a method copies at this length.
    """

    length: int
    ranges: tuple[Range, ...]
    decides: bool = True


@dataclass(frozen=True)
class SpanDesign:
    """The questions of one window. Lengths are in tokens.

    - `span`: tokens of a span; the model gets the first `cue`. `unread`: number of unseen spans, used at every stop.
    - `control`: the stop at the trained length, for plain only. `stops`: the ends of the stretches beyond.

    >>> protocol = LossProtocol.choose(trained_length=8192, target=16384, text="t", windows=1)
    >>> design = SpanDesign.choose(protocol)
    >>> design.control.length, [stop.length for stop in design.stops]
    (8192, [11264, 13312, 16384])
    """

    span: int
    cue: int
    unread: int
    control: Stop
    stops: tuple[Stop, ...]

    @classmethod
    def choose(cls, protocol: LossProtocol) -> SpanDesign | None:
        """Choose the questions for a window; None if it is too short, or lies within the trained length."""
        trained, target, ends = protocol.trained_length, protocol.target, protocol.stretch_ends
        span, cue = LONG_SPAN if target >= LONG_TARGET else SHORT_SPAN
        if not ends or trained < 8 * span or min(np.diff([trained, *ends])) < 2 * span:
            return None
        tokens = SHARE_OF_READING * target / COST[target >= LONG_TARGET]
        spans = min(MOST_SPANS, int(tokens / span))
        unread = max(2, round(spans / (3 * len(ends) + 2)))
        left = spans - unread * len(ends)
        far = max(2, round(left / (len(ends) + 1)))
        nearer = max(2, left - far * len(ends))
        within = max(2, round(nearer / 2))
        control = Stop(trained, _ranges([span, trained // 2, trained - span - SKIPPED], max(4, spans // 4)))
        stops = []
        for number, length in enumerate(ends):
            last = Range((trained, *ends)[number], length - span - SKIPPED, far)
            others: tuple[Range, ...] = ()
            if number == len(ends) - 1:
                others = _ranges([span, trained // 2, trained], within)
                others += _ranges([trained, *ends[:-1]], nearer - within) if number else ()
            stops.append(Stop(length, (*others, last)))
        return cls(span, cue, unread, control, tuple(stops))

    @property
    def tokens(self) -> int:
        """Return the number of tokens asked for in a window under a method other than plain."""
        return self.span * sum(self.unread + sum(part.count for part in stop.ranges) for stop in self.stops)

    def stops_of(self, method: str) -> tuple[Stop, ...]:
        """Return the stops at which a method is asked."""
        return (self.control, *self.stops) if method == "plain" else self.stops


def _ranges(cuts: Sequence[int], count: int) -> tuple[Range, ...]:
    """Return ranges between the cuts with `count` spans in all, at least one in each."""
    parts = len(cuts) - 1
    counts = [count // parts + (number < count % parts) for number in range(parts)]
    return tuple(
        Range(start, stop, max(1, number)) for start, stop, number in zip(cuts[:-1], cuts[1:], counts, strict=True)
    )


Ids = list[int]


@dataclass(frozen=True)
class WindowSpans:
    """The spans of one window: the token ids and the distance of each by stop, and the unseen spans."""

    design: SpanDesign
    read: Mapping[int, tuple[tuple[Ids, int, int], ...]]
    unread: tuple[Ids, ...]

    @classmethod
    def draw(
        cls,
        design: SpanDesign,
        window: Sequence[int],
        elsewhere: Sequence[Sequence[int]],
        *,
        seed: Sequence[int],
    ) -> WindowSpans:
        """Draw the spans of a window.

        - `window`: its tokens. `elsewhere`: runs of tokens outside the window, in order of preference.
        """
        random, read = np.random.default_rng([*seed, 7]), {}
        for stop in (design.control, *design.stops):
            found = []
            for number, part in enumerate(stop.ranges):
                edges = np.linspace(part.start, part.stop, part.count + 1)
                for low, high in itertools.pairwise(edges):
                    back = int(random.integers(math.ceil(low), max(math.ceil(low) + 1, math.ceil(high))))
                    begin = max(0, stop.length - design.span - back)
                    found.append((list(window[begin : begin + design.span]), back, number))
            read[stop.length] = tuple(found)
        return cls(design, read, tuple(_unread(design, elsewhere, random)))

    @property
    def all(self) -> list[Ids]:
        """Return every span once: those of each stop in order, then the unseen ones."""
        return [*(ids for of_stop in self.read.values() for ids, _, _ in of_stop), *self.unread]

    def stops(self, method: str) -> tuple[int, ...]:
        """Return the numbers of tokens after which a method is asked for spans."""
        return tuple(stop.length - self.design.span for stop in self.design.stops_of(method))

    def asking(self, method: str, answers: dict[str, list[float]]) -> dict[int, Any]:
        """Return the callbacks by which `Reader.window_losses` asks for spans at the stops; they fill `answers`."""

        def ask(stop: Stop, prefix: Prefix) -> None:
            spans = [*(ids for ids, _, _ in self.read[stop.length]), *self.unread]
            cue = self.design.cue
            found = prefix.ask([(ids[:cue], [ids[cue:]]) for ids in spans])
            answers[str(stop.length)] = [value / (self.design.span - cue) for [value] in found]

        return {
            stop.length - self.design.span: (lambda prefix, stop=stop: ask(stop, prefix))
            for stop in self.design.stops_of(method)
        }

    def alone(self, reader: Reader) -> list[float]:
        """Return the log-probability per token of each span of `all` after its own first tokens only."""
        cue, spans = self.design.cue, self.all
        found = reader.continuation_log_probs([(ids[:cue], ids[cue:]) for ids in spans], batch=32)
        return [value / (self.design.span - cue) for value, _ in found]


def _unread(design: SpanDesign, elsewhere: Sequence[Sequence[int]], random: np.random.Generator) -> Iterator[Ids]:
    """Yield unseen spans, spaced evenly over the first runs that contain enough of them."""
    places: list[tuple[int, int]] = []
    for number, run in enumerate(elsewhere):
        places += [(number, start) for start in range(0, len(run) - design.span + 1, design.span)]
        if len(places) >= 4 * design.unread:
            break
    if len(places) < design.unread:
        raise RopeError(
            "copies: the texts are too short for spans outside the window.",
            facts={"spans outside the window": len(places), "needed": design.unread},
            cure="Give a longer --text, or pass --measure loss.",
        )
    chosen = np.sort(random.choice(len(places), design.unread, replace=False))
    for index in chosen:
        number, start = places[int(index)]
        yield list(elsewhere[number][start : start + design.span])


@dataclass(frozen=True, kw_only=True)
class CopyRow:
    """The gain of a method at a length, from spans `start` to `stop` tokens back.

    - `gain`: nats per token. `interval`: of the mean over windows, or over texts if there are several; None: unknown.
    - `distance`: the mean, in tokens. `spans`: the total number, in `windows` windows.
    - `decides`: whether the verdict uses this row, the farthest range at its length. `result`: whether the gain is
      shown to exceed the bound.
    """

    method: str
    length: int
    start: int
    stop: int
    distance: float
    gain: float
    interval: Interval
    spans: int
    windows: int
    decides: bool = False
    result: Result = "open"

    def to_json(self) -> dict[str, Any]:
        """Return the row as the record contains it."""
        content = dataclasses.asdict(self)
        return {**content, "from": content.pop("start"), "to": content.pop("stop")}


@dataclass(frozen=True)
class Answers:
    """The answers of a method in one window: for each stop, the gains of the window's spans and of the unseen ones.

    Each is the log-probability minus that after the span's own first tokens only, in nats per token.
    """

    read: Mapping[int, Sequence[float]]
    unread: Mapping[int, Sequence[float]]


Sample = tuple[float, Sequence[float]]
"""A coefficient, and values; the coefficient multiplies their mean."""


def combined(
    windows: Sequence[Sequence[Sample]], texts: Sequence[int], *, confidence: float = LOOK_CONFIDENCE
) -> tuple[float, Interval]:
    """Return the mean over units of a sum of multiples of means, and its moderated t interval.

    **Arguments:**
    - `windows`: for each window, the same samples in the same order. `texts`: the number of each window's text. The
      units are the windows, or the texts if there are several.

    The prior variance of a window's value is 1.25^2 times the variance estimated from its spans (pooled over windows),
    with at most 8 degrees of freedom (Smyth 2004, "Linear models and empirical Bayes methods"). With 16 units or more,
    the interval is Student's t.

    >>> mean, (low, high) = combined([[(1.0, [1.0, 2.0, 3.0]), (-1.0, [0.0, 0.5])]], [0])
    >>> mean, low < 0.5 < 3 < high
    (1.75, True)
    """
    values = [sum(factor * float(np.mean(sample)) for factor, sample in window) for window in windows]
    kinds = range(len(windows[0]))
    spread, df = [], 0
    for kind in kinds:
        samples = [np.asarray(window[kind][1], dtype=np.float64) for window in windows]
        free = sum(len(sample) - 1 for sample in samples)
        squares = sum(float(((sample - sample.mean()) ** 2).sum()) for sample in samples)
        spread.append(math.nan if free < 1 else squares / free)
        df += free
    units = _units(values, texts)
    mean, count = float(np.mean([np.mean(unit) for unit in units])), len(units)
    if count < STUDENT_FROM and any(math.isnan(one) for one in spread):
        return mean, None
    of_windows = [
        sum(window[kind][0] ** 2 * spread[kind] / len(window[kind][1]) for kind in kinds) for window in windows
    ]
    of_units = [float(np.mean(part)) / len(part) for part in _units(of_windows, texts)]
    prior, free = PRIOR**2 * float(np.mean(of_units)), min(PRIOR_DF, df)
    if count >= STUDENT_FROM:
        prior, free = 0.0, 0
    between = float(np.var([np.mean(unit) for unit in units], ddof=1)) if count > 1 else 0.0
    variance = (free * prior + (count - 1) * between) / (free + count - 1)
    half = t_quantile(free + count - 1, confidence=confidence) * math.sqrt(variance / count)
    return mean, (mean - half, mean + half)


def _units(values: Sequence[float], texts: Sequence[int]) -> list[list[float]]:
    """Return the values of each unit: one window each, or those of a text if there are several texts."""
    if len(set(texts)) == 1:
        return [[value] for value in values]
    return [[value for value, of in zip(values, texts, strict=True) if of == text] for text in sorted(set(texts))]


@dataclass(frozen=True, kw_only=True)
class CopyMeasurement:
    """The copies of every method, and the control: plain at the trained length.

    - `answers`: by method and window. `distances`: of the window's spans in tokens, by window and stop. `ranges`: the
      number of each span's range. `texts`: the number of each window's text.
    - `notes`: why nothing was measured. `between_texts`: whether the units of intervals are texts, not windows.
    """

    trained_length: int
    target: int
    design: SpanDesign | None
    answers: Mapping[str, Sequence[Answers]] = dataclasses.field(default_factory=dict)
    distances: Sequence[Mapping[int, Sequence[int]]] = ()
    ranges: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    texts: Sequence[int] = ()
    notes: tuple[str, ...] = ()
    confidence: float = LOOK_CONFIDENCE
    between_texts: bool = False

    def over_texts(self) -> CopyMeasurement:
        """Return the same with intervals between texts, which apply to texts like these."""
        return dataclasses.replace(self, between_texts=True)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that were asked for spans."""
        return tuple(self.answers)

    def control(self, confidence: float | None = None) -> tuple[float, Interval] | None:
        """Return plain's gain within the trained length in nats per token, over all distances; None: not measured."""
        if self.design is None or not self.answers.get("plain"):
            return None
        windows = self.answers["plain"]
        return combined(
            [self._gain(one, self.trained_length, None) for one in windows],
            self._texts(windows),
            confidence=self.confidence if confidence is None else confidence,
        )

    @property
    def can_copy(self) -> bool:
        """Return whether the model is shown to copy within its trained length."""
        found = self.control(CONFIDENCE)
        return found is not None and found[1] is not None and found[1][0] > LEAST_GAIN

    @property
    def bound(self) -> float | None:
        """Return a third of the control's gain in nats per token; None if the model is not shown to copy."""
        found = self.control()
        return SHARE * found[0] if found is not None and self.can_copy else None

    def copies(self, method: str, stretch: int) -> Result:
        """Return whether a method is shown to copy from the farthest part of its context at the end of a stretch.

        "shown" if the interval of its gain minus a third of the control's lies above 0, "refuted" if below 0.
        """
        found = self.beyond_bound(method, stretch)
        if found is None or found[1] is None:
            return "open"
        low, high = found[1]
        return "shown" if low > 0 else "refuted" if high < 0 else "open"

    def beyond_bound(self, method: str, stretch: int) -> tuple[float, Interval] | None:
        """Return the gain in the farthest range of a stretch's end, minus a third of the control's; None: unknown."""
        if self.design is None or not self.can_copy or not self.answers.get(method):
            return None
        stop, windows = self.design.stops[stretch], self.answers[method]
        last = len(stop.ranges) - 1
        plain = self.answers["plain"][: len(windows)]
        rows = [
            [
                *self._gain(one, stop.length, last),
                *((-SHARE * factor, values) for factor, values in self._gain(other, self.trained_length, None)),
            ]
            for one, other in zip(windows, plain, strict=True)
        ]
        return combined(rows, self._texts(windows), confidence=self.confidence)

    def near(self, method: str) -> tuple[float, Interval] | None:
        """Return a method's gain from tokens within the trained length at the target, minus the control's."""
        if self.design is None or not self.can_copy or not self.answers.get(method):
            return None
        stop, windows = self.design.stops[-1], self.answers[method]
        inside = {number for number, part in enumerate(stop.ranges) if part.stop <= self.trained_length}
        plain = self.answers["plain"][: len(windows)]
        rows = [
            [
                *self._gain(one, stop.length, inside),
                *((-factor, values) for factor, values in self._gain(other, self.trained_length, None)),
            ]
            for one, other in zip(windows, plain, strict=True)
        ]
        return combined(rows, self._texts(windows), confidence=self.confidence)

    def reach(self, method: str) -> int | None:
        """Return the largest length up to which the method is shown, at every stop, to copy from the farthest part.

        None if it is not shown at the first stop, or if the model does not copy within its trained length.
        """
        reached = None
        for number in range(len(self.design.stops) if self.design is not None else 0):
            if self.copies(method, number) != "shown":
                break
            assert self.design is not None
            reached = self.design.stops[number].length
        return reached

    def rows(self) -> list[CopyRow]:
        """Return a row for each method, length and range of distances; the control's first."""
        if self.design is None:
            return []
        found = []
        for method, windows in self.answers.items():
            for stop in self.design.stops_of(method):
                for number, part in enumerate(stop.ranges):
                    gain, interval = combined(
                        [self._gain(one, stop.length, number) for one in windows],
                        self._texts(windows),
                        confidence=self.confidence,
                    )
                    back = [
                        distance
                        for of_window in self.distances[: len(windows)]
                        for distance, of in zip(of_window[stop.length], self.ranges[stop.length], strict=True)
                        if of == number
                    ]
                    decides = stop is not self.design.control and number == len(stop.ranges) - 1
                    row = CopyRow(
                        method=method,
                        length=stop.length,
                        start=part.start,
                        stop=part.stop,
                        distance=float(np.mean(back)),
                        gain=gain,
                        interval=interval,
                        spans=len(back),
                        windows=len(windows),
                        decides=decides,
                        result=self.copies(method, self.design.stops.index(stop)) if decides else "open",
                    )
                    found.append(row)
        return found

    def sentences(self) -> list[str]:
        """Return the result in sentences."""
        found = self.control()
        if found is None:
            return list(self.notes)
        gain, interval = found
        around = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
        first = f"Copies: within the trained length, a repeated span gains {gain:.2f}{around} nats per token."
        if not self.can_copy:
            return [f"{first} This is too small or too uncertain for a conclusion about more distant tokens."]
        lines = [first]
        for method in self.methods:
            results = [self.copies(method, number) for number in range(len(self._stops))]
            reach = self.reach(method)
            if reach is not None:
                line = f"{method} copies tokens up to {reach:,} back"
                following = next((stop.length for stop in self._stops if stop.length > reach), None)
                if following is not None:
                    state = results[[stop.length for stop in self._stops].index(following)]
                    line += f"; at {following:,} it {'does not' if state == 'refuted' else 'is not shown to'}"
            elif results and results[0] == "refuted":
                line = f"{method} does not copy tokens more than {self.trained_length:,} back"
            else:
                line = f"{method} is not shown to copy tokens more than {self.trained_length:,} back"
            near = self.near(method)
            if near is not None and near[1] is not None and near[1][1] < -SHARE * gain / 2:
                line += ", and copies nearer tokens less well than the model does within "
                line += f"{self.trained_length:,} tokens (by {-near[0]:.2f} nats per token)"
            lines.append(line + ".")
        return [*lines, *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as the record contains it, with every answer."""
        found = self.control()
        content: dict[str, Any] = {
            "span": None if self.design is None else self.design.span,
            "cue": None if self.design is None else self.design.cue,
            "trained_length": self.trained_length,
            "control": None,
            "bound": self.bound,
            "rows": [row.to_json() for row in self.rows()],
            "spans": list(self._every_answer()),
            "notes": list(self.notes),
            "sentences": self.sentences(),
        }
        if found is not None:
            spans = sum(len(one.read[self.trained_length]) for one in self.answers["plain"])
            windows = len(self.answers["plain"])
            content["control"] = {"gain": found[0], "interval": found[1], "spans": spans, "windows": windows}
        cleaned: dict[str, Any] = finite(content)
        return cleaned

    @property
    def _stops(self) -> tuple[Stop, ...]:
        return () if self.design is None else self.design.stops

    def _texts(self, windows: Sequence[Answers]) -> Sequence[int]:
        return self.texts[: len(windows)] if self.between_texts else (0,) * len(windows)

    def _gain(self, one: Answers, length: int, part: int | set[int] | None) -> list[Sample]:
        """Return the samples of a gain: the spans of a range (or several, or all), minus the unseen ones."""
        wanted = {part} if isinstance(part, int) else part
        of = self.ranges[length]
        values = [
            value for value, number in zip(one.read[length], of, strict=True) if wanted is None or number in wanted
        ]
        return [(1.0, values), (-1.0, one.unread[length])]

    def _every_answer(self) -> Iterator[dict[str, Any]]:
        """Yield each answer: the log-probability after the window minus that after the cue only, in nats per token."""
        for method, windows in self.answers.items():
            for number, one in enumerate(windows):
                for length, values in one.read.items():
                    for back, value in zip(self.distances[number][length], values, strict=True):
                        yield {"method": method, "window": number, "length": length, "distance": back, "value": value}
                    for value in one.unread[length]:
                        yield {"method": method, "window": number, "length": length, "distance": None, "value": value}


def gather_copies(
    protocol: LossProtocol,
    spans: Sequence[WindowSpans],
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    texts: Sequence[int],
) -> CopyMeasurement:
    """Return the measurement from the results of a run.

    - `spans`: of each window. `results`: by method and window: "asked" by length, and for plain also "alone".
    - `texts`: the number of each window's text.
    """
    if not spans:
        return CopyMeasurement(
            trained_length=protocol.trained_length, target=protocol.target, design=None, notes=(_why_not(protocol),)
        )
    answers: dict[str, list[Answers]] = {}
    for method, windows in results.items():
        for number, result in enumerate(windows):
            alone, begin = results["plain"][number]["alone"], 0
            of_unread = alone[len(alone) - len(spans[number].unread) :]
            read, unread = {}, {}
            for length, of_stop in spans[number].read.items():
                own, begin = alone[begin : begin + len(of_stop)], begin + len(of_stop)
                if str(length) in result["asked"]:
                    after = result["asked"][str(length)]
                    read[length] = [a - b for a, b in zip(after, own, strict=False)]
                    unread[length] = [a - b for a, b in zip(after[len(of_stop) :], of_unread, strict=True)]
            answers.setdefault(method, []).append(Answers(read, unread))
    return CopyMeasurement(
        trained_length=protocol.trained_length,
        target=protocol.target,
        design=spans[0].design,
        answers=answers,
        distances=[{length: [back for _, back, _ in of] for length, of in one.read.items()} for one in spans],
        ranges={length: [number for _, _, number in of] for length, of in spans[0].read.items()},
        texts=list(texts),
    )


def _why_not(protocol: LossProtocol) -> str:
    """Return the reason why no spans are measured."""
    if protocol.target <= protocol.trained_length:
        return "Copies: not measured, because the target lies within the trained length."
    return "Copies: not measured, because these lengths are too short for the spans."
