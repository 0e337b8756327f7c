"""The evidence of a look: what each method finds, its loss against crop's, and its cost, each computed once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ropewalk.diagnosis.facts import CHANCE, GROUP, Found, PlacedFact, Window
from ropewalk.diagnosis.schedule import Design, WindowReading
from ropewalk.methods import METHODS
from ropewalk.statistics import t_quantile

LOOK_CONFIDENCE = 0.995  # of every interval: with looks after 1, 2, 4 and 8 windows, all hold with 98 %
LEVEL = (1 - LOOK_CONFIDENCE) / 2  # of a test at one look: all looks together, 1 %
LIKELY, SURE = 0.95, 0.80  # intervals of a distance; the lower end of the second is exceeded with 90 %
PARTS = 256  # of the target: the resolution of a distance
LEAST_VARIANCE, MOST_SPREAD = 0.3, 4.0  # of the facts found in a group; of their overdispersion
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """A mean difference of losses in nats per token, and its interval; None with fewer than four blocks."""

    value: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the ends of the interval, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @classmethod
    def of(cls, windows: Sequence[tuple[Floats, Floats]], *, confidence: float = LOOK_CONFIDENCE) -> Mean | None:
        """Return the mean over blocks of tokens, or None without blocks.

        - `windows`: for each window the differences of its blocks in order, and the tokens of each block.

        The variance is that of these blocks alone, with the correlation of neighbours; the interval is Student's t.

        >>> Mean.of([(np.array([0.1, 0.2, 0.1, 0.2]), np.full(4, 64.0))]).value
        0.15000000000000002
        """
        if not windows:
            return None
        values, weights = (np.concatenate(parts) for parts in zip(*windows, strict=True))
        mean, count = float(np.average(values, weights=weights)), len(values)
        if count < 4:
            return cls(mean, None, None)
        left = [(values - mean) * weights for values, weights in windows]
        squares = float((np.concatenate(left) ** 2).sum())
        neighbours = sum(float((part[1:] * part[:-1]).sum()) for part in left)
        variance = (squares + 2 * max(0.0, neighbours)) / weights.sum() ** 2 * count / (count - 1)
        half = t_quantile(count - 1, confidence=confidence) * math.sqrt(variance)
        return cls(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Half:
    """The distance in tokens at which finding falls half-way from its level nearby to chance.

    - `tokens`: the estimate. `low`, `high`: its 95 % interval. `tokens` and `high` are None if finding may go on to the
      farthest fact. `sure`: the lower end that it exceeds with 90 % confidence.
    """

    tokens: int | None
    low: int
    high: int | None
    sure: int

    @classmethod
    def fit(cls, distances: Sequence[int], right: Sequence[bool], target: int) -> Half | None:
        """Fit share(d) = 1/4 + (level - 1/4) / (1 + exp((d - half) / width)) by maximum likelihood on a grid.

        - `distances`: of facts, four of a group in succession. `right`: whether each was found.

        The intervals are those of the profile likelihood, wider by the overdispersion of the groups around the best
        fit, with Student's t (McCullagh and Nelder 1989, section 4.5). Returns None for fewer than 16 facts.
        """
        if len(distances) < 4 * GROUP:
            return None
        hit = np.asarray(right, dtype=bool)
        parts = np.minimum(np.rint(np.asarray(distances) * (PARTS / target)), PARTS).astype(int)
        halves, yes, no = _curves()
        found, missed = (np.bincount(parts[of], minlength=PARTS + 1).astype(np.float32) for of in (hit, ~hit))
        likelihood = yes @ found + no @ missed
        fitted = np.exp(yes[int(likelihood.argmax()), parts].reshape(-1, GROUP).astype(np.float64))
        apart = hit.reshape(-1, GROUP).sum(1) - fitted.sum(1)
        chi_squared = (apart**2 / np.maximum((fitted * (1 - fitted)).sum(1), LEAST_VARIANCE)).sum()
        free = len(apart) - 3
        spread = min(max(1.0, float(chi_squared) / free), MOST_SPREAD)
        profile = likelihood.reshape(len(halves), -1).max(1)
        fall = 2 * (profile.max() - profile) / spread
        best, farthest = target * halves[int(profile.argmax())], max(distances)
        within = [np.flatnonzero(fall <= t_quantile(free, confidence=one) ** 2) for one in (LIKELY, SURE)]
        # the ends lie up to a step of the grid farther
        low, sure = (target * halves[max(0, of[0] - 1)] for of in within)
        high = target * halves[min(within[0][-1] + 1, len(halves) - 1)]
        return cls(
            round(best) if best < farthest else None,
            round(min(low, farthest)),
            round(high) if high < farthest else None,
            round(min(sure, farthest)),
        )

    def length(self, trained: int, target: int) -> int:
        """Return the length that is promised: `sure`, rounded down to an eighth of the trained length.

        At least the trained length. The target, if the best fit goes on to the farthest fact, and `sure` lies in the
        last eighth before the target.
        """
        step = trained // 8
        if self.tokens is None and self.sure >= target - step:
            return target
        return max(trained, self.sure // step * step)


@cache
def _curves() -> tuple[Floats, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the halves of a fit's curves, and the logarithms of each curve's shares and of the rest.

    The last two are `[curves, distances]`, curves of one half in succession. Distances are parts of the target.
    """
    halves = np.arange(161) / 128
    grids = halves, 1 / np.array([128, 64, 32, 16, 8]), np.linspace(CHANCE, 0.99, 20)
    half, width, level = (one.reshape(-1, 1) for one in np.meshgrid(*grids, indexing="ij"))
    fallen = 1 / (1 + np.exp((np.arange(PARTS + 1) / PARTS - half) / width))
    shares = CHANCE + (level - CHANCE) * fallen
    return halves, np.log(shares).astype(np.float32), np.log(1 - shares).astype(np.float32)


