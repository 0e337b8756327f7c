"""The rules of the verdict: comparisons with intervals, and the action they support."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from ropewalk.diagnosis.verdict import TOKEN_FREQUENCIES, Action, Comparison, Result, Where
from ropewalk.errors import RopeError
from ropewalk.measure.losses import CROP, PLAIN, Measurement
from ropewalk.methods import METHODS
from ropewalk.statistics import LEAST_BLOCKS, LOOK_CONFIDENCE, Interval, moderated_interval

MARGIN = 0.02  # nats per token that make no difference
TOLERATED = 0.05  # nats that a method may cost within the trained length by its mean
TOLERATED_END = 0.10  # nats that it may cost by its interval's end
NEAR = 0.10  # nats that a method which is shown to copy may lose to crop in a stretch

PREDICTS = "predicts the text"
HOLDS = "no worse than crop"
GAINS = "better than plain"
COSTS_LITTLE = "costs little within"
READS = "better than crop"
NEAR_CROP = "little worse than crop"
NO_BETTER = "better than crop by the margin"
COPIES = "copies"


def forgets(method: str) -> bool:
    """Return whether a method lowers the loss by ignoring distant tokens: a baseline, never recommended."""
    return method in METHODS and METHODS[method].forgets


@runtime_checkable
class Copies(Protocol):
    """The part of a measurement of copies that the verdict needs."""

    @property
    def can_copy(self) -> bool:
        """Return whether the model is shown to copy within its trained length."""

    def copies(self, method: str, stretch: int) -> Result:
        """Return whether a method is shown to copy from the farthest part of its context at the end of a stretch."""

    def beyond_bound(self, method: str, stretch: int) -> tuple[float, Interval] | None:
        """Return its gain there minus the bound, in nats per token, with its interval; None if it is unknown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossTable:
    """Each method's mean loss in nats per token by window and block, and the layout of the blocks.

    - `losses`: by method, `[window][block]`; plain and crop have all windows, others at least the first.
    - `frequencies`: `[window][block]` within the trained length: the loss of smoothed token frequencies of the text
      outside the window.
    - `weights`: losses in a block. `within`: the number of blocks within the trained length. `stretches`: `[first,
      last)` blocks of some parts beyond. `ends`: the position at which each stretch ends.
    - `texts`: the number of each window's text. `share`: the effective number of disjoint windows, over the number of
      windows.

    Raises `RopeError` if plain is missing, or if windows or blocks differ.
    """

    trained: int
    target: int
    losses: Mapping[str, Sequence[Sequence[float]]]
    frequencies: Sequence[Sequence[float]]
    weights: Sequence[int]
    within: int
    stretches: Sequence[tuple[int, int]] = ()
    ends: Sequence[int] = ()
    texts: Sequence[int] = ()
    share: float = 1.0

    def __post_init__(self) -> None:
        shapes = {name: np.shape(values) for name, values in self.losses.items()}
        whole = shapes.get(PLAIN, (0,))
        wrong = [
            name
            for name, shape in shapes.items()
            if len(shape) != 2 or shape[1] != len(self.weights) or not 0 < shape[0] <= whole[0]
        ]
        if PLAIN not in shapes or wrong or len(self.frequencies) < whole[0]:
            raise RopeError(
                "verdict: every method needs one loss for each block of its windows, and plain all windows.",
                facts={"[windows, blocks]": shapes, "blocks": len(self.weights), "wrong": wrong},
                cure="Measure plain and every other method on the same windows.",
            )

    @classmethod
    def of(cls, measurement: Measurement) -> LossTable:
        """Return the table of a measurement, with each distinct method once.

        Raises `RopeError` if token frequencies were not counted.
        """
        if measurement.frequencies is None:
            raise RopeError(
                "verdict: this measurement does not contain the losses of token frequencies.",
                facts={"methods": list(measurement.results)},
                cure="Measure with `ropewalk.doctor`, or add `measure.losses.frequency_losses`.",
            )
        protocol = measurement.protocol
        return cls(
            trained=protocol.trained_length,
            target=protocol.target,
            losses={
                name: measurement.block_means(name) for name in measurement.results if name not in measurement.same_as
            },
            frequencies=measurement.frequencies,
            weights=protocol.weights,
            within=protocol.blocks_within,
            stretches=protocol.stretches,
            ends=protocol.stretch_ends,
            texts=tuple(measurement.texts) or (0,) * measurement.windows,
            share=measurement.share,
        )

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return len(self.losses[PLAIN])

    @property
    def beyond(self) -> bool:
        """Return whether there are tokens beyond the trained length."""
        return len(self.weights) > self.within

    def mean(self, method: str, part: slice) -> float:
        """Return a method's mean loss in some blocks, over its windows."""
        rows = np.asarray(self.losses[method], dtype=np.float64)[:, part]
        return float(np.average(rows, axis=1, weights=np.asarray(self.weights[part])).mean())

    @property
    def inside(self) -> slice:
        """Return the blocks within the trained length."""
        return slice(0, self.within)

    @property
    def outside(self) -> slice:
        """Return the blocks beyond the trained length."""
        return slice(self.within, len(self.weights))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The comparisons of the rules. With `at_means`, intervals have no width, so each mean counts as certain.

    - `table`: the losses. `copies`: the measurement of copies, or None.
    - `runs`: the methods that the engine can run; None: all.
    - `between_texts`: whether the units of the intervals are texts, so they apply to texts like these; else windows,
      so they apply to the measured texts only.

    Intervals are those of `statistics.moderated_interval` at 98 %, which corrects for five looks.
    """

    table: LossTable
    copies: Copies | None = None
    runs: Collection[str] | None = None
    at_means: bool = False
    confidence: float = LOOK_CONFIDENCE
    between_texts: bool = False

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Return the methods to choose from, the lowest mean loss beyond first; none if crop was not measured."""
        if CROP not in self.table.losses or not self.table.beyond:
            return ()
        names = [name for name in self.table.losses if name != PLAIN and not forgets(name)]
        return tuple(sorted(names, key=self.mean_beyond))

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """Return the `methods` that the engine can run."""
        return tuple(name for name in self.methods if self.runs is None or name in self.runs)

    def mean_beyond(self, method: str) -> float:
        """Return the mean loss beyond the trained length in nats per token, adjusted to the windows of all methods."""
        return self.table.mean(method, self.table.outside) - self._hardness(method)

    def _hardness(self, method: str) -> float:
        """Return plain's mean loss on a method's windows, minus that on all windows."""
        count, plain = len(self.table.losses[method]), self.table.losses[PLAIN]
        part, weights = self.table.outside, np.asarray(self.table.weights[self.table.outside])
        rows = np.average(np.asarray(plain, dtype=np.float64)[:, part], axis=1, weights=weights)
        return float(rows[:count].mean() - rows.mean())

    @cached_property
    def fit(self) -> Comparison:
        """Compare plain's loss within the trained length with that of token frequencies."""
        mine = np.asarray(self.table.losses[PLAIN], dtype=np.float64)[:, self.table.inside]
        theirs = np.asarray(self.table.frequencies, dtype=np.float64)[: len(mine)]
        return self._compared(PREDICTS, PLAIN, TOKEN_FREQUENCIES, "within", mine - theirs, self.table.inside, None)

    def holds(self, stretch: int) -> Comparison:
        """Compare plain's loss in a stretch with crop's plus 0.02 nats."""
        return self._beyond(HOLDS, PLAIN, CROP, MARGIN, stretch, stretch)

    def gain(self, method: str, stretch: int | None = None) -> Comparison:
        """Compare a method's loss with plain's, up to the end of a stretch (None: of all)."""
        last = len(self.table.stretches) - 1 if stretch is None else stretch
        return self._beyond(GAINS, method, PLAIN, 0.0, 0, last)

    def cost(self, method: str) -> Comparison:
        """Compare a method's cost within the trained length with the largest allowed mean and end of the interval."""
        found = self._within(COSTS_LITTLE, method, PLAIN, TOLERATED_END)
        low, high = found.interval or (None, None)
        result: Result = "open"
        if high is not None and found.difference <= TOLERATED and high <= TOLERATED_END:
            result = "shown"
        elif low is not None and low > TOLERATED:
            result = "refuted"
        return dataclasses.replace(found, result=result)

    def by_block(self, method: str, against: str) -> list[tuple[float, Interval]]:
        """Return the difference of two methods in each block, with its interval."""
        found = []
        for region in (self.table.inside, self.table.outside):
            apart = self._apart(method, against, region)
            for number in range(apart.shape[1]):
                part = slice(number, number + 1)
                one = self._compared("", method, against, "", apart, region, part)
                found.append((one.difference, one.interval))
        return found

    def reads(self, method: str, stretch: int) -> Comparison:
        """Compare a method's loss in a stretch with crop's."""
        return self._beyond(READS, method, CROP, 0.0, stretch, stretch)

    def near_crop(self, method: str, stretch: int) -> Comparison:
        """Compare a method's loss in a stretch with crop's plus 0.10 nats."""
        return self._beyond(NEAR_CROP, method, CROP, NEAR, stretch, stretch)

    def no_better(self, method: str, stretch: int) -> Comparison:
        """Compare a method's loss in a stretch with crop's minus 0.02 nats."""
        return self._beyond(NO_BETTER, method, CROP, -MARGIN, stretch, stretch)

    def against_crop(self, method: str) -> Comparison:
        """Compare a method's loss beyond the trained length with crop's; with 0.10 nats more if it copies there."""
        copies = self.copies_at(method, 0) == "shown"
        name, margin = (NEAR_CROP, NEAR) if copies else (READS, 0.0)
        return self._beyond(name, method, CROP, margin, 0, len(self.table.stretches) - 1)

    def copied(self, method: str, stretch: int) -> Comparison | None:
        """Compare the bound with a method's gain at the end of a stretch."""
        found = None if self.copies is None else self.copies.beyond_bound(method, stretch)
        if found is None or self.copies is None:
            return None
        mean, interval = found
        turned = None if interval is None else (-interval[1], -interval[0])
        if self.at_means:
            turned = (-mean, -mean)
        result = _result(turned, 0.0) if self.at_means else self.copies.copies(method, stretch)
        where = self._where(stretch, stretch)
        back = f"more than {self.table.trained:,} tokens before" if where == "beyond" else f"{where} tokens before"
        return Comparison(
            name=COPIES, method=method, against="a third of the gain within", where=back, difference=-mean,
            interval=turned, margin=0.0, result=result,
        )  # fmt: skip

    def copies_at(self, method: str, stretch: int) -> Result:
        """Return whether a method is shown to copy at the end of a stretch."""
        found = self.copied(method, stretch)
        return "open" if found is None else found.result

    def extends(self, method: str, stretch: int) -> Result:
        """Return whether a method is shown to extend over a stretch.

        "shown" if its loss is lower than crop's, or little higher and it copies there. "refuted" if its loss is higher
        than that, or not lower than crop's and it does not copy.
        """
        near = self.near_crop(method, stretch).result
        copies = self.copies_at(method, stretch)
        if self.reads(method, stretch).result == "shown" or (near == "shown" and copies == "shown"):
            return "shown"
        no_better = self.no_better(method, stretch).result == "refuted"
        return "refuted" if near == "refuted" or (no_better and copies == "refuted") else "open"

    @cached_property
    def plain_stretches(self) -> int:
        """Return the number of stretches over which plain is shown to hold."""
        return self._before(self.holds(number).result == "shown" for number in range(len(self.table.stretches)))

    def stretches_of(self, method: str) -> int:
        """Return the number of stretches over which a method is shown to extend, from the first on.

        The stretches are tested in order until one is not shown, so no interval has to be widened for several tests (a
        fixed sequence of tests, Maurer, Hothorn and Lehmacher 1995).
        """
        return self._before(self.extends(method, number) == "shown" for number in range(len(self.table.stretches)))

    def length(self, stretches: int) -> int:
        """Return the length in tokens at the end of the first `stretches` stretches."""
        return self.table.ends[stretches - 1] if stretches else min(self.table.trained, self.table.target)

    def reach_loss(self, method: str) -> int:
        """Return the length in tokens up to which a method's loss is shown to be little higher than crop's."""
        compare = self.holds if method == PLAIN else lambda number: self.near_crop(method, number)
        unknown = CROP not in self.table.losses
        count = 0 if unknown else len(self.table.stretches)
        return self.length(self._before(compare(number).result == "shown" for number in range(count)))

    def refuted(self, method: str) -> bool:
        """Return whether a method is shown not to extend: it costs too much or fails in the first stretch."""
        return self.cost(method).result == "refuted" or self.extends(method, 0) == "refuted"

    @staticmethod
    def _before(shown: Iterable[bool]) -> int:
        count = 0
        for one in shown:
            if not one:
                break
            count += 1
        return count

    def _where(self, first: int, last: int) -> Where:
        if first == 0 and last == len(self.table.stretches) - 1:
            return "beyond"
        start = self.table.trained if first == 0 else self.table.ends[first - 1]
        return f"{start:,} to {self.table.ends[last]:,}"

    def _apart(self, method: str, against: str, region: slice) -> np.ndarray:
        count = min(len(self.table.losses[method]), len(self.table.losses[against]))
        mine, theirs = (
            np.asarray(self.table.losses[name], dtype=np.float64)[:count, region] for name in (method, against)
        )
        return mine - theirs

    def _within(self, name: str, method: str, against: str, margin: float) -> Comparison:
        apart = self._apart(method, against, self.table.inside)
        return self._compared(name, method, against, "within", apart, self.table.inside, None, margin)

    def _beyond(self, name: str, method: str, against: str, margin: float, first: int, last: int) -> Comparison:
        begin = self.table.within
        part = slice(self.table.stretches[first][0] - begin, self.table.stretches[last][1] - begin)
        apart = self._apart(method, against, self.table.outside)
        return self._compared(name, method, against, self._where(first, last), apart, self.table.outside, part, margin)

    def _compared(
        self,
        name: str,
        method: str,
        against: str,
        where: Where,
        apart: np.ndarray,
        region: slice,
        part: slice | None,
        margin: float = 0.0,
    ) -> Comparison:
        weights = np.asarray(self.table.weights[region])
        texts = self.table.texts[: len(apart)] if self.between_texts else None
        interval: Interval
        if apart.shape[1] < LEAST_BLOCKS and len(apart) == 1:
            chosen = slice(None) if part is None else part
            difference, interval = float(np.average(apart[0, chosen], weights=weights[chosen])), None
        else:
            difference, interval = moderated_interval(
                apart,
                weights=weights,
                part=part,
                texts=texts,
                confidence=self.confidence,
                share=max(self.table.share, 1 / len(apart)),
            )
        if self.at_means:
            interval = (difference, difference)
        return Comparison(
            name=name,
            method=method,
            against=against,
            where=where,
            difference=difference,
            interval=interval,
            margin=margin,
            result=_result(interval, margin),
        )


