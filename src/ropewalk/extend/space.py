"""What a search moves: `Space`, its points, and what draws them; the layers of a model that it acts on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.models.positions import Positions
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of

PLAIN = "plain"


@runtime_checkable
class Point(Protocol):
    """One way to scale a model's ropes; `name` says where it comes from."""

    @property
    def name(self) -> str:
        """A method's name, or a candidate's number."""

    @property
    def logarithms(self) -> list[float]:
        """The logarithms of its numbers."""

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""


@runtime_checkable
class Sampler(Protocol):
    """What proposes points, one generation after the other. Replayed with the same losses it proposes the same."""

    @property
    def population(self) -> int:
        """Points of one generation."""

    def ask(self) -> list[list[float]]:
        """One generation: the logarithms of each point, as `Space.point` takes them."""

    def tell(self, losses: Sequence[float], best: Point) -> None:
        """What the generation cost, in its order, and the best point until now. Losses behind those of points that
        were read whole only keep their order."""


@runtime_checkable
class Space(Protocol):
    """The points that a search may reach, and how each becomes the ropes of a model.

    - `over`: its name on the command line. `reach`: the lengths; the first `unscaled_tokens` keep their angles.
    - `starts`: analytic methods as points, `plain` among them. `left_out`: those that cannot be applied, and why.
    - `settings`: what its draws depend on beside the seed, as a string.
    """

    @property
    def over(self) -> str: ...

    @property
    def reach(self) -> Reach: ...

    @property
    def starts(self) -> tuple[Point, ...]: ...

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def settings(self) -> str: ...

    @property
    def halves(self) -> bool:
        """Whether its sampler does well where poor points are not read to the end."""

    @property
    def budget(self) -> int:
        """Evaluations, where no number is given."""

    def point(self, logarithms: Sequence[float], name: str) -> Point:
        """The point with these logarithms, put within the bounds."""

    def read(self, content: Any) -> Point:
        """The reverse of `Point.to_json`; raises KeyError, TypeError or ValueError for anything else."""

    def sampler(self, best: Point, *, seed: int) -> Sampler:
        """What proposes points, about the best start where it has a use for one."""

    def rope(self, point: Any) -> RopeConfig | None:
        """The rope of the searched layers under a point; None where it acts in attention instead."""

    def apply(self, reader: Reader, point: Any) -> Reader:
        """The model under a point: the same weights, not copied."""

    def profile(self, point: Any) -> tuple[tuple[float, ...], float]:
        """What a point does at the target: the divisor of each pair's frequency (in attention: of its far positions),
        and the attention factor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchedLayers:
    """The layers that are searched, with one rope between them: those that see beyond the trained length.

    - `plain`: that rope as it was trained. `positions`: every layer's, as it was trained.
    """

    layers: tuple[int, ...]
    plain: RopeConfig
    positions: Positions
    reach: Reach

    def under(self, reader: Reader, rope: RopeConfig) -> Reader:
        """The model with this rope in these layers: the same weights, not copied."""
        ropes = tuple(rope if index in self.layers else other for index, other in enumerate(self.positions.ropes))
        return reader.under(dataclasses.replace(self.positions, ropes=ropes))


def searched_layers(positions: Positions, reach: Reach) -> SearchedLayers:
    """The layers of a model that a search acts on; others keep their ropes.

    **Raises:** `RopeError` where nothing is to be extended, where layers have different ropes (the same numbers
    would not mean the same in each), and for ropes with pairs that stand still or with unscaled first tokens.
    """
    if not 2 <= reach.trained < reach.target:
        raise RopeError(
            "search: the target must lie beyond the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure="Ask for a longer --target.",
        )
    if reach.unscaled_tokens >= reach.target:
        raise RopeError(
            "search: `unscaled_tokens` must lie from 0 to below the target.",
            facts={"unscaled_tokens": reach.unscaled_tokens, "target": reach.target},
            cure="LongRoPE tries 0 to 256.",
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
    return SearchedLayers(
        layers=tuple(seen), plain=plain, positions=dataclasses.replace(positions, ropes=ropes), reach=reach
    )


def rope_under(name: str, positions: Positions, layers: SearchedLayers) -> RopeConfig | str:
    """The searched layers' rope under a method of METHODS, or why it cannot be a point."""
    scaled = dataclasses.replace(layers.reach, unscaled_tokens=0)
    try:
        rope = METHODS[name].positions(positions, scaled).ropes[layers.layers[0]]
        assert rope is not None
        columns_of(rope, layers.reach.target)  # raises where the rule has no such frequencies
    except RopeError as error:
        return error.rule
    return "its first tokens are unscaled" if first_columns_of(rope) is not None else rope


def profile_of(rope: RopeConfig, plain: RopeConfig, target: int) -> tuple[tuple[float, ...], float]:
    """What a rope does at the target's length: divisors of the plain one's frequencies, and a factor beside its own."""
    new, old = columns_of(rope, target), columns_of(plain, target)
    factor = attention_factor_of(rope, target) / attention_factor_of(plain, target)
    return tuple(a / b for a, b in zip(old, new, strict=True)), factor
