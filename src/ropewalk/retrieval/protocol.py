"""How retrieval is measured: tasks, lengths, depths, examples and scoring, validated once and named in every output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.retrieval.choices import SAMPLES as SAMPLES
from ropewalk.retrieval.choices import SCORINGS
from ropewalk.retrieval.tasks import Task

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
THRESHOLD = 0.856
"""RULER's bar for an effective length: what Llama-2-7B reaches at 4,096 tokens (Hsieh et al. 2024, section 4)."""
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One task at one length and one depth: None where the task has no one needle. `examples` are drawn for it."""

    task: str
    length: int
    depth: float | None
    examples: int


def draws(seed: int, cell: Cell, sample: int) -> Random:
    """The random numbers of one example."""
    return Random(f"{seed}:{cell.task}:{cell.length}:{cell.depth}:{sample}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalProtocol:
    """One protocol; lengths are in tokens with the answer, depths from 0 (the beginning of the filler) to 1.

    `samples` examples are made for each task, length and depth; tasks without a depth get as many in all. Raises
    `RopeError` for numbers out of range.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...] = DEPTHS
    samples: int = SAMPLES
    seed: int = 0
    scoring: str = "choice"
    text: str
    haystack: str | None = None
    trained_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "lengths", "depths"):
            values = getattr(self, name)
            object.__setattr__(self, name, tuple(values) if name == "tasks" else tuple(sorted(values)))
            if not values or len(set(values)) < len(values):
                raise RopeError(
                    f"retrieval: `{name}` must be given, each once.", facts={name: values}, cure="Name at least one."
                )
        if min(self.lengths) < 1 or not 0 <= min(self.depths) <= max(self.depths) <= 1 or self.samples < 1:
            raise RopeError(
                "retrieval: lengths and samples are at least 1, depths from 0 to 1.",
                facts={"lengths": self.lengths, "depths": self.depths, "samples": self.samples},
                cure="Give lengths in tokens, and depths as parts of the filler.",
            )
        if self.scoring not in SCORINGS:
            raise RopeError(
                "retrieval: unknown scoring.",
                facts={"scoring": self.scoring},
                cure=f"Choose from {', '.join(SCORINGS)}.",
            )

    def cells(self, tasks: tuple[Task, ...]) -> Iterator[Cell]:
        """Every cell, short inputs first."""
        for length in self.lengths:
            for task in tasks:
                for depth in self.depths if task.by_depth else (None,):
                    examples = self.samples * (1 if task.by_depth else len(self.depths))
                    yield Cell(task=task.name, length=length, depth=depth, examples=examples)

    def draws(self, cell: Cell, sample: int) -> Random:
        """The random numbers of one example: the same in every run and for every method."""
        return draws(self.seed, cell, sample)

    def sentence(self) -> str:
        """The protocol in words."""
        how = (
            "An example counts where the answer has a higher log-probability, summed over its tokens, than every "
            "distractor of its form, with as many tokens where they can be drawn; chance is 1 / choices: a model too "
            "small to answer in words is measured as well."
            if self.scoring == "choice"
            else "An example counts where the greedy completion, as long as the full answer, names every answer."
        )
        depths = ", ".join(f"{depth:g}" for depth in self.depths)
        fillers = {None: "repeated noise or " + self.text, "noise": "repeated noise", "text": self.text}
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        return (
            f"Retrieval: {', '.join(self.tasks)}, made from seed {self.seed}, the same examples for every method; "
            f"inputs of at most {lengths} tokens with the answer; needles at "
            f"depths {depths} of the filler ({fillers[self.haystack]}), {self.samples} examples for each, and "
            f"{self.samples * len(self.depths)} for each length of a task without a depth. {how} Intervals: "
            f"{CONFIDENCE:.0%}, Wilson; over several tasks, of all their examples together."
        )

    def to_json(self) -> dict[str, Any]:
        """The protocol as JSON holds it, with its sentence."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}
