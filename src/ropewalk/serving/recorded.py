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

    - `action`, `method`, `length`: of the verdict; if it has two, of that for engines. `facts`: its headlines.
    - `instead`: what to do if it does not recommend to extend. `audits`: of the model's ropes.
    - `costs`: of each method that was measured.
    """

    trained_length: int
    target: int
    action: str
    method: str | None
    length: int | None
    facts: Mapping[str, str]
    instead: str
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
        verdict, in_python = content["verdict"], dict[str, str]()
        if verdict.get("engine") == "python" and verdict.get("beside") is not None:
            in_python, verdict = {"in Python": str(verdict["headline"])}, verdict["beside"]  # the answer for engines
        trained, target = int(content["trained_length"]), int(content["target"])
        method, length, further = verdict["method"], verdict["length"], verdict["next"]
        length = None if length is None else int(length)
        if not (1 <= trained <= target and (length is None or trained < length <= target)):
            raise malformed(content, f"lengths {trained}, {target}, {length}")
        if not isinstance(method, str | None):
            raise malformed(content, "the method")
        costs, standings = {}, content["evidence"]["standings"]
        for name, form in content["methods"].items():
            cost = standings[form["same_as"] or name]["cost"]
            if cost is not None:
                value, ends = float(cost["value"]), (cost["low"], cost["high"])
                interval = None if None in ends else (float(ends[0]), float(ends[1]))
                if not all(map(math.isfinite, (value, *(interval or ())))):
                    raise malformed(content, f"the cost of {name}")
                costs[name] = Cost(method=name, factor=target / trained, target=target, within=value,
                                   within_interval=interval)  # fmt: skip
        action = str(verdict["action"])
        otherwise = "To extend it anyway, leave out --from and pass --method and --target."
        return cls(
            trained_length=trained,
            target=target,
            action=action,
            method=method,
            length=length,
            facts={"action": action, "verdict": str(verdict["headline"]), **in_python},
            instead=_INSTEAD.get(action) or (f"Measure more: {further}" if further else otherwise),
            audits=tuple(content["inspection"].get("audits") or [content["inspection"]["audit"]]),
            costs=costs,
        )

    def recommended(self, command: str) -> str:
        """Return the recommended method; raise `RopeError` if the answer is not to extend. `command`: for the error."""
        if self.action == "extend" and self.method is not None:
            return self.method
        engines = " for engines" if "in Python" in self.facts else ""
        reason = f"{command}: the doctor does not recommend extending this model{engines}."
        raise RopeError(reason, facts=self.facts, cure=self.instead)
