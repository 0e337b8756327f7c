"""A search over the few numbers of a rule that every engine reads: YaRN's, NTK-aware scaling's, Llama 3's.

A factor for each pair can say more, but only a `longrope` block can say it, which engines read differently or not at
all. These numbers stand in an ordinary `rope_parameters` block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ropewalk.extend.space import PLAIN, Point, SearchedLayers, profile_of, rope_under, searched_layers
from ropewalk.methods import METHODS, Reach, extended
from ropewalk.methods.ropes import with_unscaled_tokens
from ropewalk.models.positions import Positions
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import NTK, Linear, Llama3, Scaling, YaRN, yarn_mscale

RIVALS = ("pi", "ntk", "yarn", "llama3")  # beside plain: every engine reads them
POPULATION = 16
DIGITS = 4  # of a number that is searched: a config that can be read
Range = tuple[float, float]

_KINDS: dict[str, type[Scaling]] = {"linear": Linear, "ntk": NTK, "yarn": YaRN, "llama3": Llama3}
_FIELDS = ("factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "attention_factor")


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A point of the search: the numbers of one rule by their names in a config; `rule` is "plain" for none."""

    name: str
    rule: str
    numbers: tuple[tuple[str, float], ...]

    @property
    def logarithms(self) -> list[float]:
        """ln of every number, in order."""
        return [math.log(value) for _, value in self.numbers]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"name": self.name, "rule": self.rule, "numbers": dict(self.numbers)}

    def scaling(self, trained: int) -> Scaling | None:
        """The rule with these numbers, from the trained length on; None for plain."""
        if self.rule == PLAIN:
            return None
        length = {"original_max_position_embeddings": trained} if self.rule in ("yarn", "llama3") else {}
        return _KINDS[self.rule](**dict(self.numbers), **length)

    @classmethod
    def of(cls, name: str, rule: Scaling | None) -> Numbers:
        """A method's rule as a point."""
        if rule is None:
            return cls(name, PLAIN, ())
        given = {key: getattr(rule, key, None) for key in _FIELDS}
        return cls(
            name, rule.rope_type, tuple((key, float(value)) for key, value in given.items() if value is not None)
        )


def _yarn(reach: Reach) -> dict[str, Range]:
    """The ramp's ends on either side of the published 32 and 1; the factor from none to four times the ratio."""
    return {"factor": (1.0, 4 * reach.factor), "beta_fast": (4.0, 128.0), "beta_slow": (0.125, 4.0)}


def _yarn_attention(reach: Reach) -> dict[str, Range]:
    own = yarn_mscale(reach.factor, 1.0)
    return {**_yarn(reach), "attention_factor": (own / 1.15, own * 1.15)}


def _ntk(reach: Reach) -> dict[str, Range]:
    """It slows the slowest pair alone by the whole factor, so that it wants more than the ratio."""
    return {"factor": (1.0, 16 * reach.factor)}


def _llama3(reach: Reach) -> dict[str, Range]:
    return {"factor": (1.0, 4 * reach.factor), "low_freq_factor": (0.125, 2.0), "high_freq_factor": (2.0, 64.0)}


