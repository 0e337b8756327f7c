"""A search over DPE's divisors: how far apart far positions stand, for each part of the pairs. arXiv:2504.18857."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ropewalk.attention.extensions import DPE
from ropewalk.errors import RopeError
from ropewalk.extend.numbers import Numbers, NumberSpace, number_space
from ropewalk.extend.space import Point
from ropewalk.methods import METHODS, Reach
from ropewalk.models.positions import Positions
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig

PARTS = 8  # of the pairs, as in the paper
EXACT = 8  # the trained length over the window that stays as it is: 1,024 of 8,192 tokens
UNIFORM = "uniform"
DRAWN = 16  # points of a generation, once every part was searched


@dataclasses.dataclass(frozen=True)
class Divisors:
    """A point of the search: `DPE`'s divisors, one for each part of the pairs from the fastest on, and its window."""

    name: str
    divisors: tuple[int, ...]
    window: int

    @property
    def logarithms(self) -> list[float]:
        """ln of every divisor."""
        return [math.log(value) for value in self.divisors]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"name": self.name, "rule": DPESpace.over, "parts": list(self.divisors), "window": self.window}


@dataclasses.dataclass(frozen=True)
class InAttention:
    """A start of the search: a method in attention, of no numbers that are searched."""

    name: str

    @property
    def logarithms(self) -> list[float]:
        """None of them."""
        return []

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"name": self.name, "rule": "method"}


