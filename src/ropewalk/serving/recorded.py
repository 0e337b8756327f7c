"""What applying and serving take from a doctor's record: the recommendation, the lengths, and what methods cost."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.errors import RopeError
from ropewalk.records import checked, malformed
from ropewalk.statistics import Interval, signed

_INSTEAD = {
    "keep": "Use the model unchanged; no files are needed.",
    "cut": "Pass the model only the last tokens, up to its trained length; no files are needed.",
    "unfit": "Measure on a text that the model can predict: ropewalk doctor MODEL --text FILE.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """A method's loss within the trained length minus plain's, in nats per token, and its interval.

    - `factor`, `target`: of the record.
    """

    method: str
    factor: float
    target: int
    within: float
    within_interval: Interval

    @property
    def sentence(self) -> str:
        """Return the cost as a sentence."""
        within = signed(self.within, self.within_interval)
        return (
            f"{self.method} {self.factor:g}: within the trained length {within} nats per token. Send shorter prompts "
            "to the unchanged model."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """The parts of a doctor's record that are needed to apply its answer. Lengths are in tokens.

    - `model`: its name. `audits`: of its ropes.
    - `action`, `headline`, `method`, `length`, `next`: of the verdict; if it has two, of that for engines.
    - `in_python`: the headline of the verdict for Python, if there are two.
    - `costs`: of each method that was measured.
    """

    model: str
    trained_length: int
    target: int
    action: str
    headline: str
    method: str | None
    length: int | None
    next: str | None
    in_python: str | None
    audits: tuple[Mapping[str, Any], ...]
    costs: Mapping[str, Cost]

    @classmethod
    def read(cls, record: str | os.PathLike[str] | Mapping[str, Any]) -> Recorded:
        """Load a record: a file of `ropewalk doctor --json`, or its content. Raises `RopeError` for anything else."""
        content = record if isinstance(record, Mapping) else read_json(Path(record))
        with checked(content):
            return cls._of(content)

    @classmethod
    def _of(cls, content: Mapping[str, Any]) -> Recorded:
        verdict, in_python = content["verdict"], None
        if verdict.get("engine") == "python" and verdict.get("beside") is not None:
            in_python, verdict = str(verdict["headline"]), verdict["beside"]  # the answer for engines
        trained, target = int(content["trained_length"]), int(content["target"])
        length = None if verdict["length"] is None else int(verdict["length"])
        if not (1 <= trained <= target and (length is None or trained < length <= target)):
            raise malformed(content, f"lengths {trained}, {target}, {length}")
        if not (verdict["method"] is None or isinstance(verdict["method"], str)):
            raise malformed(content, "the method")
        costs = {}
        for name, form in content["methods"].items():
            cost = content["evidence"]["standings"][form["same_as"] or name]["cost"]
            if cost is not None:
                value, ends = float(cost["value"]), (cost["low"], cost["high"])
                interval = None if None in ends else (float(ends[0]), float(ends[1]))
                if not all(map(math.isfinite, (value, *(interval or ())))):
                    raise malformed(content, f"the cost of {name}")
                costs[name] = Cost(method=name, factor=target / trained, target=target, within=value,
                                   within_interval=interval)  # fmt: skip
        return cls(
            model=str(content["name"]),
            trained_length=trained,
            target=target,
            action=str(verdict["action"]),
            headline=str(verdict["headline"]),
            method=verdict["method"],
            length=length,
            next=verdict["next"],
            in_python=in_python,
            audits=tuple(content["inspection"].get("audits") or [content["inspection"]["audit"]]),
            costs=costs,
        )

    def recommended(self, command: str) -> str:
        """Return the recommended method; raise `RopeError` if the answer is not to extend. `command`: for the error."""
        if self.action != "extend" or self.method is None:
            engines = " for engines" if self.in_python else ""
            raise RopeError(
                f"{command}: the doctor does not recommend extending this model{engines}.",
                facts={"action": self.action, "verdict": self.headline}
                | ({"in Python": self.in_python} if self.in_python else {}),
                cure=_INSTEAD.get(self.action)
                or (
                    f"Measure more: {self.next}"
                    if self.next
                    else "To extend it anyway, leave out --from and pass --method and --target."
                ),
            )
        return self.method
