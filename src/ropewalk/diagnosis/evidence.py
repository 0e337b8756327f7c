"""The comparisons that a verdict rests on, made of losses by window: numbers in, comparisons out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ropewalk.diagnosis.verdict import TOKEN_FREQUENCIES, Comparison, Result, Where
from ropewalk.measure.losses import CROP, PLAIN, WindowLosses
from ropewalk.methods import METHODS
from ropewalk.statistics import Interval, mean_and_interval, t_quantile, windows_needed

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
    """Whether a method lowers the loss by not seeing distant tokens: a baseline, never recommended."""
    return method in METHODS and METHODS[method].forgets


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Every comparison that the rules ask for. With `at_means` each mean counts as certain: intervals have no width.

    Intervals are Student's t between windows. Those of gains and costs hold together for all methods, and those against
    crop for all methods that could be chosen (Bonferroni). The model's fit and plain against crop have an interval for
    each comparison alone: nothing is chosen among them, since all must be shown.
    """

    losses: WindowLosses
    at_means: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """All methods but plain."""
        return tuple(name for name in self.losses.within if name != PLAIN)

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """The methods that could be recommended, the lowest mean loss beyond first; none without crop beside them."""
        names = [name for name in self.others if CROP in self.losses.beyond and not forgets(name)]
        return tuple(sorted(names, key=self.mean_beyond))

    def mean_beyond(self, method: str) -> float:
        """Mean loss beyond the trained length, in nats per token."""
        return math.fsum(self.losses.beyond[method]) / self.losses.windows

    @cached_property
    def fit(self) -> Comparison:
        """Is plain's loss within the trained length below that of token frequencies?"""
        mine = self.losses.within[PLAIN]
        return self._compare(PREDICTS, PLAIN, TOKEN_FREQUENCIES, "within", mine, self.losses.frequencies)

    @cached_property
    def holds(self) -> tuple[Comparison, ...]:
        """Is plain no worse than crop by more than the margin: beyond the trained length, and in each part of it?"""
        whole = self._beyond(HOLDS, PLAIN, CROP, MARGIN)
        return (whole, *self.stretches(PLAIN)) if len(self.losses.stretches) > 1 else (whole,)

    def stretches(self, method: str) -> tuple[Comparison, ...]:
        """Is a method no worse than crop by more than the margin, in each stretch of positions?"""
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
        """Is a method's loss beyond the trained length below plain's?"""
        return self._beyond(GAINS, method, PLAIN)

    def cost(self, method: str) -> Comparison:
        """Does a method cost little within the trained length: by the mean, and by the interval's end?"""
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
        """Is a method's loss beyond the trained length below crop's?"""
        return self._beyond(BEATS_CROP, method, CROP)

    def near_crop(self, method: str) -> Comparison:
        """Is it less than 0.05 nats above crop's?"""
        return self._beyond(NEAR_CROP, method, CROP, NEAR)

    def beats_crop_by_margin(self, method: str) -> Comparison:
        """Is it below crop's by more than the margin?"""
        return self._beyond(BEATS_CROP_BY_MARGIN, method, CROP, -MARGIN)

    def reach(self, method: str) -> int:
        """Tokens up to which a method is shown to be no worse than crop by more than the margin, stretch by stretch.

        The stretches are looked at in order until one is not shown: so none of them needs a wider interval for the
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
        """How many windows in all would settle a comparison if they vary as these do; None where `most` do not.

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
        """How many comparisons of this kind hold together."""
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