FAMILIES: Mapping[str, tuple[str, Callable[[Reach], dict[str, Range]]]] = {
    "yarn": ("yarn", _yarn),
    "yarn-attention": ("yarn", _yarn_attention),
    "ntk": ("ntk", _ntk),
    "llama3": ("llama3", _llama3),
}
"""By the name on the command line: the rule, and the range of each number that is searched."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberSpace(SearchedLayers):
    """The numbers of one rule, searched in Latin hypercubes; see `ropewalk.extend.space.Space`.

    - `over`: a name of FAMILIES. `starts`: the published methods that every engine reads, at their published numbers.
    """

    over: str
    starts: tuple[Numbers, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    halves: ClassVar[bool] = True
    budget: ClassVar[int] = 37  # five starts and two generations

    @property
    def ranges(self) -> dict[str, Range]:
        """The range of each number."""
        return FAMILIES[self.over][1](self.reach)

    @property
    def settings(self) -> str:
        """What its draws depend on beside the seed."""
        return f"{self.over} {self.ranges} {POPULATION} {DIGITS}"

    def point(self, logarithms: Sequence[float], name: str) -> Numbers:
        """The point with these logarithms, put within the ranges, each number with a few digits."""
        numbers = []
        for (key, (low, high)), value in zip(self.ranges.items(), logarithms, strict=True):
            inside = min(max(math.exp(value), low), high)
            numbers.append((key, float(f"{inside:.{DIGITS}g}")))
        return Numbers(name, FAMILIES[self.over][0], tuple(numbers))

    def read(self, content: Any) -> Numbers:
        """The reverse of `Numbers.to_json`."""
        numbers = tuple((str(key), float(value)) for key, value in content["numbers"].items())
        if min((value for _, value in numbers), default=1.0) <= 0:
            raise ValueError
        point = Numbers(str(content["name"]), str(content["rule"]), numbers)
        point.scaling(self.reach.trained)
        return point

    def sampler(self, best: Point, *, seed: int) -> LatinHypercube:
        """Latin hypercubes: the whole box, then smaller ones about the best point of this rule."""
        return LatinHypercube(self, seed=seed)

    def coordinates(self, point: Point) -> list[float] | None:
        """The logarithms of the numbers that are searched; None for a point of another rule."""
        if not isinstance(point, Numbers) or point.rule != FAMILIES[self.over][0]:
            return None
        given, usual = dict(point.numbers), yarn_mscale(dict(point.numbers)["factor"], 1.0)
        return [math.log(given.get(key, usual)) for key in self.ranges]

    def rope(self, point: Numbers) -> RopeConfig:
        """The rope of the searched layers."""
        rule, trained = point.scaling(self.reach.trained), self.reach.trained
        if rule is None:
            return self.plain
        found = extended(self.plain, rule, trained=trained, length=trained)
        return with_unscaled_tokens(self.plain, found, self.reach) if self.reach.unscaled_tokens else found

    def apply(self, reader: Reader, point: Numbers) -> Reader:
        """The model under a point: the same weights, not copied."""
        return self.under(reader, self.rope(point))

    def profile(self, point: Numbers) -> tuple[tuple[float, ...], float]:
        """What a point does at the target: the divisor of each pair's frequency, and the attention factor."""
        return profile_of(self.rope(point), self.plain, self.reach.target)


class LatinHypercube:
    """Points of a Latin hypercube in the logarithms of a space's numbers (McKay, Beckman and Conover 1979).

    The first generation fills the whole box: each number's range is cut into as many equal parts as there are points,
    and each part has one. Each later one fills a box of half the width about the best point, within the first box.
    `seed` decides every draw.
    """

    def __init__(self, space: NumberSpace, *, seed: int) -> None:
        self._space, self._seed, self._generation = space, seed, 0
        self._low, self._high = np.log(np.array(list(space.ranges.values()), dtype=np.float64)).T
        self._centre = (self._low + self._high) / 2
        self._asked: list[list[float]] = []

    @property
    def population(self) -> int:
        """Points of one generation."""
        return POPULATION

    def ask(self) -> list[list[float]]:
        """One generation of points: the logarithms of each."""
        draws = np.random.default_rng([self._seed, self._generation])
        half = (self._high - self._low) / 2 ** (self._generation + 1)
        low, high = np.maximum(self._centre - half, self._low), np.minimum(self._centre + half, self._high)
        parts = np.stack([draws.permutation(POPULATION) for _ in self._low], axis=1)
        places = (parts + draws.random(parts.shape)) / POPULATION
        self._asked = (low + places * (high - low)).tolist()
        return self._asked

    def tell(self, losses: Sequence[float], best: Point) -> None:
        """What the generation cost, in its order; the next box lies about `best`, or, where that is a point of another
        rule, about the best of this generation."""
        centre = self._space.coordinates(best)
        self._centre = np.array(self._asked[int(np.argmin(losses))] if centre is None else centre)
        self._generation += 1


def number_space(over: str, positions: Positions, reach: Reach) -> NumberSpace:
    """The numbers of `over`, a name of FAMILIES, in a model of these positions.

    Plain, and PI, NTK, YaRN and Llama 3 at their published numbers, are starts. **Raises:** `RopeError` as
    `searched_layers`.

    >>> rope = RopeConfig(64, interleaved=False)
    >>> space = number_space("yarn", Positions((rope,), (None,), (None,)), Reach(512, 2048))
    >>> [start.name for start in space.starts], list(space.ranges)
    (['plain', 'pi', 'ntk', 'yarn', 'llama3'], ['factor', 'beta_fast', 'beta_slow'])
    """
    layers = searched_layers(positions, reach)
    starts, left_out = [Numbers.of(PLAIN, None)], []
    for name in RIVALS:
        rope, method = rope_under(name, positions, layers), METHODS[name]
        if isinstance(rope, RopeConfig) and method.scaling is not None:
            starts.append(Numbers.of(name, method.scaling(layers.plain, reach)))
        else:
            left_out.append((name, str(rope)))
    return NumberSpace(
        over=over,
        layers=layers.layers,
        plain=layers.plain,
        positions=layers.positions,
        reach=reach,
        starts=tuple(starts),
        left_out=tuple(left_out),
    )
