"""`Engine`: what verifying needs of something that serves a model, and the one place that opens it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer

TOP = 20  # log-probabilities asked for: what llama.cpp, vLLM and SGLang give unless told otherwise


@dataclass(frozen=True)
class NextTokens:
    """What an engine says of the next token: log-probabilities in nats by token id, and how many tokens it has read.

    `prompt_tokens` is None where it does not say.
    """

    top: Mapping[int, float]
    prompt_tokens: int | None = None


@runtime_checkable
class Engine(Protocol):
    """Something that serves a model: a server on the network, or a library in this process."""

    @property
    def name(self) -> str:
        """What reports call it: no keys, no folders."""

    def token_ids(self, text: str) -> list[int] | None:
        """The ids of a text without special tokens, by the engine's own tokenizer; None where it has no words for it.

        Raises `RopeError` where the engine cannot be reached.
        """

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """The likeliest next tokens after these ids.

        Raises `RopeError` where the engine cannot be reached or refuses; `NoAnswer` where there are no log-
        probabilities, and `TooLong` where the prompt does not fit its context.
        """


class TooLong(RopeError):
    """The prompt does not fit the engine's context."""


class NoAnswer(RopeError):
    """No log-probabilities after this prompt: llama.cpp keeps them with a token that is half a character."""


def open_engine(
    engine: object, model: str | Path, tokenizer: Tokenizer, *, served_name: str | None = None
) -> AbstractContextManager[Engine]:
    """An engine for the time of a `with` block.

    - `engine`: a URL ("http://localhost:8000", with or without "/v1"), "transformers", "llama.cpp", a live transformers
      model, or an `Engine`.
    - `model`: the checkpoint that "transformers" and "llama.cpp" open. `served_name`: the model's name on the server;
      None takes the first that it lists.

    Raises `RopeError` for anything else, and where it cannot be opened.
    """
    from ropewalk.verification.llama_cpp import llama_cpp_server
    from ropewalk.verification.openai_engine import OpenAIEngine
    from ropewalk.verification.transformers_engine import TransformersEngine, is_transformers_model

    if isinstance(engine, str) and engine.startswith(("http://", "https://")):
        return OpenAIEngine(engine, tokenizer, model=served_name)
    if engine == "transformers":
        return TransformersEngine.load(model)
    if engine == "llama.cpp":
        return llama_cpp_server(model, tokenizer)
    if is_transformers_model(engine):
        return TransformersEngine(engine)
    if isinstance(engine, Engine):
        return _Open(engine)
    raise RopeError(
        "verify: unknown engine.",
        facts={"engine": engine},
        cure='Pass the URL of a server ("http://localhost:8000"), "transformers" or "llama.cpp".',
    )


class _Open(AbstractContextManager[Engine]):
    """An engine that the caller opens and closes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> Engine:
        return self.engine

    def __exit__(self, *error: object) -> None:
        return None
