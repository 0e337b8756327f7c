"""One evaluation of a search: a point and what it costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.extend.space import Point
from ropewalk.readers.reader import Reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What a point costs: the mean of `items` numbers, one for each window or text that is read.

    - `name`: with everything that the numbers depend on beside the model; it tells objectives apart in ledgers.
    - `cost`: of a model and an item from 0 on, in nats. `tokens`: how many one item reads.
    - `within`: the loss of a model within the trained length, in nats per token, on a window from 0 to `windows` - 1;
      None where that is no constraint. `window_tokens`: how many one window reads.
    """

    name: str
    items: int
    cost: Callable[[Reader, int], float]
    tokens: int = 0
    within: Callable[[Reader, int], float] | None = None
    windows: int = 0
    window_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A point, what it cost on each item that was read (nats; infinite where the model gave no number), by how much it
    changed the loss within the trained length on each window (nats per token), and the seconds that it took."""

    point: Point
    losses: tuple[float, ...]
    within: tuple[float, ...]
    seconds: float

    @property
    def loss(self) -> float:
        """The mean over the items read, infinite where one of them is not a number or none was read."""
        return _mean(self.losses) if self.losses else math.inf

    @property
    def cost_within(self) -> float:
        """The mean change within the trained length against plain; 0 where it was not measured."""
        return _mean(self.within) if self.within else 0.0

    def followed_by(self, later: Evaluation) -> Evaluation:
        """This one with what was read later, of the same point."""
        losses, within = (*self.losses, *later.losses), (*self.within, *later.within)
        return Evaluation(self.point, losses, within, self.seconds + later.seconds)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it; what is not finite is null."""
        numbers = {"losses": list(self.losses), "within": list(self.within), "seconds": self.seconds}
        content: dict[str, Any] = finite({**self.point.to_json(), **numbers})
        return content

    @classmethod
    def from_json(cls, content: Any, read: Callable[[Any], Point]) -> Evaluation:
        """The reverse of `to_json`, with the space's `read`; raises `RopeError` for anything else."""
        try:
            losses, within = (_numbers(content[name]) for name in ("losses", "within"))
            if not losses and not within:
                raise ValueError
            return cls(read(content), losses, within, float(content["seconds"]))
        except (KeyError, TypeError, ValueError, RopeError):
            raise RopeError(
                "search: an evaluation has losses, and numbers above zero.",
                facts={"evaluation": content},
                cure="Remove the file that holds it.",
            ) from None


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.inf if value is None else float(value) for value in values)


def _mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else math.inf
