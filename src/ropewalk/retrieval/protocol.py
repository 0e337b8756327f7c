"""How retrieval is measured: tasks, lengths and texts, validated once and named in every output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.retrieval.choices import SAMPLES

THRESHOLD = 0.856
"""RULER's bar for an effective length: what Llama-2-7B reaches at 4,096 tokens (Hsieh et al. 2024, section 4)."""
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One task at one length."""

    task: str
    length: int


def draws(seed: int, task: str, length: int, sample: int) -> Random:
    """Return the random numbers of one text: the same in every run and for every method."""
    return Random(f"{seed}:{task}:{length}:None:{sample}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalProtocol:
    """One protocol; lengths are in tokens with a question and its answer.

    - `samples`: number of texts for each task and length.
    - `chat`: whether the questions are in the frame of the model's chat template.

    Raises `RopeError` for numbers out of range.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    samples: int = SAMPLES
    seed: int = 0
    text: str
    haystack: str | None = None
    chat: bool = False
    trained_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "lengths"):
            values = getattr(self, name)
            object.__setattr__(self, name, tuple(values) if name == "tasks" else tuple(sorted(values)))
            if not values or len(set(values)) < len(values):
                raise RopeError(
                    f"retrieval: `{name}` must be given, each once.", facts={name: values}, cure="Name at least one."
                )
        if min(self.lengths) < 1 or self.samples < 1:
            raise RopeError(
                "retrieval: lengths and samples are at least 1.",
                facts={"lengths": self.lengths, "samples": self.samples},
                cure="Give lengths in tokens.",
            )

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, short inputs first."""
        for length in self.lengths:
            for task in self.tasks:
                yield Cell(task=task, length=length)

    def sentence(self) -> str:
        """Return the protocol in words."""
        fillers = {None: f"repeated noise or {self.text}", "noise": "repeated noise", "text": self.text}
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        frame = ", in the frame of the model's chat template" if self.chat else ""
        return (
            f"Retrieval: {', '.join(self.tasks)}, made from seed {self.seed}, the same texts for every method; "
            f"{self.samples} texts of at most {lengths} tokens for each task and length, needles spread evenly over "
            f"the filler ({fillers[self.haystack]}). Each text is read once, and every question is asked after it as "
            f"if it were the only one{frame}. An answer is found if its log-probability, less the mean that it has "
            "after all questions, is above that of every other candidate: the answers of other questions. Raw: "
            f"without the mean taken off. Intervals: {CONFIDENCE:.0%}. Answers after one text belong together: whole "
            "texts are resampled, and intervals are nowhere narrower than Wilson's with Student's t over texts; one "
            "text gives none. They speak of such texts, made of this filler."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as JSON holds it, with its sentence."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}
