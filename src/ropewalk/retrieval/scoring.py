"""Is the answer found? By its log-probability against distractors, or by the words of a greedy completion."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.questions import QuestionSet


class Answer(NamedTuple):
    """Whether one answer was found, among how many choices.

    `found` by the calibrated log-probabilities, `raw` by those as they are; the same where a text has one question.
    `depth` and `distance` are `Wanted`'s: the part of the text before the needle, and tokens back from the question.
    """

    found: bool
    raw: bool
    choices: int
    depth: float | None
    distance: int | None


def candidate_log_probs(
    reader: Reader, asked: QuestionSet, *, chunk: int = CHUNK, advance: Advance | None = None
) -> list[list[float]]:
    """For each question the log-probability in nats of each of its candidates, the sum over its tokens.

    The text goes through a cache once, `chunk` tokens at a time, `advance` called with their number; every question is
    asked as if it alone had been read after it. Frequencies that depend on length are those of `asked.tokens`.
    """
    prefix = reader.prefix(asked.input_ids, seq_len=asked.tokens, chunk=chunk, advance=advance)
    return prefix.ask([(question.input_ids, question.continuations) for question in asked.questions])


def calibrated(asked: QuestionSet, log_probs: Sequence[Sequence[float]]) -> list[dict[int, float]]:
    """For each question, by candidate, its log-probability minus its mean over all questions that have it.

    So a number that the model likes after any question gains nothing by it. One question has nothing to compare with:
    there the log-probabilities stay as they are.
    """
    raw = [
        dict(zip(one.candidates, values, strict=True)) for one, values in zip(asked.questions, log_probs, strict=True)
    ]
    if len(raw) == 1:
        return raw
    of_candidate: dict[int, list[float]] = defaultdict(list)
    for values in raw:
        for candidate, value in values.items():
            of_candidate[candidate].append(value)
    means = {candidate: fmean(values) for candidate, values in of_candidate.items()}
    return [{candidate: value - means[candidate] for candidate, value in values.items()} for values in raw]


def answers_of(asked: QuestionSet, log_probs: Sequence[Sequence[float]]) -> list[Answer]:
    """Every answer that the questions look for: found or not. Raises `RopeError` for NaN."""
    answers = []
    for question, values, fair in zip(asked.questions, log_probs, calibrated(asked, log_probs), strict=True):
        raw = dict(zip(question.candidates, values, strict=True))
        for wanted in question.wanted:
            among = (wanted.answer, *wanted.others)
            found, found_raw = (choose([by[candidate] for candidate in among]) for by in (fair, raw))
            answers.append(Answer(found, found_raw, len(among), wanted.depth, wanted.distance))
    return answers


def choose(log_probs: list[float]) -> bool:
    """Whether the first, the answer's, is above all others; a tie is no find. Raises `RopeError` for NaN.

    >>> choose([-1.0, -2.0]), choose([-1.0, -1.0])
    (True, False)
    """
    if any(value != value for value in log_probs):
        raise RopeError(
            "retrieval: a log-probability is not a number.",
            facts={"log-probabilities": log_probs},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
    return log_probs[0] > max(log_probs[1:])


def names_all(completion: str, answers: tuple[str, ...]) -> bool:
    """Whether every answer stands in the completion as a whole word.

    >>> names_all(" 123, and 45.", ("45", "123")), names_all(" 1234", ("123",))
    (True, False)
    """
    return all(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", completion) for answer in answers)


def completes(reader: Reader, tokenizer: Tokenizer, example: Example) -> bool:
    """Whether the greedy completion, of as many tokens as the full answer has, names all of it."""
    length = example.tokens if reader.positions.needs_seq_len else None
    [new] = reader.generate([example.input_ids], max_new_tokens=example.new_tokens, seq_len=length)
    return names_all(tokenizer.decode(new), example.answers)


def score(
    reader: Reader,
    tokenizer: Tokenizer,
    made: Example | QuestionSet,
    *,
    scoring: str,
    crop: int | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> list[Answer]:
    """What the model answers after one text; `scoring` is one of `SCORINGS`.

    With `crop` it reads only the last so many tokens of the text with a question and its answer. Raises `RopeError`
    where a set of many questions is to be answered in words.
    """
    asked = QuestionSet.of(made) if isinstance(made, Example) else made
    if scoring == "choice":
        asked = asked if crop is None else asked.cropped(crop)
        return answers_of(asked, candidate_log_probs(reader, asked, chunk=chunk, advance=advance))
    if not isinstance(made, Example):
        raise RopeError(
            "retrieval: many questions after one text are answered by choice.",
            facts={"scoring": scoring},
            cure='Ask one question for each text: form="one", on the command line --retrieval-form one.',
        )
    [question] = asked.questions
    [wanted] = question.wanted
    correct = completes(reader, tokenizer, made if crop is None else made.cropped(crop))
    if advance is not None:
        advance(len(made.input_ids))
    return [Answer(correct, correct, 1 + len(wanted.others), wanted.depth, wanted.distance)]
