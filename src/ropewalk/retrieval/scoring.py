"""Decide whether an answer is found, by its log-probability compared with those of other candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from ropewalk.errors import RopeError
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.retrieval.questions import QuestionSet


class Answer(NamedTuple):
    """Whether one answer was found, among how many choices.

    `found` by the calibrated log-probabilities, `raw` by those as they are. `depth` is the part of the text before the
    needle; `distance` the tokens from there to the end of the question.
    """

    found: bool
    raw: bool
    choices: int
    depth: float
    distance: int


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


def score(
    reader: Reader,
    asked: QuestionSet,
    *,
    crop: int | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> list[Answer]:
    """Return what the model answers after one text; with `crop` it reads only the text's last so many tokens."""
    asked = asked if crop is None else asked.cropped(crop)
    return answers_of(asked, candidate_log_probs(reader, asked, chunk=chunk, advance=advance))
