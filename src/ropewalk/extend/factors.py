"""A search over one divisor per pair and one attention factor; the analytic methods as such points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ropewalk.extend.evolution import Evolution
from ropewalk.extend.space import PLAIN, Point, SearchedLayers, profile_of, rope_under, searched_layers
from ropewalk.methods import METHODS, Reach, extended
from ropewalk.models.positions import Positions
from ropewalk.optional import need
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import LongRoPE

LOWEST = 0.5  # of a divisor: Resonance's rounding goes down to 0.95
BEYOND = 2.0  # how far beyond the ratio of lengths, and beyond every analytic method, a divisor may go
ATTENTION = (0.5, 2.0)


@dataclasses.dataclass(frozen=True)
class Factors:
    """A point of the search: each pair's frequency is divided by its divisor, queries and keys are multiplied by
    `attention_factor`; `name` says where it comes from."""

    name: str
    divisors: tuple[float, ...]
    attention_factor: float

    @property
    def logarithms(self) -> list[float]:
        """ln of every divisor, then of the attention factor."""
        return [math.log(value) for value in (*self.divisors, self.attention_factor)]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"name": self.name, "divisors": list(self.divisors), "attention_factor": self.attention_factor}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactorSpace(SearchedLayers):
    """One divisor per pair and an attention factor, searched by CMA-ES; see `ropewalk.extend.space.Space`.

    - `monotone`: divisors never decrease from one pair to the next slower one (LongRoPE's constraint); an analytic
      start is taken as it is.
    - `starts`: the analytic methods as points. `left_out`: those that cannot be applied, and why.
    """

    monotone: bool = False
    starts: tuple[Factors, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    over: ClassVar[str] = "factors"
    halves: ClassVar[bool] = False  # CMA-ES learns a covariance from the ranks of whole generations
    budget: ClassVar[int] = 200

    @property
    def settings(self) -> str:
        """What its draws depend on beside the seed."""
        return f"monotone {self.monotone}, cma {need('cma', extra='search').__version__}"

    @property
    def largest(self) -> float:
        """The largest divisor: twice the ratio of lengths, or twice that of the furthest analytic method."""
        furthest = max((max(start.divisors) for start in self.starts), default=1.0)
        return BEYOND * max(self.reach.factor, furthest)

    def point(self, logarithms: Sequence[float], name: str) -> Factors:
        """The point with these logarithms, put within the bounds, and in order where that is asked for."""
        low, high = math.log(LOWEST), math.log(self.largest)
        inside = [min(max(value, low), high) for value in logarithms[:-1]]
        if self.monotone:
            inside.sort()
        factor = min(max(math.exp(logarithms[-1]), ATTENTION[0]), ATTENTION[1])
        return Factors(name, tuple(math.exp(value) for value in inside), factor)

    def read(self, content: Any) -> Factors:
        """The reverse of `Factors.to_json`."""
        divisors = tuple(float(value) for value in content["divisors"])
        if not divisors or min(divisors) <= 0:
            raise ValueError
        return Factors(str(content["name"]), divisors, float(content["attention_factor"]))

    def sampler(self, best: Point, *, seed: int) -> Evolution:
        """CMA-ES about the best start."""
        return Evolution(best, self.starts, seed=seed)

    def rope(self, point: Factors) -> RopeConfig:
        """The rope of the searched layers: LongRoPE with two equal lists, and the attention factor written out."""
        rule = LongRoPE(
            point.divisors,
            point.divisors,
            self.reach.trained,
            attention_factor=point.attention_factor,
            unscaled_tokens=self.reach.unscaled_tokens,
        )
        return extended(self.plain, rule, trained=self.reach.trained, length=self.reach.target)

    def apply(self, reader: Reader, point: Factors) -> Reader:
        """The model under a point: the same weights, not copied."""
        return self.under(reader, self.rope(point))

    def profile(self, point: Factors) -> tuple[tuple[float, ...], float]:
        """What a point does at the target: the divisor of each pair's frequency, and the attention factor."""
        return profile_of(self.rope(point), self.plain, self.reach.target)


def factor_space(positions: Positions, reach: Reach, *, monotone: bool = False) -> FactorSpace:
    """Every divisor and attention factor of a model of these positions, with every analytic method as a start.

    Methods with the same frequencies at the target are one start, under the first one's name; a method that cannot be
    applied is left out, and `left_out` says why. **Raises:** `RopeError` as `searched_layers`.
    """
    layers = searched_layers(positions, reach)
    starts: dict[tuple[tuple[float, ...], float], Factors] = {}
    left_out: list[tuple[str, str]] = []
    for name, method in METHODS.items():
        if not (method.scales_frequencies or method.keeps_own or name == PLAIN):
            continue
        rope = rope_under(name, positions, layers)
        if isinstance(rope, RopeConfig):
            point = Factors(name, *profile_of(rope, layers.plain, reach.target))
            starts.setdefault((point.divisors, point.attention_factor), point)
        else:
            left_out.append((name, rope))
    return FactorSpace(
        layers=layers.layers,
        plain=layers.plain,
        positions=layers.positions,
        reach=reach,
        monotone=monotone,
        starts=tuple(starts.values()),
        left_out=tuple(left_out),
    )
