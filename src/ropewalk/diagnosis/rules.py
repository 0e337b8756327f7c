"""The rules of the verdict: intervals, comparisons, and the action that they support."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from ropewalk.diagnosis.verdict import TOKEN_FREQUENCIES, Action, Comparison, Result, Where
from ropewalk.measure.copy_test import UseMeasurement, span_of
from ropewalk.measure.losses import CROP, PLAIN, Measurement, WindowLosses
from ropewalk.methods import METHODS
from ropewalk.statistics import Interval, mean_and_interval, plus_minus, t_quantile, windows_needed

MARGIN = 0.02  # nats per token that make no difference
TOLERATED = 0.05  # nats that a method may cost within the trained length by its mean
TOLERATED_END = 0.10  # nats that it may cost by its interval's end
NEAR = 0.05  # nats that a method which is shown to use far tokens may lose to crop

PREDICTS = "predicts the text"
HOLDS = "no worse than crop"
GAINS = "better than plain"
COSTS_LITTLE = "costs little within"
BEATS_CROP = "better than crop"
NEAR_CROP = "little worse than crop"
BEATS_CROP_BY_MARGIN = "better than crop by the margin"


def forgets(method: str) -> bool:
    """Return whether a method lowers the loss by ignoring distant tokens: a baseline, never recommended."""
    return method in METHODS and METHODS[method].forgets


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The comparisons of the rules. With `at_means` each mean counts as certain: intervals have no width.

    Intervals are Student's t between windows. Those of gains and costs hold together for all methods, and those against
    crop for all methods that could be chosen (Bonferroni). The model's fit and plain against crop have
    uncorrected intervals: all of them must be shown, so nothing is chosen among them.
    """

    losses: WindowLosses
    at_means: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """Return all methods but plain."""
        return tuple(name for name in self.losses.within if name != PLAIN)

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """Return the methods that could be recommended, the lowest mean loss beyond first; none without crop."""
        names = [name for name in self.others if CROP in self.losses.beyond and not forgets(name)]
        return tuple(sorted(names, key=self.mean_beyond))

    def mean_beyond(self, method: str) -> float:
        """Return the mean loss beyond the trained length, in nats per token."""
        return math.fsum(self.losses.beyond[method]) / self.losses.windows

    @cached_property
    def fit(self) -> Comparison:
        """Compare plain's loss within the trained length with that of token frequencies."""
        mine = self.losses.within[PLAIN]
        return self._compare(PREDICTS, PLAIN, TOKEN_FREQUENCIES, "within", mine, self.losses.frequencies)

    @cached_property
    def holds(self) -> tuple[Comparison, ...]:
        """Compare plain with crop plus the margin: beyond the trained length, and in each part of it."""
        whole = self._beyond(HOLDS, PLAIN, CROP, MARGIN)
        return (whole, *self.stretches(PLAIN)) if len(self.losses.stretches) > 1 else (whole,)

    def stretches(self, method: str) -> tuple[Comparison, ...]:
        """Compare a method with crop plus the margin, in each stretch of positions."""
        of = self.losses.by_stretch
        return tuple(
            self._compare(
                f"{HOLDS} at positions {start:,} to {end - 1:,}",
                method,
                CROP,
                "beyond",
                [row[number] for row in of[method]],
                [row[number] for row in of[CROP]],
                MARGIN,
            )
            for number, (start, end) in enumerate(self.losses.stretches)
        )

    def gain(self, method: str) -> Comparison:
        """Compare a method's loss beyond the trained length with plain's."""
        return self._beyond(GAINS, method, PLAIN)

    def cost(self, method: str) -> Comparison:
        """Compare a method's cost within the trained length with the tolerated mean and interval's end."""
        within = self.losses.within
        found = self._compare(COSTS_LITTLE, method, PLAIN, "within", within[method], within[PLAIN], TOLERATED_END)
        low, high = found.interval or (None, None)
        result: Result = "open"
        if high is not None and found.difference <= TOLERATED and high <= TOLERATED_END:
            result = "shown"
        elif low is not None and low > TOLERATED:
            result = "refuted"
        return dataclasses.replace(found, result=result)

    def beats_crop(self, method: str) -> Comparison:
        """Compare a method's loss beyond the trained length with crop's."""
        return self._beyond(BEATS_CROP, method, CROP)

    def near_crop(self, method: str) -> Comparison:
        """Compare it with crop's plus 0.05 nats."""
        return self._beyond(NEAR_CROP, method, CROP, NEAR)

    def beats_crop_by_margin(self, method: str) -> Comparison:
        """Compare it with crop's less the margin."""
        return self._beyond(BEATS_CROP_BY_MARGIN, method, CROP, -MARGIN)

    def reach(self, method: str) -> int:
        """Return the tokens up to which a method is shown to be within the margin of crop, stretch by stretch.

        The stretches are tested in order until one is not shown, so none needs a wider interval for the
        others (a fixed sequence of tests, Maurer, Hothorn and Lehmacher 1995).
        """
        reach = min(self.losses.trained, self.losses.target)
        if CROP in self.losses.beyond:
            for (_, end), comparison in zip(self.losses.stretches, self.stretches(method), strict=True):
                if comparison.result != "shown":
                    break
                reach = end
        return reach

    def windows_for(self, comparison: Comparison, *, most: int = 1000) -> int | None:
        """Return the number of windows that would settle a comparison if they vary as these do; None if `most` do not.

        One window shows no variance: None.
        """
        if comparison.interval is None:
            return None
        count, windows = self._together(comparison.method, comparison.against), self.losses.windows
        half = (comparison.interval[1] - comparison.interval[0]) / 2
        deviation = half * math.sqrt(windows) / t_quantile(windows - 1, count)
        settles_at = comparison.margin
        if comparison.name == COSTS_LITTLE and comparison.difference > TOLERATED:
            settles_at = TOLERATED
        return windows_needed(deviation, abs(comparison.difference - settles_at), comparisons=count, most=most)

    def _together(self, method: str, against: str) -> int:
        """Return the number of comparisons of this kind that must hold together."""
        if method == PLAIN:
            return 1
        return max(1, len(self.candidates) if against == CROP else len(self.others))

    def _beyond(self, name: str, method: str, against: str, margin: float = 0.0) -> Comparison:
        beyond = self.losses.beyond
        return self._compare(name, method, against, "beyond", beyond[method], beyond[against], margin)

    def _compare(
        self,
        name: str,
        method: str,
        against: str,
        where: Where,
        mine: Sequence[float],
        theirs: Sequence[float],
        margin: float = 0.0,
    ) -> Comparison:
        apart = np.subtract(mine, theirs).tolist()
        difference, interval = mean_and_interval(apart, comparisons=self._together(method, against))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One method's mean losses in nats within and beyond the trained length, and its paired differences.

    `within_difference` and `beyond_difference` are those to plain, `crop_difference` that to crop, beyond. Intervals
    are those of the verdict's evidence. `affordable`: shown to cost little within; by the mean if there is no interval.
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