def choice(answers: Sequence[float]) -> int:
    """Return the likeliest of the four choices."""
    return max(range(len(answers)), key=answers.__getitem__)


def groups_of(answers: Iterable[tuple[PlacedFact, Sequence[float]]]) -> list[list[int]]:
    """Return the choices made in each group, from the facts of a window that were asked for; whole groups only."""
    groups: dict[int, dict[int, int]] = {}
    for fact, row in answers:
        groups.setdefault(fact.group, {})[fact.right] = choice(row)
    return [[group[right] for right in range(GROUP)] for _, group in sorted(groups.items()) if len(group) == GROUP]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the evidence says about one method.

    - `beyond`, `near`: facts found of those farther back than the trained length, and of those within it; None: not
      asked. `half`: how far back it finds them. `length`: tokens that are promised, at least the trained length.
      `reached`: the far facts found up to that length, and of how many.
    - `loss`: its loss beyond less crop's, on the tokens that crop scored. `cost`: its loss within less plain's.
    - `within`: its loss within, in nats per token; None under crop.
    - `broken`: whether a reading was given up, because the loss rose by more than a nat.
    """

    method: str
    beyond: Found | None
    near: Found | None
    half: Half | None
    length: int
    reached: tuple[int, int]
    loss: Mean | None
    cost: Mean | None
    within: float | None
    broken: bool = False


@dataclass(frozen=True)
class Rival:
    """The share of far facts that `method` finds less the share that `other` finds, with its interval."""

    value: float
    low: float
    high: float
    method: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence after some windows of `target` tokens, more than the `trained` ones or not.

    - `control`: plain's facts within the trained length, asked for when the model had read only so much.
    - `frequencies`: plain's loss within less that of token frequencies, in nats per token.
    - `rivals`: the differences of pairs of methods.
    """

    windows: int
    trained: int
    target: int
    standings: Mapping[str, Standing]
    control: Found
    frequencies: float
    rivals: tuple[Rival, ...] = ()

    def rival(self, method: str, other: str) -> Rival | None:
        """Return the difference of a pair, or None if it is unknown."""
        return next((one for one in self.rivals if (one.method, one.other) == (method, other)), None)


