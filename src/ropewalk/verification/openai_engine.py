"""Any server with OpenAI's `/v1/completions` and `logprobs`: llama.cpp, vLLM, SGLang, and others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need
from ropewalk.verification.engine import TOP, Engine, NextTokens, NoAnswer, TooLong

KEY = "OPENAI_API_KEY"
RETRIES = 3  # of a connection that fails, and of the statuses below: a server that is still loading answers 503
RETRIED = (429, 502, 503, 504)
_TOKEN_ID = "token_id:"  # how vLLM writes a token when it is asked for ids


class OpenAIEngine(AbstractContextManager[Engine]):
    """A server's completions endpoint; see `ropewalk.verification.engine.Engine`.

    - `url`: of the server, with or without "/v1"; user and password are refused. `model`: its name there; None takes
      the first of `/v1/models`.
    - `tokenizer`: reads the tokens of servers that answer with text. `timeout`: seconds for one answer. `name`: what
      reports call it; None: its address.

    A key is read from the environment variable OPENAI_API_KEY, is sent as a bearer token, and appears in no message and
    no record. Raises `RopeError` for an address that is none.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        *,
        model: str | None = None,
        timeout: float = 120.0,
        name: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise RopeError(
                "verify: this is no address of a server.",
                facts={"scheme": parts.scheme, "host": parts.hostname},
                cure=f"Pass one such as http://localhost:8000; a key belongs in the variable {KEY}.",
            )
        path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        self.root = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        self.tokenizer, self._model, self._name = tokenizer, model, name
        urllib3 = need("urllib3", extra="verify")
        self._errors = urllib3.exceptions
        retry = urllib3.Retry(
            total=RETRIES, backoff_factor=0.2, status_forcelist=RETRIED, allowed_methods=None, raise_on_status=False
        )
        self._pool = urllib3.PoolManager(retries=retry, timeout=urllib3.Timeout(connect=10.0, read=timeout))
        self._top, self._wants_ids = TOP, True

    @property
    def name(self) -> str:
        """The server's address, unless it was given a name."""
        return self._name or self.root

    @cached_property
    def model(self) -> str:
        """The model's name on the server."""
        if self._model is not None:
            return self._model
        status, content = self._send("GET", "/v1/models")
        listed = content.get("data") if status == 200 and isinstance(content, Mapping) else None
        names = [entry["id"] for entry in listed or [] if isinstance(entry, Mapping) and "id" in entry]
        if not names:
            raise self._refused(status, content, "verify: the server lists no model.")
        return str(names[0])

    def token_ids(self, text: str) -> list[int] | None:
        """The ids by the server's `/tokenize` (llama.cpp, vLLM); None where it has none."""
        body = {"model": self.model, "prompt": text, "content": text, "add_special": False, "add_special_tokens": False}
        status, content = self._send("POST", "/tokenize", body)
        tokens = content.get("tokens") if status == 200 and isinstance(content, Mapping) else None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return None
        return tokens

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """The likeliest next tokens after these ids, asked as ids: the server's tokenizer has no part in it."""
        body = {
            "model": self.model,
            "prompt": list(input_ids),
            "max_tokens": 1,
            "temperature": 1.0,  # engines that scale log-probabilities by it leave them as they are
            "logprobs": self._top,
        }
        if self._wants_ids:
            body["return_tokens_as_token_ids"] = True  # vLLM's
        status, content = self._send("POST", "/v1/completions", body)
        if status in (400, 422):
            message = json.dumps(content)
            if self._wants_ids and "return_tokens_as_token_ids" in message:
                self._wants_ids = False
                return self.ask(input_ids)
            if "logprobs" in message and self._top > 5:
                self._top = 5
                return self.ask(input_ids)
            if any(word in message for word in ("context size", "context length", "maximum context", "exceed")):
                raise TooLong(
                    "verify: the prompt does not fit the engine's context.",
                    facts={"server": self.root, "tokens": len(input_ids)},
                    cure="Start the server with a longer context, or pass a smaller --max-tokens.",
                )
        if status != 200:
            raise self._refused(status, content, "verify: the server refuses the question.")
        return self._answer(content)

    def _answer(self, content: Any) -> NextTokens:
        """The log-probabilities of a completion, in the form of OpenAI's completions or of its chat."""
        choices = content.get("choices") if isinstance(content, Mapping) else None
        given = choices[0].get("logprobs") if choices else None
        found: list[tuple[int | None, float]] = []
        if isinstance(given, Mapping) and given.get("content"):
            listed = given["content"][0].get("top_logprobs") or []
            found = [(self._id(entry.get("token"), entry.get("id")), entry["logprob"]) for entry in listed]
        elif isinstance(given, Mapping) and given.get("top_logprobs"):
            listed = given["top_logprobs"][0] or {}
            found = [(self._id(token, None), value) for token, value in listed.items()]
        top = {token: float(value) for token, value in found if token is not None and value is not None}
        if len(top) < 2:
            raise NoAnswer(
                "verify: the server gives no log-probabilities of the likeliest tokens.",
                facts={"server": self.root, "choice": choices[0] if choices else content},
                cure="Use an engine whose /v1/completions answers `logprobs` (llama.cpp, vLLM, SGLang).",
            )
        usage = content.get("usage") or {}
        count = usage.get("prompt_tokens")
        return NextTokens(top, count if isinstance(count, int) else None)

    def _id(self, token: object, given: object) -> int | None:
        """The id of a token in an answer; None where its text does not say which one it is."""
        if isinstance(given, int):
            return given
        if not isinstance(token, str):
            return None
        if token.startswith(_TOKEN_ID):
            return int(token.removeprefix(_TOKEN_ID))
        return self._by_text.get(token)

    @cached_property
    def _by_text(self) -> dict[str, int]:
        """The id of each text that belongs to one token alone."""
        found: dict[str, int] = {}
        twice = set()
        for token in range(self.tokenizer.vocab_size):
            text = self.tokenizer.decode([token])
            if text in found or "\ufffd" in text:
                twice.add(text)
            found[text] = token
        return {text: token for text, token in found.items() if text not in twice}

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """The status and the content of one answer: JSON, or text where it is none."""
        headers = {"Accept": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        try:
            if body is None:
                response = self._pool.request(method, self.root + path, headers=headers)
            else:
                response = self._pool.request(method, self.root + path, headers=headers, json=dict(body))
        except self._errors.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            raise RopeError(
                "verify: the server cannot be reached.",
                facts={"server": self.root, "error": type(cause).__name__},
                cure="Check that it runs at this address, and that it answers within two minutes.",
            ) from None
        text = response.data.decode("utf-8", errors="replace")
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def _refused(self, status: int, content: Any, rule: str) -> RopeError:
        """The error of a status, with the server's own words; no word of the key."""
        words = content if isinstance(content, str) else json.dumps(content)
        if key := os.environ.get(KEY):
            words = words.replace(key, "***")
        cures = {
            401: f"Set {KEY} to a key of this server.",
            403: f"Set {KEY} to a key that may use this model.",
            404: "Pass the model's name on this server as --served-name; its /v1/models lists them.",
        }
        facts = {"server": self.root, "model": self._model, "status": status, "answer": words[:300]}
        return RopeError(rule, facts=facts, cure=cures.get(status, "Its own log says why."))

    def __enter__(self) -> OpenAIEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.clear()