def standings(measurement: Measurement) -> dict[str, Standing]:
    """Return every method's standing, by name; methods that share numbers have equal standings."""
    evidence = Evidence(measurement.losses())
    found = {}
    for name in measurement.results:
        own = measurement.same_as.get(name, name)
        cost = evidence.cost(own)
        gain = evidence.gain(own) if evidence.losses.beyond else None
        apart = evidence.beats_crop(own) if CROP in evidence.losses.beyond and own != CROP else None
        within = measurement.within(own)
        found[name] = Standing(
            name=name,
            within=sum(within) / len(within),
            beyond=evidence.mean_beyond(own) if gain is not None else None,
            within_difference=cost.difference,
            within_interval=cost.interval,
            beyond_difference=None if gain is None else gain.difference,
            beyond_interval=None if gain is None else gain.interval,
            crop_difference=None if apart is None else apart.difference,
            crop_interval=None if apart is None else apart.interval,
            affordable=cost.difference <= TOLERATED if cost.interval is None else cost.result == "shown",
        )
    return found


def standing_rows(
    measurement: Measurement, use: UseMeasurement | None = None
) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the heads, and for each distinct method a row of its losses and its differences beyond.

    With `use` a last column contains how far back tokens are shown to be used. The label names methods that share
    numbers: "ntk = dynamic". Empty columns are left out.
    """
    heads = ("within", "beyond", "beyond - plain", "beyond - crop", *(() if use is None else ("far use",)))
    rows = {}
    for name, standing in standings(measurement).items():
        if name in measurement.same_as:
            continue
        label = " = ".join([name, *(other for other, first in measurement.same_as.items() if first == name)])
        apart = standing.beyond_difference if name != PLAIN else None
        row = [
            f"{standing.within:.3f}",
            "" if standing.beyond is None else f"{standing.beyond:.3f}",
            "" if apart is None else plus_minus(apart, standing.beyond_interval),
            "" if standing.crop_difference is None else plus_minus(standing.crop_difference, standing.crop_interval),
        ]
        rows[label] = row if use is None else [*row, used_in_words(use, name)]
    told = [number for number in range(len(heads)) if any(row[number] for row in rows.values())]
    return tuple(heads[number] for number in told), {
        label: [row[number] for number in told] for label, row in rows.items()
    }


def used_in_words(use: UseMeasurement, method: str) -> str:
    """Return how far back a method is shown to use tokens, in a few words; empty if not measured."""
    if method not in use.methods:
        return ""
    span = span_of(use.shown_at(method), [row.distance for row in use.of(method, "copy")])
    return span or {True: "yes", False: "no", None: "open"}[use.shows_use(method)]


@runtime_checkable
class Use(Protocol):
    """The part of a measurement of use that the verdict needs."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that were measured."""

    def shows_use(self, method: str) -> bool | None:
        """Return whether a method is shown to use tokens beyond the trained length; None if not measured."""

    def reach(self, method: str) -> int | None:
        """Return the largest length in tokens up to which that is shown."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action, its method if it has one, and the comparisons that it rests on, which must all be settled."""

    action: Action
    method: str | None = None
    rests_on: tuple[Comparison, ...] = ()


