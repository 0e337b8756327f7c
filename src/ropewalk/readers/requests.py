"""What readers refuse alike, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.readers.reader import QuestionIds


def check_window(input_ids: Tensor, first: int, chunk: int) -> None:
    """Raise `RopeError` unless a window has two tokens and `first` is one of them after the first."""
    if input_ids.ndim != 1 or not 1 <= first < len(input_ids) or chunk < 1:
        raise RopeError(
            "window_losses: give [tokens] of at least two, and `first` among them.",
            facts={"input_ids": input_ids, "first": first, "chunk": chunk},
            cure="Pass the token ids of one window, and 1 <= first < tokens.",
        )


def check_pairs(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch: int, chunk: int) -> None:
    """Raise `RopeError` for an empty context or continuation, and for a batch or a chunk below 1."""
    if batch < 1 or chunk < 1:
        raise RopeError(
            "continuation_log_probs: `batch` and `chunk` are at least 1.",
            facts={"batch": batch, "chunk": chunk},
            cure="Give whole numbers of rows and tokens.",
        )
    for index, (context, continuation) in enumerate(pairs):
        if not len(context) or not len(continuation):
            raise RopeError(
                "continuation_log_probs: nothing comes before the first token, and an empty text has no probability.",
                facts={"pair": index, "context tokens": len(context), "continuation tokens": len(continuation)},
                cure="Begin with the tokenizer's bos where there is no context.",
            )


def check_read(input_ids: Sequence[int], tokens: int) -> None:
    """Raise `RopeError` where a prefix of so many tokens is to read none."""
    if not len(input_ids):
        raise RopeError(
            "prefix: there are no tokens to read.",
            facts={"input_ids": list(input_ids), "tokens so far": tokens},
            cure="Begin with the tokenizer's bos where there is no text.",
        )


def check_questions(questions: Sequence[QuestionIds]) -> None:
    """Raise `RopeError` for an empty continuation of a question."""
    for question, continuations in questions:
        if not all(len(continuation) for continuation in continuations):
            raise RopeError(
                "prefix: an empty continuation has no probability.",
                facts={"question": list(question), "tokens of each": list(map(len, continuations))},
                cure="Give at least one token each.",
            )