AnyPoint = Numbers | Divisors | InAttention


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPESpace:
    """DPE's divisors, powers of two, searched part by part; see `ropewalk.extend.space.Space`.

    - `analytic`: the methods of frequencies that are starts as well; `in_attention`: those in attention.
    - `window`: tokens at their own distance.
    - `layers`: those that see all tokens; others stay as they are.
    """

    over: ClassVar[str] = "dpe"
    halves: ClassVar[bool] = True

    analytic: NumberSpace
    in_attention: tuple[InAttention, ...]
    window: int
    layers: tuple[int, ...]
    parts: int

    @property
    def reach(self) -> Reach:
        """The lengths."""
        return self.analytic.reach

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Methods that cannot be applied, and why."""
        return self.analytic.left_out

    @property
    def usual(self) -> int:
        """The divisor of parts that are not searched: the paper's, twice the ratio of lengths, as a power of two."""
        return int(2 ** math.ceil(math.log2(2 * self.reach.factor)))

    @property
    def choices(self) -> tuple[int, ...]:
        """The powers of two that a part may have: up to where the whole target lies within the window."""
        most = max(self.usual, math.ceil(self.reach.target / self.window))
        return tuple(2**n for n in range(math.ceil(math.log2(most)) + 1))

    @property
    def starts(self) -> tuple[Point, ...]:
        """The published methods that every engine reads, those in attention, and all parts alike."""
        return (*self.analytic.starts, *self.in_attention, Divisors(UNIFORM, (self.usual,) * self.parts, self.window))

    @property
    def settings(self) -> str:
        """What its draws depend on beside the seed."""
        return f"{self.over} {self.parts} {self.choices} {self.usual} {self.window} {DRAWN}"

    @property
    def budget(self) -> int:
        """The starts, each part alone, the best of each together, and one generation about them."""
        return len(self.starts) + 1 + self.parts * (len(self.choices) - 1) + 1 + DRAWN

    def point(self, logarithms: Sequence[float], name: str) -> Divisors:
        """The point with these logarithms, each at the nearest choice."""
        nearest = [min(self.choices, key=lambda one: abs(math.log(one) - value)) for value in logarithms]
        return Divisors(name, tuple(nearest), self.window)

    def read(self, content: Any) -> Point:
        """The reverse of the points' `to_json`."""
        if content["rule"] == "method":
            return {one.name: one for one in self.in_attention}[content["name"]]
        if content["rule"] != self.over:
            return self.analytic.read(content)
        divisors = tuple(int(value) for value in content["parts"])
        DPE(divisors, int(content["window"]))
        return Divisors(str(content["name"]), divisors, int(content["window"]))

    def sampler(self, best: Point, *, seed: int) -> PartByPart:
        """Each part alone, then about the best."""
        return PartByPart(self, seed=seed)

    def rope(self, point: AnyPoint) -> RopeConfig | None:
        """The rope of the searched layers; None for what acts in attention, which no rope says."""
        return self.analytic.rope(point) if isinstance(point, Numbers) else None

    def apply(self, reader: Reader, point: AnyPoint) -> Reader:
        """The model under a point: the same weights, not copied."""
        plain = self.analytic.positions
        if isinstance(point, Numbers):
            return self.analytic.apply(reader, point)
        if isinstance(point, InAttention):
            return reader.under(METHODS[point.name].positions(plain, self.reach))
        extensions = tuple(
            DPE(point.divisors, point.window) if index in self.layers else one
            for index, one in enumerate(plain.extensions)
        )
        return reader.under(dataclasses.replace(plain, extensions=extensions))

    def profile(self, point: AnyPoint) -> tuple[tuple[float, ...], float]:
        """The divisor of each pair, of its far positions under DPE, none for other methods in attention; the factor."""
        if isinstance(point, Numbers):
            return self.analytic.profile(point)
        if isinstance(point, InAttention):
            return (), 1.0
        pairs = self.analytic.plain.pairs
        counts = np.diff([pairs * part // self.parts for part in range(self.parts + 1)])
        return tuple(float(value) for value in np.repeat(point.divisors, counts)), 1.0


class PartByPart:
    """Points of `DPESpace`: every divisor of one part, the others at the usual one; then the best of each together.

    Later generations take the best point and double or halve the divisors of two parts, drawn from `seed`.
    Source: Lu et al. 2025, arXiv:2504.18857, section 3.1, whose search ends with the best of each.
    """

    def __init__(self, space: DPESpace, *, seed: int) -> None:
        self._space, self._seed, self._generation = space, seed, 0
        usual = [math.log(space.usual)] * space.parts
        self._alone = [
            (part, math.log(one)) for part in range(space.parts) for one in space.choices if one != space.usual
        ]
        self._asked = [usual, *([*usual[:part], value, *usual[part + 1 :]] for part, value in self._alone)]
        self._best = usual

    @property
    def population(self) -> int:
        """Points of this generation."""
        return len(self._asked)

    def ask(self) -> list[list[float]]:
        """One generation of points: the logarithms of each."""
        return self._asked

    def tell(self, losses: Sequence[float], best: Point) -> None:
        """What the generation cost, in its order; the next is about `best`, or, where that is an analytic method, about
        the best of this generation."""
        self._generation += 1
        if self._generation == 1:
            self._best = self._best_of_each(losses)
            self._asked = [self._best]
            return
        self._best = best.logarithms if isinstance(best, Divisors) else self._asked[int(np.argmin(losses))]
        self._asked = self._steps()

    def _best_of_each(self, losses: Sequence[float]) -> list[float]:
        """Of each part the divisor that cost least, the others at the usual one."""
        found, least = list(self._asked[0]), [losses[0]] * self._space.parts
        for (part, value), loss in zip(self._alone, losses[1:], strict=True):
            if loss < least[part]:
                found[part], least[part] = value, loss
        return found

    def _steps(self) -> list[list[float]]:
        """Points about the best one."""
        draws, parts = np.random.default_rng([self._seed, self._generation]), self._space.parts
        found = []
        for _ in range(DRAWN):
            moved, point = draws.choice(parts, size=min(2, parts), replace=False), np.array(self._best)
            point[moved] += math.log(2) * draws.choice([-1, 1], size=len(moved))
            found.append(point.tolist())
        return found


def dpe_space(positions: Positions, reach: Reach) -> DPESpace:
    """DPE's divisors in a model of these positions, in eight parts of its pairs, or as many as it has pairs.

    Starts are those of the search for YaRN's numbers, the methods in attention that the doctor compares, and "uniform":
    all parts at twice the ratio of lengths. An eighth of the trained length stays as it is.

    **Raises:** `RopeError` as `searched_layers`, where no layer sees all tokens, and for unscaled first tokens.

    >>> rope = RopeConfig(64, interleaved=False)
    >>> space = dpe_space(Positions((rope,), (None,), (None,)), Reach(512, 2048))
    >>> space.window, space.usual, space.choices, space.budget
    (64, 8, (1, 2, 4, 8, 16, 32), 68)
    """
    analytic = number_space("yarn", positions, reach)
    layers = tuple(index for index in analytic.layers if positions.sliding_windows[index] is None)
    if not layers or reach.unscaled_tokens:
        raise RopeError(
            "search: DPE acts in attention, in layers that see all earlier tokens.",
            facts={"sliding windows": positions.sliding_windows, "unscaled_tokens": reach.unscaled_tokens},
            cure="Search --over yarn." if not layers else "Leave --unscaled-tokens out.",
        )
    rivals = [
        name
        for name, method in METHODS.items()
        if method.in_attention and not (method.on_request or method.forgets or method.needs_tuning)
    ]
    return DPESpace(
        analytic=analytic,
        in_attention=tuple(InAttention(name) for name in rivals),
        window=max(1, reach.trained // EXACT),
        layers=layers,
        parts=min(PARTS, analytic.plain.pairs),
    )
