"""How retrieval is measured: tasks, lengths, texts and scoring, validated once and named in every output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.retrieval.choices import FORMS, SAMPLES, SCORINGS
from ropewalk.retrieval.tasks import Task

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
THRESHOLD = 0.856
"""RULER's bar for an effective length: what Llama-2-7B reaches at 4,096 tokens (Hsieh et al. 2024, section 4)."""
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One task at one length and one depth: None where it has no one needle at a chosen depth.

    `examples` texts are drawn for it. `shortest` is the length that says how many candidates a question has, where many
    are asked after one text.
    """

    task: str
    length: int
    depth: float | None
    examples: int
    shortest: int | None = None


def draws(seed: int, cell: Cell, sample: int) -> Random:
    """The random numbers of one text."""
    return Random(f"{seed}:{cell.task}:{cell.length}:{cell.depth}:{sample}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalProtocol:
    """One protocol; lengths are in tokens with a question and its answer.

    `form` is "many" questions after one text, of which `samples` are made for each task and length, or "one": then as
    many for each of `depths`, from 0 (the beginning of the filler) to 1; tasks without a depth get as many in all.
    `chat`: the questions stand in the frame of the model's chat template. Raises `RopeError` for numbers out of range,
    and for settings that do not fit together.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...] = DEPTHS
    samples: int = SAMPLES
    seed: int = 0
    scoring: str = "choice"
    text: str
    haystack: str | None = None
    form: str = "many"
    chat: bool = False
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
        if self.form not in FORMS:
            raise RopeError(
                "retrieval: unknown form.", facts={"form": self.form}, cure=f"Choose from {', '.join(FORMS)}."
            )
        if self.form == "many" and self.scoring != "choice":
            raise RopeError(
                "retrieval: many questions after one text are answered by choice.",
                facts={"form": self.form, "scoring": self.scoring},
                cure='Ask one question for each text: form="one", on the command line --retrieval-form one.',
            )
        if self.chat and self.form != "many":
            raise RopeError(
                "retrieval: a chat frames many questions after one text.",
                facts={"form": self.form, "chat": self.chat},
                cure='Leave out the chat, or take form="many".',
            )

    def cells(self, tasks: tuple[Task, ...]) -> Iterator[Cell]:
        """Every cell, short inputs first."""
        for length in self.lengths:
            for task in tasks:
                for depth in self.depths if task.by_depth else (None,):
                    examples = self.samples * (1 if task.by_depth or task.many else len(self.depths))
                    shortest = self.lengths[0] if task.many else None
                    yield Cell(task=task.name, length=length, depth=depth, examples=examples, shortest=shortest)

    def draws(self, cell: Cell, sample: int) -> Random:
        """The random numbers of one text: the same in every run and for every method."""
        return draws(self.seed, cell, sample)

    def sentence(self) -> str:
        """The protocol in words."""
        fillers = {None: f"repeated noise or {self.text}", "noise": "repeated noise", "text": self.text}
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        made = f"Retrieval: {', '.join(self.tasks)}, made from seed {self.seed}, the same texts for every method"
        frame = ", in the frame of the model's chat template" if self.chat else ""
        intervals = (
            f"Intervals: {CONFIDENCE:.0%}. Answers after one text belong together: whole texts are resampled, and "
            "intervals are nowhere narrower than Wilson's with Student's t over texts; one text gives none. Where each "
            "text has one question they are Wilson's. They speak of such texts, made of this filler."
        )
        if self.form == "one":
            depths = ", ".join(f"{depth:g}" for depth in self.depths)
            how = (
                "An answer is found where it has a higher log-probability, summed over its tokens, than every "
                "distractor of its form, with as many tokens where they can be drawn; chance is 1 / choices."
                if self.scoring == "choice"
                else "An answer is found where the greedy completion, as long as the full answer, names all of it."
            )
            return (
                f"{made}; texts of at most {lengths} tokens with one question and its answer; needles at depths "
                f"{depths} of the filler ({fillers[self.haystack]}), {self.samples} texts for each, and "
                f"{self.samples * len(self.depths)} for each length of a task without a depth. {how} {intervals}"
            )
        return (
            f"{made}; {self.samples} texts of at most {lengths} tokens for each task and length (cwe and fwe: "
            f"{self.samples * len(self.depths)} lists of one question), needles spread evenly over the filler "
            f"({fillers[self.haystack]}). Each text is read once, and every question is asked after it as if it alone "
            f"were{frame}. An answer is found where its log-probability, less the mean that it has after all "
            "questions, is above that of every other candidate: the answers of other questions, or numbers that the "
            f"text does not hold. Raw: without the mean taken off. {intervals}"
        )

    def to_json(self) -> dict[str, Any]:
        """The protocol as JSON holds it, with its sentence."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}