def gather(windows: Sequence[Window], readings: Mapping[str, Sequence[WindowReading]], design: Design) -> Evidence:
    """Return the evidence of all readings; plain is among them, and crop if the target exceeds the trained length.

    - `windows`: in order; a method has readings of the first ones.
    """
    trained, target = design.trained_length, design.target
    inside = np.array([end <= trained for _, end in design.blocks])
    counted = np.array([window.counted for window in windows], dtype=np.float64)
    losses = {name: np.array([one.loss for one in of], dtype=np.float64) for name, of in readings.items()}  # None: nan

    def found(groups: Sequence[Sequence[int]]) -> Found | None:
        return Found.of(groups, confidence=LOOK_CONFIDENCE) if groups else None

    def apart(name: str, other: str, part: npt.NDArray[np.bool_]) -> Mean | None:
        pairs = zip(losses[name], losses.get(other, ()), counted, strict=False)
        used = [(mine - theirs, tokens, part & np.isfinite(mine - theirs)) for mine, theirs, tokens in pairs]
        return Mean.of([(values[both], tokens[both]) for values, tokens, both in used if both.any()])

    def mean_within(name: str) -> float:
        used = inside & np.isfinite(losses[name])
        return float(np.average(losses[name][used], weights=counted[: len(used)][used]))

    standings, right = {}, dict[str, dict[tuple[int, int], bool]]()
    for name, of in readings.items():
        crops, read = name == "crop", zip(windows, of, strict=False)
        answered = [[*zip(window.facts, one.answers, strict=False)] for window, one in read]  # empty: not asked
        beyond, near = (
            found([group for of in answered for group in groups_of(pair for pair in of if pair[0].far == far)])
            for far in (True, False)
        )
        hits = right[name] = {
            (number, index): choice(row) == fact.right
            for number, of in enumerate(answered)
            for index, (fact, row) in enumerate(of)
        }
        facts = [windows[number].facts[index] for number, index in hits]
        half = None if beyond is None else Half.fit([target - one.start for one in facts], [*hits.values()], target)
        length = min(trained, target) if half is None else half.length(trained, target)
        reached = [hit for one, hit in zip(facts, hits.values(), strict=True)
                   if one.far and target - one.start <= length]  # fmt: skip
        standings[name] = Standing(
            method=name, beyond=beyond, near=near, half=half, length=length, reached=(sum(reached), len(reached)),
            loss=None if crops else apart(name, "crop", ~inside),
            cost=None if crops or name == "plain" else apart(name, "plain", inside),
            within=None if crops else mean_within(name), broken=any(one.stopped is not None for one in of),
        )  # fmt: skip
    control = [
        group
        for window, one in zip(windows, readings["plain"], strict=False)
        for group in groups_of((window.facts[number], row) for number, row in one.control.items())
    ]
    many = max(1, sum(METHODS[name].extends for name in right))
    pairs = (_more(pair, right, windows, comparisons=many) for pair in itertools.permutations(right, 2))
    return Evidence(
        windows=len(readings["plain"]), trained=trained, target=target, standings=standings,
        control=Found.of(control, confidence=LOOK_CONFIDENCE),
        frequencies=mean_within("plain") - float(np.mean([window.frequencies for window in windows])),
        rivals=tuple(pair for pair in pairs if pair is not None),
    )  # fmt: skip


def _more(
    pair: tuple[str, str], right: Mapping[str, Mapping[tuple[int, int], bool]], windows: Sequence[Window], *,
    comparisons: int,
) -> Rival | None:  # fmt: skip
    """Return the share of far facts that the first method finds less the second's, paired by fact, with its interval.

    Facts of a group depend on each other, so the interval is of groups. It is corrected for the number of methods that
    are compared (Bonferroni).
    """
    one, other = right[pair[0]], right[pair[1]]
    common = [key for key in one if key in other and windows[key[0]].facts[key[1]].far]
    if len(common) < 2 * GROUP:
        return None
    apart = np.array([float(one[key]) - float(other[key]) for key in common]).reshape(-1, GROUP).mean(1)
    # half a fact each way keeps the interval open where no answer differs
    squares = float(((apart - apart.mean()) ** 2).sum()) + 0.5 / GROUP**2
    spread = math.sqrt(squares / (len(apart) - 1) / len(apart))
    half = t_quantile(len(apart) - 1, comparisons, confidence=LOOK_CONFIDENCE) * spread
    mean = float(apart.mean())
    return Rival(mean, mean - half, mean + half, *pair)
