"""A search on what only a far token knows: examples with an answer, and what the factors found are worth on others."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.context.measure import CHUNK
from ropewalk.context.output import finite
from ropewalk.context.recommend import Interval, difference, signed
from ropewalk.context.retrieval.example import Example
from ropewalk.context.retrieval.protocol import DEPTHS, Cell, draws
from ropewalk.context.retrieval.scoring import choice_log_probs
from ropewalk.context.retrieval.tasks import make_tasks
from ropewalk.context.state import State, model_digest
from ropewalk.context.statistics import mean_and_interval
from ropewalk.errors import RopeError
from ropewalk.extend.held_out import SEARCHED, measure_points, points_of, weighed
from ropewalk.extend.search import Advance, Begin, Objective, SearchResult
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokenizer import TextTokenizer


def answer_examples(
    tokenizer: TextTokenizer, names: Sequence[str], text: str, *, length: int, count: int, seed: int
) -> list[Example]:
    """Examples of the retrieval tasks of these names, by turns, at depths by turns.

    **Arguments:**
    - `text`: where words and passages come from. `length`: tokens of an example with its answer, at most.
    - `count`: examples in all; `seed` draws them.

    **Raises:** `RopeError` for an unknown task, one that does not fit into `length`, or fewer examples than tasks.

    >>> from ropewalk.models.checkpoint import load
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
    found = []
    for number in range(count):
        task = tasks[number % len(tasks)]
        depth = DEPTHS[number // len(tasks) % len(DEPTHS)]
        cell = Cell(task=task.name, length=length, depth=depth, examples=count)
        found.append(task.make(tokenizer, length, depth, draws(seed, cell, number)))
    return found


def answer_losses(
    model: Decoder, examples: Sequence[Example], *, chunk: int = CHUNK, advance: Advance | None = None
) -> list[float]:
    """The loss of each example's answer, in nats per token of it, given all of its input."""
    return [
        -choice_log_probs(model, dataclasses.replace(one, distractor_ids=()), chunk=chunk, advance=advance)[0]
        / len(one.answer_ids)
        for one in examples
    ]


def answer_objective(examples: Sequence[Example], *, chunk: int = CHUNK, advance: Advance | None = None) -> Objective:
    """What a search costs by `answer_losses`; `chunk` and `advance` as for `window_losses`."""
    return lambda model: answer_losses(model, examples, chunk=chunk, advance=advance)


def digest(examples: Sequence[Example]) -> str:
    """A short hash of the examples' tokens."""
    rows = [(one.input_ids, one.answer_ids) for one in examples]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:20]


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
        found: dict[str, Any] = finite(
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
        return found


def held_out_answers(
    model: Decoder,
    result: SearchResult,
    examples: Sequence[Example],
    *,
    text: str,
    folder: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    begin: Begin | None = None,
    advance: Advance | None = None,
) -> HeldOutAnswers:
    """Measure a search's factors and every analytic start on examples that the search did not see.

    **Arguments:**
    - `text`: what the examples were made of. `folder`: where a file of this measurement's own keeps each result, so
      that a stopped one goes on with `resume`.
    - `begin` is told before each example its number, the name measured and None; `advance` the tokens done.

    **Raises:** `RopeError` where there is no example or a loss is not finite.
    """
    if not examples:
        raise RopeError("held_out_answers: there is no example.", cure="Make some with answer_examples.")
    points = points_of(result)
    said = (model_digest(model), list(points.values()), result.space.unscaled_tokens, digest(examples))
    key = hashlib.sha256(repr(said).encode()).hexdigest()[:20]
    state = State(None if folder is None else folder / f"{key}.json", key)

    def one(model: Decoder, example: Example) -> tuple[float, ...]:
        return tuple(answer_losses(model, [example], chunk=chunk, advance=advance))

    measure_points(model, result, examples, one, state, resume=resume, begin=begin)
    return HeldOutAnswers(
        text=text,
        chosen=result.best_start.factors.name,
        found_better=result.best.loss < result.best_start.loss,
        losses={
            name: tuple(state.results[name, index].block_sums[0] for index in range(len(examples))) for name in points
        },
    )
