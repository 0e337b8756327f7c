"""A search on what only a distant token can tell: texts with questions, and its point measured on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.extend.evaluation import Objective
from ropewalk.extend.held_out import SEARCHED, Contest, measure_points, points_of, weighed
from ropewalk.extend.jobs import open_ledger
from ropewalk.extend.point_search import SearchResult
from ropewalk.ledger import fingerprint
from ropewalk.measure.answers import draws
from ropewalk.measure.questions import QuestionSet, make_tasks
from ropewalk.measure.retrieval import answers_of, candidate_log_probs
from ropewalk.models.tokens import Tokenizer
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.statistics import Interval, difference, signed

FOUND = "the share of far answers found differs by"
LOSS = "the loss of these answers, which is what was searched on, differs by"


def answer_texts(
    tokenizer: Tokenizer, names: Sequence[str], text: str, *, length: int, count: int, seed: int, beyond: int = 0
) -> list[QuestionSet]:
    """Texts of the retrieval tasks of these names, which alternate, each with many questions where the task has them.

    **Arguments:**
    - `text`: where words and passages come from. `length`: tokens of a text with a question and its answer, at most.
    - `count`: texts in all; `seed` draws them. `beyond`: only answers whose needle lies more than so many tokens back
      are asked for.

    **Raises:** `RopeError` for an unknown task, one that does not fit into `length`, fewer texts than tasks, or a text
    without an answer that lies so far back.

    >>> from ropewalk.checkpoints.load import load
    >>> made = answer_texts(load("tiny").tokenizer, ["numbers"], "a few words", length=400, count=2, seed=0)
    >>> [len(one.questions) for one in made], max(one.tokens for one in made) <= 400
    ([4, 4], True)
    """
    tasks = make_tasks(names, text)
    if not 1 <= len(tasks) <= count:
        raise RopeError(
            "search: there are fewer texts than tasks, or no task.",
            facts={"tasks": list(names), "texts": count},
            cure="Pass --search-windows, at least one for each task.",
        )
    made = []
    for number in range(count):
        task = tasks[number % len(tasks)]
        asked = task.make(tokenizer, length, draws(seed, task.name, length, number)).beyond(beyond)
        if not asked.questions:
            raise RopeError(
                f"search: no answer of `{task.name}` lies beyond the trained length.",
                facts={"trained_length": beyond, "target": length},
                cure="Ask for a longer --target, or for --answers numbers.",
            )
        made.append(asked)
    return made


def answer_losses(
    reader: Reader, texts: Sequence[QuestionSet], *, chunk: int = CHUNK, advance: Advance | None = None
) -> list[float]:
    """The mean loss of each text's answers, in nats per token of an answer, each given the text and its question.

    Frequencies that depend on the length are those of `QuestionSet.tokens`.
    """

    def one(text: QuestionSet) -> float:
        prefix = reader.prefix(text.input_ids, seq_len=text.tokens, chunk=chunk, advance=advance)
        asked = [(question.input_ids, question.answers) for question in text.questions]
        return fmean(
            -log_prob / len(answer)
            for (_, answers), log_probs in zip(asked, prefix.ask(asked), strict=True)
            for answer, log_prob in zip(answers, log_probs, strict=True)
        )

    return [one(text) for text in texts]


def answer_objective(texts: Sequence[QuestionSet], *, chunk: int = CHUNK, advance: Advance | None = None) -> Objective:
    """What a search costs by `answer_losses`; `chunk` and `advance` as for `window_losses`."""
    return Objective(
        name=f"answers {digest(texts)}",
        items=len(texts),
        cost=lambda reader, item: answer_losses(reader, [texts[item]], chunk=chunk, advance=advance)[0],
        tokens=max(one.tokens for one in texts),
    )


def digest(texts: Sequence[QuestionSet]) -> str:
    """A short hash of the texts' tokens, their questions and answers."""
    return fingerprint([(one.input_ids, [(q.input_ids, q.answers) for q in one.questions]) for one in texts])


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutAnswers:
    """The mean loss of each text's answers (nats per token of them) and the share of them found among their candidates,
    by name: "searched", then the analytic starts; `keeping` are those that keep the search's limit within the trained
    length.

    `chosen` is the best start on the search's own texts; `text` names what these ones were made of. Answers after the
    same text belong together, so that intervals are over texts.
    """

    text: str
    chosen: str
    found_better: bool
    keeping: tuple[str, ...]
    losses: Mapping[str, tuple[float, ...]]
    found: Mapping[str, tuple[float, ...]]

    @property
    def gain(self) -> tuple[float, Interval]:
        """The searched point's loss minus the chosen start's, paired by text."""
        return difference(self.losses[SEARCHED], self.losses[self.chosen])

    @property
    def standing(self) -> Contest:
        """The share of answers found, against the best method on these very texts."""
        return Contest.of(self.found, self.keeping, found_better=self.found_better, what=FOUND, higher=True)

    @property
    def standing_by_loss(self) -> Contest:
        """The loss of the answers, against the best method on these very texts."""
        return Contest.of(self.losses, self.keeping, found_better=self.found_better, what=LOSS)

    def sentences(self) -> list[str]:
        """The answer in words."""
        if not self.found_better:
            return [self.standing.best_method(f"by the share of far answers found in texts made of {self.text}")]
        count = len(self.losses[SEARCHED])
        mean, interval = self.gain
        shown = weighed(mean, interval, self.chosen, unit="text", seen="texts")
        return [
            self.standing.sentence,
            self.standing_by_loss.sentence,
            f"On the answers in {count} other text{'s' * (count > 1)} made of {self.text}, its point changes the loss "
            f"by {signed(mean, interval)} nats per token of them against {self.chosen}, the best analytic method on "
            f"the search's own texts. {shown}",
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it: by name the loss of each text's answers and their mean, and the gain."""
        mean, interval = self.gain
        document: dict[str, Any] = finite(
            {
                "text": self.text,
                "texts": len(self.losses[SEARCHED]),
                "chosen": self.chosen,
                "keeping": list(self.keeping),
                "standing": self.standing.to_json(),
                "standing_by_loss": self.standing_by_loss.to_json(),
                "gain": mean,
                "gain_ci": interval,
                "rows": [
                    {
                        "name": name,
                        "loss": fmean(losses),
                        "losses": list(losses),
                        "found": fmean(self.found[name]),
                        "found_by_text": list(self.found[name]),
                    }
                    for name, losses in self.losses.items()
                ],
                "sentences": self.sentences(),
            }
        )
        return document


def held_out_answers(
    reader: Reader,
    result: SearchResult,
    texts: Sequence[QuestionSet],
    *,
    text: str,
    folder: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> HeldOutAnswers:
    """Measure a search's point and every analytic start on texts that the search did not see.

    **Arguments:**
    - `text`: what the texts were made of. `folder`, `resume`: keeps each result in a ledger of its own, so that a
      stopped measurement continues.

    **Raises:** `RopeError` where there is no text or a loss is not finite.
    """
    if not texts:
        raise RopeError("held_out_answers: there is no text.", cure="Make some with answer_texts.")
    shown = progress or SilentProgress()
    points = points_of(result)
    key = fingerprint(reader.digest(), list(points.values()), result.space.reach.unscaled_tokens, digest(texts))

    def read(reader: Reader, one: QuestionSet) -> tuple[float, ...]:
        return answers_read(reader, one, chunk=chunk, advance=shown.advance)

    ledger = open_ledger(folder, kind="held-out-answers", key=key, resume=resume)
    longest = max(one.tokens for one in texts)
    rows = measure_points(reader, result, points, texts, read, ledger, what="answers", tokens=longest, progress=shown)
    return HeldOutAnswers(
        text=text,
        chosen=result.best_start.point.name,
        found_better=result.found_better,
        keeping=result.keeping,
        losses={name: tuple(values[0] for values in each) for name, each in rows.items()},
        found={name: tuple(values[1] for values in each) for name, each in rows.items()},
    )


def answers_read(
    reader: Reader, asked: QuestionSet, *, chunk: int = CHUNK, advance: Advance | None = None
) -> tuple[float, float]:
    """The mean loss of a text's answers as `answer_losses` has it, and the share that is found among its candidates."""
    log_probs = candidate_log_probs(reader, asked, chunk=chunk, advance=advance)
    losses = [
        -values[question.candidates.index(wanted.answer)]
        / len(question.continuations[question.candidates.index(wanted.answer)])
        for question, values in zip(asked.questions, log_probs, strict=True)
        for wanted in question.wanted
    ]
    return fmean(losses), fmean(answer.found for answer in answers_of(asked, log_probs))