def _result(interval: Interval, margin: float) -> Result:
    if interval is None or interval[0] < margin <= interval[1]:
        return "open"
    return "shown" if interval[1] < margin else "refuted"


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action, its method if it has one, and the number of stretches over which it is shown.

    - `final`: whether no open comparison could change the action or extend its reach.
    """

    action: Action
    method: str | None = None
    stretches: int = 0
    final: bool = False


def apply_rules(evidence: Evidence) -> Decision:
    """Return the first action that is shown, in the order unfit, keep, extend, cut; "undecided" if there is none.

    See `wording.decide`.
    """
    fit, table = evidence.fit, evidence.table
    if fit.result != "shown":
        unfit = fit.difference >= 0
        return Decision("unfit" if unfit else "undecided", final=fit.result == "refuted")
    if not table.beyond:
        return Decision("keep", final=True)
    if CROP not in table.losses:
        return Decision("undecided")
    kept, best = evidence.plain_stretches, best_method(evidence, evidence.candidates)
    reached = 0 if best is None else evidence.stretches_of(best)
    if kept == len(table.stretches):
        return Decision("keep", stretches=kept, final=True)
    if best is not None and reached > kept:
        return Decision("extend", best, reached, final=not _further(evidence, best, reached))
    plain_open = evidence.holds(kept).result == "open"
    others = [name for name in evidence.candidates if not evidence.refuted(name)]
    if kept:
        return Decision("keep", stretches=kept, final=not plain_open and not others)
    if not plain_open and not others:
        return Decision("cut", final=True)
    return Decision("undecided")


def best_method(evidence: Evidence, names: Sequence[str]) -> str | None:
    """Return the best of the methods that are shown to extend: the longest reach, then the lowest loss; or None.

    Also None while an open method with a loss lower by more than 0.05 nats could reach as far.
    """
    shown = {
        name: stretches
        for name in names
        if evidence.cost(name).result == "shown"
        and (stretches := evidence.stretches_of(name))
        and "shown" in (evidence.gain(name).result, evidence.gain(name, stretches - 1).result)
    }
    if not shown:
        return None
    best = min(shown, key=lambda name: (-shown[name], evidence.mean_beyond(name)))
    bound = evidence.mean_beyond(best) - TOLERATED
    if any(evidence.mean_beyond(name) < bound and not evidence.refuted(name) for name in names if name not in shown):
        return None
    return best


def _further(evidence: Evidence, method: str, stretches: int) -> bool:
    """Return whether the next stretch is open, for the method or for plain."""
    if stretches == len(evidence.table.stretches):
        return False
    return evidence.extends(method, stretches) == "open"


def open_comparisons(evidence: Evidence, decision: Decision) -> tuple[Comparison, ...]:
    """Return the open comparisons that prevent an action or a longer reach; none if the decision is final."""
    if decision.final:
        return ()
    if evidence.fit.result == "open":
        return (evidence.fit,)
    if CROP not in evidence.table.losses:
        return ()
    if decision.action == "extend" and decision.method is not None:
        return _open(_extending(evidence, decision.method, decision.stretches))
    kept, found = evidence.plain_stretches, list[Comparison]()
    for name in evidence.candidates:
        if not evidence.refuted(name):
            stretch = min(evidence.stretches_of(name), len(evidence.table.stretches) - 1)
            found += _open((*_extending(evidence, name, stretch), evidence.cost(name), evidence.gain(name)))
    return (*found, *_open((evidence.holds(kept),)))


def _extending(evidence: Evidence, method: str, stretch: int) -> tuple[Comparison, ...]:
    """Return the comparisons that decide whether a method extends over a stretch."""
    copied, near = evidence.copied(method, stretch), evidence.near_crop(method, stretch)
    if copied is None or copied.result == "refuted":  # then the loss must be shown to be better
        return (near, evidence.reads(method, stretch))
    return (near, copied)


def every_comparison(evidence: Evidence) -> tuple[Comparison, ...]:
    """Return all comparisons of the rules, in their order; methods are ordered by their mean loss beyond."""
    if CROP not in evidence.table.losses or not evidence.table.beyond:
        return (evidence.fit,)
    stretches = range(len(evidence.table.stretches))
    found = [evidence.fit, *(evidence.holds(number) for number in stretches)]
    for name in evidence.methods:
        found += [evidence.gain(name), evidence.cost(name), evidence.against_crop(name)]
        for number in stretches:
            copied = evidence.copied(name, number)
            found += [evidence.reads(name, number), evidence.near_crop(name, number)]
            found += [] if copied is None else [copied]
    return tuple(found)


def _open(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    return tuple(comparison for comparison in comparisons if comparison.result == "open")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One method's mean losses in nats within and beyond the trained length, and its paired differences.

    - `within_difference`, `beyond_difference`: from plain. `crop_difference`: from crop, beyond. The intervals are
      those of the verdict's evidence.
    - `affordable`: whether it is shown to cost little within; by the mean if there is no interval.
    """

    name: str
    within: float
    beyond: float | None
    within_difference: float
    within_interval: Interval
    beyond_difference: float | None
    beyond_interval: Interval
    crop_difference: float | None
    crop_interval: Interval
    affordable: bool
    windows: int


def standings(measurement: Measurement) -> dict[str, Standing]:
    """Return every method's standing, by name; methods that share numbers have equal standings.

    The loss of a method that was given up early is plain's on all windows plus the difference on its own windows.
    """
    evidence, found = Evidence(LossTable.of(measurement)), {}
    table, extends = evidence.table, evidence.table.beyond
    for name in measurement.results:
        own = measurement.same_as.get(name, name)
        cost = evidence.cost(own)
        gain = evidence.gain(own) if extends else None
        apart = evidence.against_crop(own) if extends and CROP in table.losses else None
        found[name] = Standing(
            name=name,
            within=table.mean(PLAIN, table.inside) + cost.difference,
            beyond=table.mean(PLAIN, table.outside) + gain.difference if gain is not None else None,
            within_difference=cost.difference,
            within_interval=cost.interval,
            beyond_difference=None if gain is None else gain.difference,
            beyond_interval=None if gain is None else gain.interval,
            crop_difference=None if apart is None or own == CROP else apart.difference,
            crop_interval=None if apart is None or own == CROP else apart.interval,
            affordable=cost.difference <= TOLERATED if cost.interval is None else cost.result == "shown",
            windows=len(measurement.results[name]),
        )
    return found
