"""What the search moves: one divisor per pair and one attention factor; the analytic methods as such points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach, extended
from ropewalk.models.positions import Positions
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of
from ropewalk.rope.scaling import LongRoPE

LOWEST = 0.5  # of a divisor: Resonance's rounding goes down to 0.95
BEYOND = 2.0  # how far beyond the ratio of lengths, and beyond every analytic method, a divisor may go
ATTENTION = (0.5, 2.0)
PLAIN = "plain"


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
class Space:
    """The points that a search may reach, and how each becomes the ropes of a model.

    - `layers`: which layers are searched, with one rope between them: those that see beyond the trained length.
    - `plain`: that rope as it was trained. `positions`: every layer's, as it was trained.
    - `reach`: the lengths; its first `unscaled_tokens` keep their angles under every point (LongRoPE's n-hat).
    - `monotone`: divisors never decrease from one pair to the next slower one (LongRoPE's constraint); an analytic
      start is taken as it is.
    - `starts`: the analytic methods as points. `left_out`: those that cannot be applied, and why.
    """

    layers: tuple[int, ...]
    plain: RopeConfig
    positions: Positions
    reach: Reach
    monotone: bool = False
    starts: tuple[Factors, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def largest(self) -> float:
        """The largest divisor: twice the ratio of lengths, or twice that of the furthest analytic method."""
        furthest = max((max(start.divisors) for start in self.starts), default=1.0)
        return BEYOND * max(self.reach.factor, furthest)

    def factors(self, logarithms: Sequence[float], name: str) -> Factors:
        """The point with these logarithms, put within the bounds, and in order where that is asked for."""
        low, high = math.log(LOWEST), math.log(self.largest)
        inside = [min(max(value, low), high) for value in logarithms[:-1]]
        if self.monotone:
            inside.sort()
        factor = min(max(math.exp(logarithms[-1]), ATTENTION[0]), ATTENTION[1])
        return Factors(name, tuple(math.exp(value) for value in inside), factor)

    def rope(self, factors: Factors) -> RopeConfig:
        """The rope of the searched layers: LongRoPE with two equal lists, and the attention factor written out."""
        rule = LongRoPE(
            factors.divisors,
            factors.divisors,
            self.reach.trained,
            attention_factor=factors.attention_factor,
            unscaled_tokens=self.reach.unscaled_tokens,
        )
        return extended(self.plain, rule, trained=self.reach.trained, length=self.reach.target)

    def positions_of(self, factors: Factors) -> Positions:
        """What each layer knows of positions under these factors."""
        rope = self.rope(factors)
        ropes = tuple(rope if index in self.layers else other for index, other in enumerate(self.positions.ropes))
        return dataclasses.replace(self.positions, ropes=ropes)

    def apply(self, reader: Reader, factors: Factors) -> Reader:
        """The model under these factors: the same weights, not copied."""
        return reader.under(self.positions_of(factors))


def search_space(positions: Positions, reach: Reach, *, monotone: bool = False) -> Space:
    """What can be searched in a model of these positions, with every analytic method that applies as a start.

    Methods with the same frequencies at the target are one start, under the first one's name; a method that cannot be
    applied is left out, and `left_out` says why. Layers that never see beyond the trained length keep their ropes.

    **Raises:** `RopeError` where nothing is to be extended, where layers have different ropes (one list of divisors
    would not mean the same in each), and for ropes with pairs that stand still or with unscaled first tokens.
    """
    if not 2 <= reach.trained < reach.target:
        raise RopeError(
            "search: the target must lie beyond the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure="Ask for a longer --target.",
        )
    ropes = tuple(None if rope is None else rope.as_trained() for rope in positions.ropes)
    seen = [
        index
        for index, (rope, window) in enumerate(zip(ropes, positions.sliding_windows, strict=True))
        if rope is not None and (window is None or window > reach.trained)
    ]
    distinct = {ropes[index] for index in seen}
    plain = ropes[seen[0]] if seen else None
    if plain is None or len(distinct) != 1 or not plain.can_be_extended:
        raise RopeError(
            "search: one list of divisors needs one rope, without standing pairs, in all layers that see that far.",
            facts={"ropes": list(distinct)},
            cure="Compare the methods that apply with `ropewalk doctor`.",
        )
    starts: dict[tuple[tuple[float, ...], float], Factors] = {}
    left_out: list[tuple[str, str]] = []
    scaled = dataclasses.replace(reach, unscaled_tokens=0)
    for name, method in METHODS.items():
        if not (method.scales_frequencies or method.keeps_own or name == PLAIN):
            continue
        try:
            rope = method.positions(positions, scaled).ropes[seen[0]]
            assert rope is not None
            if first_columns_of(rope) is not None:
                left_out.append((name, "its first tokens are unscaled"))
                continue
            start = _factors_of(rope, plain, name, reach.target)
        except RopeError as error:
            left_out.append((name, error.rule))
            continue
        starts.setdefault((start.divisors, start.attention_factor), start)
    return Space(
        layers=tuple(seen),
        plain=plain,
        positions=dataclasses.replace(positions, ropes=ropes),
        reach=reach,
        monotone=monotone,
        starts=tuple(starts.values()),
        left_out=tuple(left_out),
    )


def _factors_of(rope: RopeConfig, plain: RopeConfig, name: str, target: int) -> Factors:
    """What a rope does at the target's length: divisors of the plain one's frequencies, and a factor beside its own."""
    new, old = columns_of(rope, target), columns_of(plain, target)
    factor = attention_factor_of(rope, target) / attention_factor_of(plain, target)
    return Factors(name, tuple(a / b for a, b in zip(old, new, strict=True)), factor)
