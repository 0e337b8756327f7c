"""The interface of an engine for `verify`, and our own decoder as such an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of

TOP = 20  # log-probabilities requested: the most that llama.cpp, vLLM and SGLang return by default
LEAST, MOST = -1e6, 1.0  # nats: vLLM writes -9999 for minus infinity; rounding and noise may lead above 0


@dataclass(frozen=True)
class NextTokens:
    """An engine's answer: log-probabilities of the next token in nats by token id, and the prompt's length.

    **Arguments:**
    - `top`: at least two tokens.
    - `prompt_tokens`: the number of tokens that the engine processed; None if it does not report that.

    **Raises:** `RopeError` for impossible ids and numbers. Every engine's answer passes this check.
    """

    top: Mapping[int, float]
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        for token, value in self.top.items():
            sound = isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST
            if not sound or not isinstance(token, int) or token < 0:
                raise RopeError(
                    "verify: the engine's answer is malformed.",
                    facts={"log-probability": value if isinstance(value, float) else type(value).__name__},
                    cure="Update the engine: it must return finite log-probabilities, by token ids or texts.",
                )


@runtime_checkable
class Engine(Protocol):
    """A program that runs a model: a server on the network, or a library in this process."""

    @property
    def name(self) -> str:
        """Return the name for reports, without keys and folders."""

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids of a text without special tokens, by the engine's own tokenizer, or None if it offers none.

        **Raises:** `RopeError` if the engine cannot be reached.
        """

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """Return the likeliest next tokens after these ids.

        **Raises:** `RopeError` if the engine cannot be reached or refuses; `NoAnswer` if it returns no
        log-probabilities; `TooLong` if the prompt does not fit its context.
        """


class TooLong(RopeError):
    """The prompt does not fit the engine's context."""


class NoAnswer(RopeError):
    """The engine returns no log-probabilities after this prompt, as llama.cpp does for half a character."""


class OurEngine:
    """A `Decoder` as an `Engine`, for examples and tests. It applies the positions of `model`."""

    name = "ropewalk"

    def __init__(self, model: Decoder) -> None:
        self.reader = reader_of(model)

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids by the model's tokenizer."""
        tokenizer = self.reader.tokenizer
        return None if tokenizer is None else tokenizer.encode(text)

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """Return the likeliest next tokens."""
        top = self.reader.prefix(input_ids, seq_len=len(input_ids)).top(TOP)
        return NextTokens(dict(top), len(input_ids))
