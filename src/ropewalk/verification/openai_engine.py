"""A server with OpenAI's `/v1/completions` and `logprobs` as an engine: llama.cpp, vLLM, SGLang, and others."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ropewalk.errors import RopeError
from ropewalk.layers.tokenizer import TextTokenizer
from ropewalk.verification.engine import TOP, NextTokens, NoAnswer, TokenizerTexts, TokenTexts, TooLong
from ropewalk.version import __version__

KEY = "OPENAI_API_KEY"
SECONDS = 120.0  # for one request, including its retries and the pauses between them
CONNECTING = 10.0  # seconds for one attempt to connect
LARGEST = 4 * 2**20  # bytes of one answer: 20 log-probabilities take 4 kB, the list of a hub's models 1 MB
RETRIES, PAUSE = 3, 0.2  # after a failed connection or one of these statuses; seconds, doubled each time
RETRIED = (429, 502, 503, 504)  # a server that is still loading answers 503
_TOKEN_ID = "token_id:"  # vLLM's prefix of a token that it returns as an id


@dataclass(frozen=True)
class HttpAnswer:
    """One HTTP answer: its status, its text, and the requested seconds before a retry."""

    status: int
    text: str
    retry_after: float = 0.0

    @cached_property
    def content(self) -> Any:
        """Return the decoded JSON, or None if the text is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class OpenAIEngine:
    """The completions endpoint of a server; see `ropewalk.verification.engine.Engine`.

    **Arguments:**
    - `url`: the server's address, with or without "/v1", without user and password.
    - `token_texts`: the texts of the model's tokens, or its tokenizer, for servers that return only text.
    - `model`: its name on the server. Defaults to the first of `/v1/models`.
    - `timeout`: seconds for one request, including its retries.
    - `name`: the name for reports. Defaults to the address.
    - `key`: a bearer token, never part of a message or a record. Defaults to the variable OPENAI_API_KEY.

    **Raises:** `RopeError` for an invalid address or key.
    """

    def __init__(
        self,
        url: str,
        token_texts: TokenTexts | TextTokenizer,
        *,
        model: str | None = None,
        timeout: float = SECONDS,
        name: str | None = None,
        key: str | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        except ValueError:  # an open bracket, a port beyond 65,535
            scheme, self._host = "", None
        if scheme not in ("http", "https") or not self._host or parts.username or parts.password:
            raise RopeError(
                "verify: invalid address of a server.",
                facts={"scheme": scheme, "host": self._host},
                cure=f"Pass one such as http://localhost:8000. Put a key into the variable {KEY}.",
            )
        path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        self.root = urlunsplit((scheme, parts.netloc, path, "", ""))
        self._path = quote(path, safe="/%~:@!$&'()*+,;=")
        self._connection = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self.token_texts = TokenizerTexts(token_texts) if isinstance(token_texts, TextTokenizer) else token_texts
        self._model, self._name, self._timeout = model, name, timeout
        self._key = (os.environ.get(KEY, "") if key is None else key).strip()
        if not all("!" <= character <= "~" for character in self._key):
            raise RopeError(
                f"verify: {KEY} contains a space or a character outside ASCII.",
                facts={"characters": len(self._key)},
                cure="Set it to the key only.",
            )
        self._top, self._wants_ids, self._takes_top_k = TOP, True, True
        self._by_text = False

    @property
    def name(self) -> str:
        """Return the given name, else the server's address."""
        return self._name or self.root

    @cached_property
    def model(self) -> str:
        """Return the model's name on the server."""
        if self._model is not None:
            return self._model
        answer = self._send("GET", "/v1/models")
        match answer.content:
            case {"data": [{"id": str() as name}, *_]} if answer.status == 200:
                return name
        raise self._refusal(answer, "verify: the server lists no model.")

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids from the server's `/tokenize` (llama.cpp, vLLM); None if it has none."""
        body = {"model": self.model, "prompt": text, "content": text, "add_special": False, "add_special_tokens": False}
        answer = self._send("POST", "/tokenize", body)
        match answer.content:
            case {"tokens": [*tokens]} if answer.status == 200 and all(type(token) is int for token in tokens):
                return tokens
        return None

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """Return the likeliest next tokens after these ids."""
        content = self._completion(input_ids, 1)
        _, top = self._generated(content)[0]
        match content:
            case {"usage": {"prompt_tokens": count}} if type(count) is int:
                return NextTokens(top, count, self._by_text)
        return NextTokens(top, by_text=self._by_text)

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return generated tokens, always the likeliest, and the likeliest tokens at each place."""
        steps = []
        for token, top in self._generated(self._completion(input_ids, tokens)):
            likeliest = max(top, key=lambda one: top[one]) if token is None else token
            steps.append(NextTokens(top, by_text=self._by_text, token=likeliest))
        return steps

    def _completion(self, input_ids: Sequence[int], tokens: int) -> Any:
        """Return the server's answer; omit fields it refuses."""
        body = {
            "model": self.model,
            "prompt": list(input_ids),
            "max_tokens": tokens,
            "temperature": 1.0,  # some engines divide log-probabilities by it
            "logprobs": self._top,
        }
        if self._wants_ids:
            body["return_tokens_as_token_ids"] = True  # vLLM's
        if tokens > 1:
            body |= {"top_k": 1} if self._takes_top_k else {"temperature": 0.0}
        answer = self._send("POST", "/v1/completions", body)
        if answer.status in (400, 422):
            if self._wants_ids and "return_tokens_as_token_ids" in answer.text:
                self._wants_ids = False
                return self._completion(input_ids, tokens)
            if tokens > 1 and self._takes_top_k and "top_k" in answer.text:
                self._takes_top_k = False
                return self._completion(input_ids, tokens)
            if "logprobs" in answer.text and self._top > 5:
                self._top = 5
                return self._completion(input_ids, tokens)
            if any(word in answer.text for word in ("context size", "context length", "maximum context", "exceed")):
                raise TooLong(
                    "verify: the prompt does not fit the engine's context.",
                    facts={"server": self.root, "tokens": len(input_ids)},
                    cure="Start the server with a longer context, or pass a smaller --max-tokens.",
                )
        if answer.status != 200:
            raise self._refusal(answer, "verify: the server refuses the request.")
        content = answer.content
        if not self._generated(content):
            raise NoAnswer(
                "verify: the server returns no log-probabilities of the likeliest tokens.",
                facts={"server": self.root, "answer": self._shown(answer.text)},
                cure="Use an engine with `logprobs` in /v1/completions (llama.cpp, vLLM, SGLang).",
            )
        return content

    def _generated(self, content: Any) -> list[tuple[int | None, dict[int, float]]]:
        """Return each generated token and the checked numbers at its place, in the form of completions or of chat.

        It ends at the first place with fewer than two numbers.
        """
        generated: list[tuple[int | None, list[tuple[int | None, Any]]]] = []
        match content:
            case {"choices": [{"logprobs": {"content": [*rows]}}, *_]}:
                for row in rows:
                    fields = row if isinstance(row, Mapping) else {}
                    likely = fields.get("top_logprobs")
                    each = (
                        [one if isinstance(one, Mapping) else {} for one in likely] if isinstance(likely, list) else []
                    )
                    chosen = self._id(fields.get("token"), fields.get("id")) if "token" in fields else None
                    generated.append(
                        (chosen, [(self._id(o.get("token"), o.get("id")), o.get("logprob")) for o in each])
                    )
            case {"choices": [{"logprobs": {"top_logprobs": [*rows], **more}}, *_]}:
                tokens = more.get("tokens")
                chosen_texts = tokens if isinstance(tokens, list) and len(tokens) == len(rows) else [None] * len(rows)
                for text, row in zip(chosen_texts, rows, strict=True):
                    values = row if isinstance(row, Mapping) else {}
                    chosen = self._id(text) if isinstance(text, str) else None
                    generated.append((chosen, [(self._id(token), value) for token, value in values.items()]))
        steps = []
        for chosen, entries in generated:
            for _, value in entries:  # check also those of tokens without an id
                NextTokens({0: value})
            top = {token: value for token, value in entries if token is not None}
            if len(top) < 2:
                break
            steps.append((chosen, top))
        return steps

    def _id(self, token: object, given: object = None) -> int | None:
        """Return the id of a token in an answer: None if several tokens have its text, -1 for an invalid id."""
        if given is not None:
            return given if type(given) is int else -1
        if not isinstance(token, str):
            return -1
        digits = token.removeprefix(_TOKEN_ID)
        if digits == token:
            self._by_text = True
            return self.token_texts.by_text.get(token)
        return int(digits) if re.fullmatch("[0-9]{1,9}", digits) else -1

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> HttpAnswer:
        """Send a request until it is answered, or until its retries or its time are used up."""
        deadline = time.monotonic() + self._timeout
        for attempt in range(RETRIES + 1):
            pause = PAUSE * 2**attempt
            answer = failure = None
            try:
                answer = self._exchange(method, path, body, deadline)
            except ssl.SSLCertVerificationError as error:
                raise RopeError(
                    "verify: the server's certificate is not trusted.",
                    facts={"server": self.root, "error": error.verify_message},
                    cure="Set SSL_CERT_FILE to a .pem file of it, and use the host name that it contains.",
                ) from error
            except ssl.SSLError as error:
                raise RopeError(
                    "verify: the server does not answer in https.",
                    facts={"server": self.root, "error": error.reason},
                    cure="Check whether the address begins with http:// instead.",
                ) from error
            except (OSError, http.client.HTTPException, UnicodeError) as error:
                failure = type(error).__name__
            else:
                if answer.status not in RETRIED:
                    return answer
                pause = max(pause, answer.retry_after)
            if time.monotonic() + pause >= deadline:
                break
            if attempt < RETRIES:
                time.sleep(pause)
        if answer is not None:
            return answer
        raise RopeError(
            "verify: the server cannot be reached.",
            facts={"server": self.root, "error": failure},
            cure=f"Check that it runs at this address and answers within {self._timeout:g} seconds.",
        )

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> HttpAnswer:
        """Send a request once. At the deadline its socket is shut down, whatever the server does."""
        headers = {"Accept": "application/json", "Connection": "close", "User-Agent": f"ropewalk/{__version__}"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        left = deadline - time.monotonic()
        connection = self._connection(str(self._host), self._port, timeout=min(CONNECTING, left))
        connection.connect()
        connection.sock.settimeout(left)
        watchdog = threading.Timer(deadline - time.monotonic(), _shut, [connection.sock])
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request(method, self._path + path, data, headers)
            with connection.getresponse() as response:
                content = response.read(LARGEST + 1)
        finally:
            watchdog.cancel()
            connection.close()
        if time.monotonic() >= deadline:
            raise TimeoutError
        encoding = response.getheader("Content-Encoding", "identity")
        if len(content) > LARGEST or encoding.lower() != "identity":
            raise RopeError(
                "verify: the server's answer is too large or compressed.",
                facts={"server": self.root, "bytes, at least": len(content), "encoding": self._shown(encoding)},
                cure=f"Check the address. An answer must be uncompressed and at most {LARGEST >> 20} MiB.",
            )
        if response.length:  # the connection was closed too early
            raise http.client.IncompleteRead(content, response.length)
        after = response.getheader("Retry-After", "")
        seconds = float(after) if re.fullmatch("[0-9]{1,9}", after) else 0.0
        return HttpAnswer(response.status, content.decode("utf-8", errors="replace"), seconds)

    def _shown(self, text: str) -> str:
        """Return the beginning of a server's text without the key, in any encoding of it."""
        if self._key:
            for form in (self._key, json.dumps(self._key)[1:-1], quote(self._key, safe=""), html.escape(self._key)):
                text = text.replace(form, "***")
            decoded = text
            for _ in range(4):  # encodings within encodings
                if _bare(self._key) in _bare(decoded):
                    return "(not shown: it contains the key)"
                decoded = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), decoded)
                decoded = unquote(html.unescape(decoded))
        return text[:300]

    def _refusal(self, answer: HttpAnswer, rule: str) -> RopeError:
        """Return the error for an answer's status, with the server's text."""
        cures = {
            422: "Use an engine that accepts token ids as a prompt (llama.cpp, vLLM, SGLang).",
            401: f"Set {KEY} to a key of this server.",
            403: f"Set {KEY} to a key that may use this model.",
            404: "Pass the model's name on this server as --served-name; its /v1/models lists them. A server that only "
            "chats applies a template: use one with /v1/completions.",
        } | dict.fromkeys((301, 302, 303, 307, 308), "Pass the address that the server redirects to.")
        cure = cures.get(answer.status, "See the server's own log.")
        if answer.status in RETRIED and answer.retry_after:
            cure = f"Rerun the command in {answer.retry_after:,.0f} seconds, the pause requested by the server."
        facts = {"server": self.root, "model": self._model, "status": answer.status}
        return RopeError(rule, facts=facts | {"answer": self._shown(answer.text)}, cure=cure)


def _bare(text: str) -> str:
    """Remove spaces, backslashes and characters outside printable ASCII."""
    return re.sub(r"[^!-\[\]-~]", "", text)


def _shut(connected: socket.socket) -> None:
    """Shut a socket down, so that another thread stops waiting for it."""
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
