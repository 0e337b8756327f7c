"""The interface of an engine for `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ropewalk.errors import RopeError

TOP = 20  # log-probabilities requested: the most that llama.cpp, vLLM and SGLang return by default
WAIT = 3.0  # seconds for which a server that is still loading is asked again
LEAST, MOST = -1e6, 1.0  # nats: vLLM writes -9999 for minus infinity; rounding and noise may lead above 0


@dataclass(frozen=True)
class NextTokens:
    """An engine's answer: log-probabilities of the next token in nats by token id, and the prompt's length.

    **Arguments:**
    - `top`: log-probabilities of at least two tokens.
    - `prompt_tokens`: the number of processed tokens; None if the engine does not report it.
    - `by_text`: whether the engine returned texts; tokens with a shared text are then missing.
    - `token`: the token that the engine generated; None if unknown.

    **Raises:** `RopeError` for impossible ids and numbers. Every engine's answer passes this check.
    """

    top: Mapping[int, float]
    prompt_tokens: int | None = None
    by_text: bool = False
    token: int | None = None

    def __post_init__(self) -> None:
        for token, value in self.top.items():
            sound = isinstance(value, int | float) and not isinstance(value, bool) and LEAST <= value <= MOST
            if not sound or not isinstance(token, int) or token < 0:
                raise EngineError(
                    "verify: the engine's answer is malformed.",
                    facts={"log-probability": value if isinstance(value, float) else type(value).__name__},
                    cure="Use a version of the engine that returns finite log-probabilities by token ids or texts.",
                )


@runtime_checkable
class Engine(Protocol):
    """A program that runs a model: a server on the network, or a library in this process."""

    @property
    def name(self) -> str:
        """Return the name for reports, without keys or folders."""

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids of a text without special tokens, from the engine's own tokenizer; None if it has none.

        **Raises:** `RopeError` if the engine cannot be reached.
        """

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return the answers from which `tokens` tokens were generated, always the likeliest; fewer if it stops.

        **Raises:** `RopeError` if the engine cannot be reached or returns an error; `NoAnswer` if it returns no
        log-probabilities; `TooLong` if the prompt does not fit its context.
        """


class TokenTexts(Protocol):
    """The texts of tokens, for engines that return text: those of a `TextTokenizer` or of a golden file."""

    @property
    def by_text(self) -> Mapping[str, int]:
        """Return the ids of tokens by text, without texts that several tokens share."""


class EngineError(RopeError):
    """An engine refuses a request, or its answer cannot be used."""

    exit_status = 5


class Unreachable(EngineError):
    """A server cannot be reached."""

    exit_status = 4


class Loading(EngineError):
    """A server is still loading, or too busy to answer."""

    exit_status = 6


class TooLong(EngineError):
    """The prompt does not fit the engine's context."""


class NoAnswer(EngineError):
    """The engine returns no log-probabilities after this prompt, as llama.cpp does for half a character."""