def shows_use(use: Use | None, method: str) -> bool | None:
    """Return whether a method is shown to use far tokens; None if nothing was measured.

    >>> shows_use(None, "yarn") is None
    True
    """
    return None if use is None else use.shows_use(method)


def apply_rules(evidence: Evidence, use: Use | None = None) -> Decision:
    """Return the first action for which all comparisons are settled; "undecided" if there is none.

    In order: unfit, keep, extend, cut. See `decide`.
    """
    fit, losses = evidence.fit, evidence.losses
    if fit.result != "shown":
        return Decision("unfit" if fit.difference >= 0 else "undecided", None, (fit,))
    if not losses.beyond:
        return Decision("keep", None, (fit,))
    if CROP not in losses.beyond:
        return Decision("undecided", None, (fit,))
    if all(comparison.result == "shown" for comparison in evidence.holds):
        return Decision("keep", None, (fit, *evidence.holds))
    return _extend(evidence, use) or _cut(evidence, use) or Decision("undecided", None, (fit,))


def _extend(evidence: Evidence, use: Use | None) -> Decision | None:
    """Return the lowest of the methods that are shown to extend, if no open one may be far better."""
    shown = [name for name in evidence.candidates if all(c.result == "shown" for c in rests_on(name, evidence, use))]
    if not shown:
        return None
    chosen = shown[0]
    bound = evidence.mean_beyond(chosen) - TOLERATED
    if any(evidence.mean_beyond(name) < bound for name in contenders(evidence, use)):
        return None
    return Decision("extend", chosen, (evidence.fit, *rests_on(chosen, evidence, use)))


