"""The doctor's rule once more, written from its description alone: `rule_errors.py` compares it with `decide`.

Without the notes at a limit and whether the answer is settled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
from scipy import special, stats

from ropewalk.diagnosis.plan import Design
from ropewalk.methods import METHODS

C, CONFIDENCE, LEVEL, LOSS, COST = 0.25, 0.995, 0.0025, 0.10, 0.05
KNOWN = np.linspace(0.02, 0.98, 49)  # of the control's knowledge


@cache
def by_chance(group: tuple[int, ...]) -> np.ndarray:
    """Return the probability of 0 to 4 right answers of a group, over all assignments."""
    right = [sum(a == b for a, b in zip(group, order, strict=True)) for order in itertools.permutations(range(4))]
    return np.bincount(right, minlength=5) / 24


def chance(groups: np.ndarray, found: int) -> float:
    """Return the probability of so many right answers or more by chance; `groups` `[groups, 4]`."""
    total = np.ones(1)
    for group in groups.tolist():
        total = np.convolve(total, by_chance(tuple(group)))
    return float(total[found:].sum())


def knowledge(share: Any) -> Any:
    return (share - C) / (1 - C)


def ends(right: int, of: int) -> tuple[float, float]:
    """Return the knowledge at the ends of Clopper's and Pearson's interval."""
    tail = (1 - CONFIDENCE) / 2
    low = stats.beta.ppf(tail, right, of - right + 1) if right else 0.0
    return knowledge(low), knowledge(stats.beta.ppf(1 - tail, right + 1, of - right) if right < of else 1.0)


@cache
def grid(target: int) -> tuple[np.ndarray, ...]:
    """Return half, width and level of all curves, and the reach of each for each K, `[curves, K]`."""
    axes = np.linspace(0, 1.25 * target, 126), target / np.array([64, 32, 16, 8]), np.linspace(0.25, 0.99, 25)
    half, width, level = (a.ravel()[:, None] for a in np.meshgrid(*axes, indexing="ij"))
    rise = 2 * knowledge(level) / KNOWN - 1  # exp((reach - half) / width)
    reach = np.where(rise > 0, np.maximum(half + width * np.log(np.maximum(rise, 1e-12)), 0.0), 0.0)
    return half, width, level, reach


@lru_cache(maxsize=64)
def curves(target: int, starts: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return the curves' shares `[curves, facts]`, their logarithms and those of the rest."""
    half, width, level, _ = grid(target)
    share = C + (level - C) * special.expit((half - (target - np.array(starts))) / width)
    return share, np.log(share), np.log1p(-share)


