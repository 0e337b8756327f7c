"""Is the answer found? By its log-probability against distractors, or by the words of a greedy completion."""

from __future__ import annotations

import re

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.retrieval.example import Example


def choice_log_probs(
    reader: Reader, example: Example, *, chunk: int = CHUNK, advance: Advance | None = None
) -> list[float]:
    """The log-probability in nats of every choice after the input, the sum over its tokens; the answer's first.

    The input goes through a cache once, `chunk` tokens at a time, `advance` called with their number; logits exist for
    its last token and for the choices alone. Frequencies that depend on length are those of `example.tokens`.
    """
    prefix = reader.prefix(example.input_ids, seq_len=example.tokens, chunk=chunk, advance=advance)
    return prefix.log_probs(example.choices)


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


def is_correct(
    reader: Reader,
    tokenizer: Tokenizer,
    example: Example,
    *,
    scoring: str,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> bool:
    """Whether the model answers one example; `scoring` is one of `SCORINGS`."""
    if scoring == "choice":
        return choose(choice_log_probs(reader, example, chunk=chunk, advance=advance))
    correct = completes(reader, tokenizer, example)
    if advance is not None:
        advance(len(example.input_ids))
    return correct
