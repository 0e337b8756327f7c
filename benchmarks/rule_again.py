"""The doctor's rule once more, written from its description: `rule_errors.py` compares it with `decide`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
from scipy import special, stats

from ropewalk.diagnosis.schedule import Design
from ropewalk.methods import METHODS

Answer = tuple[str, str | None, int | None, bool]  # action, method, length, settled
C, CONFIDENCE, LEVEL, LOSS, COST = 0.25, 0.995, 0.0025, 0.10, 0.05


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


def upper(right: int, of: int) -> float:
    """Return the upper end of Clopper's and Pearson's interval."""
    return float(stats.beta.ppf((1 + CONFIDENCE) / 2, right + 1, of - right)) if right < of else 1.0


@lru_cache(maxsize=64)
def curves(target: int, distances: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return the shares of all curves `[halves, others, distances]`, and the logarithms of them and of the rest.

    - `distances`: in steps of a 256th of the target.
    """
    axes = target * np.arange(161) / 128, target / np.array([128, 64, 32, 16, 8]), np.linspace(0.25, 0.99, 20)
    half, width, level = (a[..., None] for a in np.meshgrid(*axes, indexing="ij"))
    share = C + (level - C) * special.expit((half - np.array(distances) * target / 256) / width)
    share = share.reshape(161, -1, len(distances))
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
        self.names = [name for name in self.readings if METHODS[name].extends]
        self.many = max(1, len(self.names))
        self.half, self.length = cache(self._half), cache(self._length)
        self.distances = np.array([self.target - start for one in self.windows for start, _ in one["spans"]])

    def share(self, name: str) -> float:
        return float(self.far_hits(name).mean())

    def far_hits(self, name: str) -> np.ndarray:
        return (self.choices[name] == np.arange(4))[:, : self.far].ravel()

    def _half(self, name: str) -> tuple[float | None, float, float | None, float] | None:
        """Return half's estimate, the ends of its 95 % interval, and its one-sided 90 % lower end."""
        hits = (self.choices[name] == np.arange(4)).ravel()
        if hits.size < 16:
            return None
        places, of = np.unique(np.rint(self.distances * 256 / self.target).astype(int), return_inverse=True)
        share, right, wrong = curves(self.target, tuple(places.tolist()))
        found = right @ np.bincount(of, hits, len(places)) + wrong @ np.bincount(of, ~hits, len(places))
        expected = share.reshape(-1, len(places))[found.argmax()][of].reshape(-1, 4)
        apart, free = hits.reshape(-1, 4).sum(-1) - expected.sum(-1), max(1, len(expected) - 3)
        spread = float((apart**2 / np.maximum(0.3, (expected * (1 - expected)).sum(-1))).sum()) / free
        deviance, step = 2 * (found.max() - found.max(-1)) / min(4.0, max(1.0, spread)), self.target / 128

        def interval(confidence: float) -> tuple[float, float]:
            inside = np.flatnonzero(deviance <= stats.t.ppf((1 + confidence) / 2, free) ** 2) * step
            return max(0.0, inside[0] - step), inside[-1] + step

        (low, high), last, best = interval(0.95), float(self.distances.max()), float(deviance.argmin() * step)
        return best if best < last else None, low, high if high < last else None, min(last, interval(0.80)[0])

    def _length(self, name: str) -> int:
        half = self.half(name)
        if half is None:
            return int(self.trained)
        if half[0] is None and half[3] >= self.target - self.step:
            return int(self.target)
        return int(max(self.trained, min(self.target, half[3] // self.step * self.step)))

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

    def finds(self, name: str) -> bool:
        """Return whether a method works, whatever its losses."""
        within = self.distances.reshape(len(self.windows), -1, 4)[:, : self.far].ravel() <= self.length(name)
        if not self.lucky(name) or self.length(name) == self.trained:
            return False
        return bool(within.sum() * (C + self.found / self.asked) / 2 <= self.far_hits(name)[within].sum())

    def lucky(self, name: str) -> bool:
        """Return whether a method finds more far facts than chance."""
        if name not in self.choices:
            return False
        p = chance(self.choices[name][:, : self.far].reshape(-1, 4), int(self.far_hits(name).sum()))
        return p <= LEVEL / (1 if name == "plain" else self.many)

    def at_limit(self, name: str) -> bool:
        """Return whether the losses alone may make a method work or not."""
        ends = [(low, high, limit) for (_, low, high), limit in self.limits(name)]
        return all(low <= limit for low, _, limit in ends) and any(high >= limit for _, high, limit in ends)

    def fails(self, name: str) -> bool:
        if name not in self.choices or any(low > limit for (_, low, _), limit in self.limits(name)):
            return True
        half = self.half(name)
        short = half is not None and half[2] is not None and half[2] <= self.trained
        return short or upper(int(self.far_hits(name).sum()), self.far_hits(name).size) < 0.40

    def apart(self, name: str, other: str) -> tuple[float, float]:
        """Return the interval of the share that a method finds more than another, over groups of four."""
        apart = (self.far_hits(name) * 1.0 - self.far_hits(other)).reshape(-1, 4).sum(1) / 4
        n, squares = len(apart), float(((apart - apart.mean()) ** 2).sum())
        half = stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / self.many, n - 1) * math.sqrt((squares + 1 / 32) / (n - 1) / n)
        return float(apart.mean() - half), float(apart.mean() + half)

    def settled(self, chosen: str) -> bool:
        """Return whether the length of a method, or of plain, is known, and no rival may find many more."""
        half = self.half(chosen)
        known = half is None or min(half[0] or self.target, self.target) - self.length(chosen) <= self.trained // 4
        rivals = [name for name in self.names if name != chosen and not self.fails(name)]
        return known and all(self.apart(name, chosen)[1] < 0.15 for name in rivals)

    def answer(self, working: set[str]) -> Answer:
        """Return the answer if these methods work."""
        plain, lost = "plain", self.fails("plain")
        good = [name for name in self.names if name in working]
        if not lost:
            longer = [name for name in good if self.length(name) > self.length(plain)]
            good = [name for name in longer if self.apart(name, plain)[0] > 0]
        if good:
            best = max(good, key=self.share)
            equal = [name for name in good if name == best or self.apart(best, name)[0] <= 0]
            chosen = min(equal, key=lambda name: (METHODS[name].in_attention, -self.share(name)))
            return "extend", chosen, self.length(chosen), self.settled(chosen)
        if plain in working and not lost:
            if not self.finds(plain):
                return "keep", None, None, False
            return "keep", None, self.length(plain), self.length(plain) == self.target or self.settled(plain)
        cut = lost and all(map(self.fails, self.names))
        return "cut" if cut else "undecided", None, None, cut

    def decide(self) -> tuple[Answer, Answer | None]:
        """Return the action, method, length and whether it is settled; and the answer of a limit's other side."""
        if chance(self.control, self.found) > LEVEL:
            unfit = upper(self.found, self.asked) < 0.40
            return ("unfit" if unfit else "undecided", None, None, unfit), None
        every = ["plain", *self.names]
        able = {n for n in every if (self.lucky(n) if n == "plain" else self.finds(n))}
        working = {n for n in able if all(m[0] <= limit for m, limit in self.limits(n))}
        found = self.answer(working)
        for name in every:
            other = self.answer(working ^ {name})
            if name in able and self.at_limit(name) and other[:2] != found[:2]:
                return (*found[:3], False), other
        return found, None
