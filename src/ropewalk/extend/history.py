"""Every evaluation of a search, in one JSON file that is always whole: a stopped search is replayed from it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from ropewalk.context.output import check_begins, finite, read_state, write_whole
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
        found: dict[str, Any] = finite({**self.factors.to_json(), "losses": list(self.losses), "seconds": self.seconds})
        return found

    @classmethod
    def from_json(cls, content: Any) -> Evaluation:
        """The reverse of `to_json`; raises KeyError, TypeError or ValueError (a RopeError is one) for anything else."""
        divisors = tuple(float(value) for value in content["divisors"])
        losses = tuple(math.inf if value is None else float(value) for value in content["losses"])
        if not losses or not divisors or min(divisors) <= 0:
            raise RopeError(
                "search: an evaluation has losses, and divisors above zero.",
                facts={"divisors": divisors, "losses": losses},
                cure="Remove the file that holds it.",
            )
        factors = Factors(str(content["name"]), divisors, float(content["attention_factor"]))
        return cls(factors, losses, float(content["seconds"]))


class History:
    """The evaluations of one search in order, written to `path` after each one (None: kept in memory alone).

    `fingerprint` says what they are evaluations of: model, windows, lengths, seed.
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.evaluations: list[Evaluation] = []

    @classmethod
    def of(cls, place: Path | None, fingerprint: str) -> History:
        """In the file `place`, or in a file of its own where `place` is a folder."""
        own = place / f"{fingerprint}.json" if place is not None and place.is_dir() else place
        return cls(own, fingerprint)

    def take_up(self, *, resume: bool) -> int:
        """Read what an earlier run left, if `resume`; returns how many evaluations.

        Raises `RopeError` if the file is not a search's, or, to be resumed, belongs to another search.
        """
        if not resume:
            check_begins(self.path, lambda stored: isinstance(_parsed(stored), list), where="search")
            return 0
        of = "model, text, length or seed"
        self.evaluations = read_state(self.path, self.fingerprint, _parsed, where="search", of=of) or []
        return len(self.evaluations)

    def add(self, evaluation: Evaluation) -> None:
        """Keep one evaluation and write the file, whole."""
        self.evaluations.append(evaluation)
        if self.path is not None:
            lines = [line.to_json() for line in self.evaluations]
            write_whole(self.path, json.dumps({"fingerprint": self.fingerprint, "evaluations": lines}, allow_nan=False))


def _parsed(stored: Any) -> list[Evaluation]:
    return [Evaluation.from_json(line) for line in stored["evaluations"]]
