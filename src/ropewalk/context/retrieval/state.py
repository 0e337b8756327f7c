"""Which examples were found so far, in one JSON file that is always whole, so that a stopped run goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from ropewalk.context.output import check_begins, read_state, write_whole
from ropewalk.context.retrieval.protocol import Cell, RetrievalProtocol
from ropewalk.errors import RopeError
from ropewalk.models.tokenizer import TextTokenizer

FORMAT = 2  # of the file and of how examples are made: a change of either takes the next number
_KEYS = {"retrieval", "fingerprint", "models", "results"}
Key = tuple[str, str, int, float | None]


class RetrievalState:
    """Outcomes of examples, and where their needles really stood, in order, by (method, task, length, depth asked for).

    The file is written after each one. `fingerprint` says what the examples are made of; each method's model has one of
    its own. More tasks, lengths, depths, samples and methods may be asked for later: nothing is measured again.
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.models: dict[str, str] = {}
        self.outcomes: dict[Key, list[bool]] = {}
        self.depths: dict[Key, list[float | None]] = {}

    def begin(self) -> int:
        """Begin anew; refuses a file that is not a state: it would be overwritten. Returns 0: nothing is taken up."""
        check_begins(self.path, lambda stored: not stored or set(stored) == _KEYS, where="retrieval")
        return 0

    def resume(self) -> int:
        """Take up what the file holds, if its examples are this run's; returns how many were scored.

        Raises `RopeError` if the file is not a state or belongs to another measurement.
        """
        of = "tokenizer, text, seed or scoring"
        found = read_state(self.path, self.fingerprint, _parsed, where="retrieval", of=of)
        self.models, self.outcomes, self.depths = found or ({}, {}, {})
        return sum(map(len, self.outcomes.values()))

    def enter(self, method: str, model: str) -> None:
        """Say which model a method stands for. Raises `RopeError` where the state knows it as another one."""
        if self.models.setdefault(method, model) != model:
            raise RopeError(
                "retrieval: the state's results of this method are of another model, or of inputs cropped otherwise.",
                facts={"method": method, "its fingerprint": self.models[method], "this run's": model},
                cure="Begin anew, without --resume, or name another state.",
            )

    def found(self, method: str, cell: Cell) -> list[bool]:
        """The outcomes of a cell's examples so far, at most as many as it has; [] where there are none."""
        return self.outcomes.get((method, cell.task, cell.length, cell.depth), [])[: cell.examples]

    def real_depths(self, method: str, cell: Cell) -> list[float]:
        """Where the needles of a cell's examples stood so far; [] for a task without one asked needle."""
        kept = self.depths.get((method, cell.task, cell.length, cell.depth), [])[: cell.examples]
        return [depth for depth in kept if depth is not None]

    def add(self, method: str, cell: Cell, found: bool, depth: float | None) -> None:
        """Keep the next example's outcome and its needle's real depth, and write the file, whole."""
        key = (method, cell.task, cell.length, cell.depth)
        self.outcomes.setdefault(key, []).append(found)
        self.depths.setdefault(key, []).append(depth)
        if self.path is not None:
            write_whole(self.path, json.dumps(self._stored(), indent=1))

    def _stored(self) -> dict[str, Any]:
        rows = [
            {
                "method": method,
                "task": task,
                "length": length,
                "depth": depth,
                "found": [int(one) for one in found],
                "real_depths": self.depths[method, task, length, depth],
            }
            for (method, task, length, depth), found in self.outcomes.items()
        ]
        return {"retrieval": FORMAT, "fingerprint": self.fingerprint, "models": self.models, "results": rows}


def _parsed(stored: Any) -> tuple[dict[str, str], dict[Key, list[bool]], dict[Key, list[float | None]]]:
    outcomes, depths = {}, {}
    for row in stored["results"]:
        key = (str(row["method"]), str(row["task"]), int(row["length"]), _depth(row["depth"]))
        outcomes[key] = [bool(value) for value in row["found"]]
        depths[key] = [_depth(value) for value in row["real_depths"]]
    return {str(name): str(value) for name, value in stored["models"].items()}, outcomes, depths


def _depth(value: Any) -> float | None:
    return None if value is None else float(value)


def examples_fingerprint(tokenizer: TextTokenizer, text: str, protocol: RetrievalProtocol) -> str:
    """A short hash of what every example is made of and how it is scored; not of how many there are."""
    made = (FORMAT, torch.__version__, protocol.seed, protocol.scoring, protocol.haystack, tokenizer.bos_id)
    digest = hashlib.sha256(repr(made).encode())
    digest.update(text.encode())
    digest.update(tokenizer.tokenizer.to_str().encode())
    return digest.hexdigest()[:20]
