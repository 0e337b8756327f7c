"""One evaluation of a search: a point and what it costs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.extend.factors import Factors


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A point, its loss in each window of the search text (nats per token; infinite where the model gave no number),
    and the seconds that it took."""

    factors: Factors
    losses: tuple[float, ...]
    seconds: float

    @property
    def loss(self) -> float:
        """The mean over the windows, infinite where one of them is not a number."""
        mean = sum(self.losses) / len(self.losses)
        return mean if math.isfinite(mean) else math.inf

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it; what is not finite is null."""
        content: dict[str, Any] = finite(
            {**self.factors.to_json(), "losses": list(self.losses), "seconds": self.seconds}
        )
        return content

    @classmethod
    def from_json(cls, content: Any) -> Evaluation:
        """The reverse of `to_json`; raises `RopeError` for anything else."""
        try:
            divisors = tuple(float(value) for value in content["divisors"])
            losses = tuple(math.inf if value is None else float(value) for value in content["losses"])
            factors = Factors(str(content["name"]), divisors, float(content["attention_factor"]))
            seconds = float(content["seconds"])
        except (KeyError, TypeError, ValueError):
            losses = divisors = ()
        if not losses or not divisors or min(divisors) <= 0:
            raise RopeError(
                "search: an evaluation has losses, and divisors above zero.",
                facts={"evaluation": content},
                cure="Remove the file that holds it.",
            )
        return cls(factors, losses, seconds)
