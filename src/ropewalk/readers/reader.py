"""`Reader`: the interface to measure, question and extend any library's model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.layers.prompts import Tokenizer
from ropewalk.methods import ConfigForm
from ropewalk.rope.of_layers import Positions

CHUNK = 2048  # tokens of one forward: enough for large products, few enough for caches and memory
ASK_TOKENS = 256  # tokens of questions in one forward: enough to fill the matrices, few enough for their own mask
Losses = npt.NDArray[np.float64]
Advance = Callable[[int], None]
"""Called with the number of processed tokens."""
Asking = Mapping[int, Callable[["Prefix"], None]]
"""Functions by number of tokens; each is called with the prefix of that many tokens."""
QuestionIds = tuple[Sequence[int], Sequence[Sequence[int]]]
"""Token ids to append to a prefix (may be empty), and the continuations to score after them."""


@runtime_checkable
class Prefix(Protocol):
    """Tokens in a model's cache, after which continuations are scored."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens in the prefix."""

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability in nats of each continuation after the prefix, summed over its tokens.

        Continuations are token ids, at least one each. The prefix does not change.
        """

    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """Return the log-probability in nats of each continuation of each question.

        Each question is independent of the others and comes directly after the prefix, which does not change. Raises
        `RopeError` for an empty continuation.
        """

    def top(self, count: int) -> list[tuple[int, float]]:
        """Return the `count` likeliest next tokens and their log-probabilities in nats, the likeliest first."""

    def fork(self) -> Prefix:
        """Return an independent copy."""

    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        """Append tokens, at least one."""


@runtime_checkable
class Reader(Protocol):
    """One model to measure. Two adapters implement it: for our `Decoder`, and for live transformers models.

    No method changes the original model. Token ids are int64 and one-dimensional unless stated otherwise;
    losses and log-probabilities are in nats.
    """

    @property
    def name(self) -> str:
        """Return the model's name in reports, without folders."""

    @property
    def library(self) -> str:
        """Return "ropewalk", or a different library with its version and the model's class."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, or None."""

    @property
    def positions(self) -> Positions:
        """Return the rope, window and extension of each layer."""

    @property
    def config_form(self) -> ConfigForm:
        """Return the places of the layers' ropes in the model's config.json."""

    @property
    def trained_length(self) -> int | None:
        """Return the trained length in tokens, with the model's own scaling, or None if unknown."""

    @property
    def device(self) -> torch.device:
        """Return the device of the embeddings."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights."""

    @property
    def parameters(self) -> int:
        """Return the number of parameters."""

    def digest(self) -> str:
        """Return a short hash of the config and every bit of every weight."""

    def under(self, positions: Positions) -> Reader:
        """Return the same model with shared weights and these positions in its layers.

        `method.positions(reader.positions, reach)` returns them for a method. Raises `RopeError` if the model
        does not support them.
        """

    def cache_bytes(self, tokens: int) -> int:
        """Return the approximate size of a cache of `tokens` tokens, in bytes."""

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
        asking: Asking | None = None,
        until: Callable[[Losses], bool] | None = None,
    ) -> Losses:
        """Return the losses of one window from token `first` on, each given all tokens before it.

        **Arguments:**
        - `input_ids`: int64 `[tokens]`, at positions 0, 1, ...
        - `first`: the first token to score, at least 1 (token 0 has no context).
        - `seq_len`: tokens, for frequencies that depend on the length; defaults to the number of tokens.
        - `chunk`: tokens of one forward; `advance` is called with their number after each.
        - `asking`: functions by a number of tokens. Each is called after that many tokens are processed, with a prefix
          that can answer questions, but not be extended. Losses are those without it, up to rounding.
        - `until`: called after each chunk with the losses so far; if it returns True, the rest is not read.

        **Returns:** nats, float64 `[tokens - first]`; entry i belongs to token `first + i`.
        **Raises:** `RopeError` if fewer than two tokens are given or `first` is out of range.
        """

    def prefix(
        self,
        input_ids: Sequence[int],
        *,
        seq_len: int,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Prefix:
        """Read at least one token into a cache for `seq_len` tokens, at the frequencies of that length."""

    def top_after(
        self, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int = CHUNK
    ) -> list[list[tuple[int, float]]]:
        """Return the `count` likeliest tokens after the first n, for each n of the ascending `lengths`, in one pass.

        Each has its log-probability in nats, the likeliest first, at the frequencies of `seq_len` tokens.
        """


def chunk_ends(tokens: int, chunk: int, stops: Iterable[int] = ()) -> list[int]:
    """Return the end of each forward of a window: every `chunk` tokens, and at the stops inside it.

    >>> chunk_ends(10, 4, [5])
    [4, 5, 8, 10]
    """
    return sorted({*range(chunk, tokens, chunk), *(stop for stop in stops if 0 < stop < tokens), tokens})


def check_window(input_ids: Tensor, first: int, chunk: int) -> None:
    """Raise `RopeError` unless a window has two tokens and `first` is one of them, but not token 0."""
    if input_ids.ndim != 1 or not 1 <= first < len(input_ids) or chunk < 1:
        raise RopeError(
            "window_losses: `input_ids` must be [tokens] with at least two, and `first` one of them but not 0.",
            facts={"input_ids": input_ids, "first": first, "chunk": chunk},
            cure="Pass the token ids of one window, and 1 <= first < tokens.",
        )


def check_read(input_ids: Sequence[int], tokens: int) -> None:
    """Raise `RopeError` if there are no tokens to append to a prefix of `tokens` tokens."""
    if not len(input_ids):
        raise RopeError(
            "prefix: there are no tokens to append.",
            facts={"input_ids": list(input_ids), "tokens so far": tokens},
            cure="Pass the tokenizer's bos if there is no text.",
        )


def check_questions(questions: Sequence[QuestionIds]) -> None:
    """Raise `RopeError` for an empty continuation of a question."""
    for question, continuations in questions:
        if not all(len(continuation) for continuation in continuations):
            raise RopeError(
                "prefix: an empty continuation has no probability.",
                facts={"question": list(question), "tokens of each": list(map(len, continuations))},
                cure="Pass at least one token for each continuation.",
            )