def _cut(evidence: Evidence, use: Use | None) -> Decision | None:
    """Cut, if no affordable method beats crop by the margin, and the best is shown not to use far tokens."""
    if not loses_to_crop(evidence) or shows_use(use, affordable_methods(evidence)[0]) is not False:
        return None
    comparisons = (evidence.beats_crop_by_margin(name) for name in affordable_methods(evidence))
    return Decision("cut", None, (evidence.fit, *comparisons))


def loses_to_crop(evidence: Evidence) -> bool:
    """Return whether no affordable method beats crop by the margin."""
    return all(evidence.beats_crop_by_margin(name).result == "refuted" for name in affordable_methods(evidence))


def awaits_use(evidence: Evidence, use: Use | None) -> str | None:
    """Return the method whose unknown use of far tokens is all that keeps the verdict from `cut`, or None."""
    best = affordable_methods(evidence)[0]
    return best if shows_use(use, best) is None and loses_to_crop(evidence) else None


def affordable_methods(evidence: Evidence) -> tuple[str, ...]:
    """Plain, and every method that is not shown to cost too much within, the lowest mean loss beyond first."""
    names = [name for name in evidence.candidates if evidence.cost(name).result != "refuted"]
    return tuple(sorted([PLAIN, *names], key=evidence.mean_beyond))


def contenders(evidence: Evidence, use: Use | None) -> tuple[str, ...]:
    """Return the methods that more windows could still show to extend."""
    return tuple(
        name for name in evidence.candidates if all(c.result != "refuted" for c in rests_on(name, evidence, use))
    )


def rests_on(method: str, evidence: Evidence, use: Use | None) -> tuple[Comparison, ...]:
    """Return the comparisons that must all be shown for a method to be recommended."""
    crop = evidence.beats_crop(method)
    if crop.result != "shown" and shows_use(use, method):
        crop = evidence.near_crop(method)
    return (evidence.gain(method), crop, evidence.cost(method))


def open_comparisons(evidence: Evidence, use: Use | None, decision: Decision) -> tuple[Comparison, ...]:
    """Return the open comparisons that prevent an action; none if there is an action.

    They are the open ones among those of the action at the means; else all open ones of the methods that could still be
    recommended. If the model is not shown to be fit, it is that comparison. If only the unknown use of the best
    affordable method prevents `cut`, it is whether that method is affordable.
    """
    if decision.action == "unfit":
        return _open((evidence.fit,))
    if decision.action != "undecided":
        return ()
    if evidence.fit.result == "shown" and CROP in evidence.losses.beyond:
        waiting = awaits_use(evidence, use)
        if waiting not in (None, PLAIN) and (of_cost := _open((evidence.cost(waiting),))):
            return of_cost
    expected = apply_rules(dataclasses.replace(evidence, at_means=True), use)
    all_of = {_key(comparison): comparison for comparison in every_comparison(evidence, use)}
    needed = [all_of[_key(comparison)] for comparison in expected.rests_on]
    return _open(needed) or _open(c for name in contenders(evidence, use) for c in rests_on(name, evidence, use))


def every_comparison(evidence: Evidence, use: Use | None) -> tuple[Comparison, ...]:
    """Return all comparisons of the rules, in their order; those of methods by their mean loss beyond."""
    if CROP not in evidence.losses.beyond:
        return (evidence.fit,)
    found = [evidence.fit, *evidence.holds, evidence.beats_crop_by_margin(PLAIN)]
    for name in evidence.candidates:
        found += [evidence.gain(name), evidence.beats_crop(name)]
        found += [evidence.near_crop(name)] if shows_use(use, name) else []
        found += [evidence.beats_crop_by_margin(name), evidence.cost(name)]
    return tuple(found)


def _open(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    return tuple(comparison for comparison in comparisons if comparison.result == "open")


def _key(comparison: Comparison) -> tuple[str, str, str]:
    return comparison.name, comparison.method, comparison.against
