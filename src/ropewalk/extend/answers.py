"""A search on what only a distant token can tell: examples with an answer, and its factors measured on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.extend.factor_search import Objective, SearchResult
from ropewalk.extend.held_out import SEARCHED, measure_points, points_of, weighed
from ropewalk.extend.jobs import open_ledger
from ropewalk.ledger import fingerprint
from ropewalk.models.tokens import Tokenizer
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.protocol import DEPTHS, Cell, draws
from ropewalk.retrieval.tasks import make_tasks
from ropewalk.statistics import Interval, difference, mean_and_interval, signed


def answer_examples(
    tokenizer: Tokenizer, names: Sequence[str], text: str, *, length: int, count: int, seed: int
) -> list[Example]:
    """Examples of the retrieval tasks of these names, which alternate, as the depths do.

    **Arguments:**
    - `text`: where words and passages come from. `length`: tokens of an example with its answer, at most.
    - `count`: examples in all; `seed` draws them.

    **Raises:** `RopeError` for an unknown task, one that does not fit into `length`, or fewer examples than tasks.

    >>> from ropewalk.checkpoints.load import load
    >>> made = answer_examples(load("tiny").tokenizer, ["passkey"], "a few words", length=200, count=2, seed=0)
    >>> [round(one.depth, 1) for one in made], max(one.tokens for one in made) <= 200
    ([0.0, 0.2], True)
    """
    tasks = make_tasks(names, text)
    if not 1 <= len(tasks) <= count:
        raise RopeError(
            "search: there are fewer examples than tasks, or no task.",
            facts={"tasks": list(names), "examples": count},
            cure="Pass --search-windows, at least one for each task.",
        )
    examples = []
    for number in range(count):
        task = tasks[number % len(tasks)]
        depth = DEPTHS[number // len(tasks) % len(DEPTHS)]
        cell = Cell(task=task.name, length=length, depth=depth, examples=count)
        examples.append(task.make(tokenizer, length, depth, draws(seed, cell, number)))
    return examples


def answer_losses(
    reader: Reader, examples: Sequence[Example], *, chunk: int = CHUNK, advance: Advance | None = None
) -> list[float]:
    """The loss of each example's answer, in nats per token of it, given all of its input.

    Frequencies that depend on the length are those of the input with its answer.
    """

    def one(example: Example) -> float:
        length = dataclasses.replace(example, distractor_ids=()).tokens
        prefix = reader.prefix(example.input_ids, seq_len=length, chunk=chunk, advance=advance)
        return -prefix.log_probs([example.answer_ids])[0] / len(example.answer_ids)

    return [one(example) for example in examples]


def answer_objective(examples: Sequence[Example], *, chunk: int = CHUNK, advance: Advance | None = None) -> Objective:
    """What a search costs by `answer_losses`; `chunk` and `advance` as for `window_losses`."""
    return lambda reader: answer_losses(reader, examples, chunk=chunk, advance=advance)


def digest(examples: Sequence[Example]) -> str:
    """A short hash of the examples' tokens."""
    return fingerprint([(one.input_ids, one.answer_ids) for one in examples])


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutAnswers:
    """The loss of each example's answer (nats per token of it), by name: "searched", then the analytic starts.

    `chosen` is the best start on the search's own examples; `text` names what these ones were made of.
    """

    text: str
    chosen: str
    found_better: bool
    losses: Mapping[str, tuple[float, ...]]

    @property
    def gain(self) -> tuple[float, Interval]:
        """The searched factors' loss minus the chosen start's, paired by example."""
        return difference(self.losses[SEARCHED], self.losses[self.chosen])

    def sentences(self) -> list[str]:
        """The answer in words; empty where the search returned an analytic start."""
        if not self.found_better:
            return []
        count = len(self.losses[SEARCHED])
        mean, interval = self.gain
        shown = weighed(mean, interval, self.chosen, unit="example", seen="examples")
        return [
            f"On {count} other example{'s' * (count > 1)} made of {self.text}, its factors change the loss of the "
            f"answers by {signed(mean, interval)} nats per token of them against {self.chosen}, the best analytic "
            f"method on the search's own examples. {shown}"
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it: by name the loss of each example's answer and their mean, and the gain."""
        mean, interval = self.gain
        document: dict[str, Any] = finite(
            {
                "text": self.text,
                "examples": len(self.losses[SEARCHED]),
                "chosen": self.chosen,
                "gain": mean,
                "gain_ci": interval,
                "rows": [
                    {"name": name, "loss": mean_and_interval(losses)[0], "losses": list(losses)}
                    for name, losses in self.losses.items()
                ],
                "sentences": self.sentences(),
            }
        )
        return document


def held_out_answers(
    reader: Reader,
    result: SearchResult,
    examples: Sequence[Example],
    *,
    text: str,
    folder: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> HeldOutAnswers:
    """Measure a search's factors and every analytic start on examples that the search did not see.

    **Arguments:**
    - `text`: what the examples were made of. `folder`, `resume`: keeps each result in a ledger of its own, so that a
      stopped measurement continues.

    **Raises:** `RopeError` where there is no example or a loss is not finite.
    """
    if not examples:
        raise RopeError("held_out_answers: there is no example.", cure="Make some with answer_examples.")
    shown = progress or SilentProgress()
    points = list(points_of(result).values())
    key = fingerprint(reader.digest(), points, result.space.reach.unscaled_tokens, digest(examples))

    def loss(reader: Reader, example: Example) -> tuple[float, ...]:
        return tuple(answer_losses(reader, [example], chunk=chunk, advance=shown.advance))

    ledger = open_ledger(folder, kind="held-out-answers", key=key, resume=resume)
    longest = max(example.tokens for example in examples)
    losses = measure_points(reader, result, examples, loss, ledger, what="answers", tokens=longest, progress=shown)
    return HeldOutAnswers(
        text=text,
        chosen=result.best_start.factors.name,
        found_better=result.found_better,
        losses={name: tuple(values[0] for values in rows) for name, rows in losses.items()},
    )