class Rule:
    """The evidence of a run's first windows, in the form of `records.essentials`, and the decision."""

    def __init__(self, run: Mapping[str, Any], count: int) -> None:
        self.trained, self.target, self.step = run["trained_length"], run["target"], max(1, run["trained_length"] // 8)
        self.windows, self.readings = run["windows"][:count], {k: of[:count] for k, of in run["readings"].items()}
        self.blocks = Design(trained_length=self.trained, target=self.target, windows=1).blocks
        self.choices = {name: np.array([[int(c) for c in one["choices"]] for one in of]).reshape(count, -1, 4)
                        for name, of in self.readings.items() if all(one["choices"] for one in of)}  # fmt: skip
        self.far = self.windows[0]["far"] // 4
        control = [list(one["control"].values()) for one in self.readings["plain"]]
        self.control = np.concatenate([np.array(one, dtype=int).reshape(-1, 4) for one in control])
        self.found, self.asked = int((self.control == np.arange(4)).sum()), self.control.size
        self.names = [name for name in self.readings if METHODS[name].extends and not METHODS[name].forgets]
        self.length = cache(self._length)

    def share(self, name: str) -> float:
        return float(self.far_hits(name).mean())

    def far_hits(self, name: str) -> np.ndarray:
        return (self.choices[name] == np.arange(4))[:, : self.far].ravel()

    def _length(self, name: str) -> int:
        hits = (self.choices[name] == np.arange(4)).reshape(len(self.windows), -1)
        each = [curves(self.target, tuple(start for start, _ in one["spans"])) for one in self.windows]
        of_curves = sum(np.where(hit, right, wrong).sum(-1) for (_, right, wrong), hit in zip(each, hits, strict=True))
        share = C + (1 - C) * KNOWN
        whole = of_curves[:, None] + self.found * np.log(share) + (self.asked - self.found) * np.log1p(-share)
        curve, place = np.unravel_index(int(whole.argmax()), whole.shape)
        expected = np.concatenate([of[0][curve].reshape(-1, 4) for of in each])
        apart = hits.reshape(expected.shape).sum(-1) - expected.sum(-1)
        phi = max(1.0, float((apart**2 / (expected * (1 - expected)).sum(-1)).sum()) / (len(expected) - 3))
        reach, first = grid(self.target)[-1], min(start for one in self.windows for start, _ in one["spans"])
        sure = float(reach[2 * (whole.max() - whole) / phi <= 1.642].min())
        if reach[curve, place] >= self.target - first and sure >= self.target - self.step:
            return int(self.target)
        return int(min(self.target, max(self.trained, sure // self.step * self.step)))

    def mean(self, name: str, other: str, inside: bool) -> tuple[float, float, float]:
        """Return the mean difference of losses and its interval."""
        part = np.array([(end <= self.trained) == inside for _, end in self.blocks])
        one, two = (np.array([of["loss"] for of in self.readings[n]], dtype=float)[:, part] for n in (name, other))
        weight = np.array([window["counted"] for window in self.windows])[:, part] * np.isfinite(one - two)
        mean = float(np.nansum((one - two) * weight) / weight.sum())
        left = [((a - mean) * w)[w > 0] for a, w in zip(one - two, weight, strict=True)]
        n = sum(map(len, left))
        squares = sum((a**2).sum() for a in left) + 2 * max(0.0, sum((a[1:] * a[:-1]).sum() for a in left))
        half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * math.sqrt(squares / weight.sum() ** 2 * n / (n - 1))
        return mean, mean - half, mean + half

    def limits(self, name: str) -> list[tuple[tuple[float, float, float], float]]:
        cost = [] if name == "plain" else [(self.mean(name, "plain", True), COST)]
        return [(self.mean(name, "crop", False), LOSS), *cost]

    def works(self, name: str) -> bool:
        if name not in self.choices or any(mean > limit for (mean, _, _), limit in self.limits(name)):
            return False
        p = chance(self.choices[name][:, : self.far].reshape(-1, 4), int(self.far_hits(name).sum()))
        return p <= LEVEL / (1 if name == "plain" else max(1, len(self.names))) and self.length(name) > self.trained

    def fails(self, name: str) -> bool:
        if name not in self.choices or any(low > limit for (_, low, _), limit in self.limits(name)):
            return True
        high = ends(int(self.far_hits(name).sum()), self.far_hits(name).size)[1]
        few = high < ends(self.found, self.asked)[0] / 2 and self.length(name) == self.trained
        return few or high < knowledge(0.40)

    def more(self, name: str, other: str, comparisons: int = 1) -> bool:
        """Return whether a method is shown to find more."""
        apart = self.far_hits(name) * 1.0 - self.far_hits(other)
        n, squares = len(apart), float(((apart - apart.mean()) ** 2).sum())
        limit = stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons, n - 1) * math.sqrt((squares + 0.5) / (n - 1) / n)
        return bool(apart.mean() > limit)

    def decide(self) -> tuple[str, str | None, int | None]:
        """Return the action, the method and the length."""
        if chance(self.control, self.found) > LEVEL:
            return ("unfit" if ends(self.found, self.asked)[1] < knowledge(0.40) else "undecided"), None, None
        lost = self.fails("plain")

        def preferred(name: str) -> bool:
            longer = not lost and self.length(name) > self.length("plain")
            return lost or (longer and self.more(name, "plain", len(self.names)))

        working = [name for name in self.names if self.works(name) and preferred(name)]
        if working:
            best = max(working, key=self.share)
            equal = [name for name in working if name == best or not self.more(best, name, len(self.names))]
            chosen = min(equal, key=lambda name: (METHODS[name].in_attention, -self.share(name)))
            return "extend", chosen, self.length(chosen)
        if self.works("plain") and not lost:
            return "keep", None, self.length("plain")
        return ("cut" if lost and all(map(self.fails, self.names)) else "undecided"), None, None
