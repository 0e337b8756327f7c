"""A server with OpenAI's `/v1/completions` and `logprobs` as an engine: llama.cpp, vLLM, SGLang, and others."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from http.client import HTTPException, IncompleteRead
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, getproxies, proxy_bypass

from ropewalk.errors import RopeError
from ropewalk.verification.engine import (
    TOP,
    WAIT,
    EngineError,
    Loading,
    NextTokens,
    NoAnswer,
    TokenTexts,
    TooLong,
    Unreachable,
)
from ropewalk.version import __version__

KEY = "OPENAI_API_KEY"
SECONDS = 120.0  # for one answer
CONNECTING = 10.0  # seconds for one attempt to connect
LARGEST = 4 * 2**20  # bytes of one answer: 20 log-probabilities take 4 kB, the list of a hub's models 1 MB
PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds after a failed connection or one of these statuses, doubled each time
RETRIED = (429, 502, 503, 504)  # a server that is still loading answers 503
LOCAL = ("localhost", "127.0.0.1", "::1")  # never behind a proxy
# `owned_by` of a listed model: `ModelCard` in openai/protocol.py of vLLM and of SGLang; that of llama.cpp was received
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
GREEDY: tuple[Mapping[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0})
"""What samples nothing, in the order of trying: some engines refuse temperature 0, and fields that are not OpenAI's."""
_TOKEN_ID = "token_id:"  # vLLM's prefix of a token that it returns as an id
ReturnT = TypeVar("ReturnT")

CURES = {
    401: f"Set {KEY} to a key of this server.",
    403: f"Set {KEY} to a key that may use this model.",
    **dict.fromkeys((301, 302, 303, 307, 308), "Pass the address that the server redirects to."),
}


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
    - `token_texts`: the texts of the model's tokens, such as its tokenizer, for servers that return only text.
    - `model`: its name on the server. Defaults to the first of `/v1/models`.
    - `timeout`: seconds for one answer.
    - `wait`: seconds for which a server that is not reached, or that is loading, is asked again.
    - `name`: the name for reports. Defaults to the address.
    - `key`: a bearer token, never part of a message or a record. Defaults to the variable OPENAI_API_KEY.

    **Raises:** `RopeError` for an invalid address or key.
    """

    def __init__(
        self,
        url: str,
        token_texts: TokenTexts,
        *,
        model: str | None = None,
        timeout: float = SECONDS,
        wait: float = WAIT,
        name: str | None = None,
        key: str | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            scheme, host, port = parts.scheme, parts.hostname or "", parts.port
        except ValueError:  # an open bracket, a port beyond 65,535
            scheme, host, port = "", "", None
        if scheme not in ("http", "https") or not host or parts.username or parts.password:
            raise RopeError(
                "verify: invalid address of a server.",
                facts={"scheme": scheme, "host": host},
                cure=f"Pass one such as http://localhost:8000. Put a key into the variable {KEY}.",
            )
        path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        self.root = urlunsplit((scheme, parts.netloc, path, "", ""))
        self._base = urlunsplit((scheme, parts.netloc, quote(path, safe="/%~:@!$&'()*+,;="), "", ""))
        self._proxy = None if host in LOCAL or proxy_bypass(host) else getproxies().get(scheme)
        self._address = None if self._proxy else (host, port or (443 if scheme == "https" else 80))
        self._opener = OpenerDirector()  # without handlers of redirects and of errors
        for handler in (ProxyHandler({scheme: self._proxy} if self._proxy else {}), HTTPHandler(), HTTPSHandler()):
            self._opener.add_handler(handler)
        self.token_texts = token_texts
        self._model, self._name, self._timeout, self._wait = model, name, timeout, wait
        self._key = (os.environ.get(KEY, "") if key is None else key).strip()
        if not all("!" <= character <= "~" for character in self._key):
            raise RopeError(
                f"verify: {KEY} contains a space or a character outside ASCII.",
                facts={"characters": len(self._key)},
                cure="Set it to the key only.",
            )
        self._top, self._wants_ids, self._greedy = TOP, True, list(GREEDY)
        self._by_text = False

    @property
    def name(self) -> str:
        """Return the given name, else the server's address."""
        return self._name or self.root

    @cached_property
    def _list(self) -> HttpAnswer:
        """Return the server's list of models."""
        return self._send("GET", "/v1/models")

    def _listed(self, key: str) -> list[str]:
        """Return the texts under a key of the listed models."""
        found = _object(self._list.content).get("data") if self._list.status == 200 else None
        return [model[key] for model in map(_object, _items(found)) if isinstance(model.get(key), str)]

    @cached_property
    def model(self) -> str:
        """Return the model's name on the server."""
        for name in [self._model] if self._model is not None else self._listed("id"):
            return name
        raise self._refusal(self._list, "verify: the server lists no model.")

    @property
    def kind(self) -> str | None:
        """Return the engine's name in `ropewalk.serving.engines.ENGINES`; None if it is not known."""
        with suppress(RopeError):  # the server has stopped
            return next((OWNERS[owner] for owner in self._listed("owned_by") if owner in OWNERS), None)
        return None

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids from the server's `/tokenize` (llama.cpp, vLLM); None if it has none."""
        body = {"model": self.model, "prompt": text, "content": text, "add_special": False, "add_special_tokens": False}
        answer = self._send("POST", "/tokenize", body)
        match answer.content:
            case {"tokens": [*tokens]} if answer.status == 200 and all(type(token) is int for token in tokens):
                return tokens
        return None

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return generated tokens, always the likeliest, with the likeliest at each place; omit refused fields."""
        body = {"model": self.model, "prompt": list(input_ids), "max_tokens": tokens, "logprobs": self._top}
        body |= {**self._greedy[0], **({"return_tokens_as_token_ids": True} if self._wants_ids else {})}  # vLLM's
        answer = self._send("POST", "/v1/completions", body)
        if answer.status in (400, 422):
            if self._omitted(answer.text):
                return self.generate(input_ids, tokens)
            if any(word in answer.text for word in ("context size", "context length", "maximum context", "exceed")):
                raise TooLong(
                    "verify: the prompt does not fit the engine's context.",
                    facts={"server": self.root, "tokens": len(input_ids)},
                    cure="Start the server with a longer context, or pass a smaller --max-tokens.",
                )
        if answer.status in (400, 404, 422) and (refused := self._ids_refused(input_ids)) is not None:
            raise EngineError(
                "verify: the server takes text only as a prompt, no token ids.",
                facts={"server": self.root, "status": refused.status, "answer": self._shown(refused.text)},
                cure="For mlx_lm.server, start mlx-lm here: ropewalk verify FOLDER --engine mlx.",
            )
        if answer.status != 200:
            raise self._refusal(answer, "verify: the server refuses the request.")
        steps = self._steps(answer.content)
        if not steps:
            raise NoAnswer(
                "verify: the server returns no log-probabilities of the likeliest tokens.",
                facts={"server": self.root, "answer": self._shown(answer.text)},
                cure="Use an engine with `logprobs` in /v1/completions (llama.cpp, vLLM, SGLang).",
            )
        count = _object(_object(answer.content).get("usage")).get("prompt_tokens")
        count = count if type(count) is int else None
        return [
            NextTokens(top, count, self._by_text, max(top, key=lambda one: top[one]) if token is None else token)
            for token, top in steps
        ]

    def _omitted(self, refusal: str) -> bool:
        """Omit from now on what a server refuses; return whether it is something that can be omitted."""
        if self._wants_ids and "return_tokens_as_token_ids" in refusal:
            self._wants_ids = False
        elif len(self._greedy) > 1 and any(field in refusal for field in self._greedy[0]):
            del self._greedy[0]
        elif "logprobs" in refusal and self._top > 5:
            self._top = 5
        else:
            return False
        return True

    def _ids_refused(self, input_ids: Sequence[int]) -> HttpAnswer | None:
        """Return the answer of a server that completes a text, but no token ids, without any other field."""
        body = {"model": self.model, "max_tokens": 1}
        ids, text = (self._send("POST", "/v1/completions", body | {"prompt": one}) for one in (list(input_ids), "a"))
        return ids if ids.status != 200 and text.status == 200 else None

    def _steps(self, content: Any) -> list[tuple[int | None, dict[int, float]]]:
        """Return each generated token and the checked numbers at its place, in the form of completions or of chat.

        An engine that samples may add its token to the likeliest ones. The smallest number is left out if it is that of
        the generated token, as are more numbers than were asked for. It ends at the first place with fewer than two.
        """
        places: list[tuple[Mapping[str, Any], list[tuple[Mapping[str, Any], Any]]]] = []
        match content:
            case {"choices": [{"logprobs": {"content": [*rows]}}, *_]}:
                for row in map(_object, rows):
                    each = map(_object, _items(row.get("top_logprobs")))
                    places.append((row, [(one, one.get("logprob")) for one in each]))
            case {"choices": [{"logprobs": {"top_logprobs": [*rows], **more}}, *_]}:
                for row, text in itertools.zip_longest(map(_object, rows), _items(more.get("tokens"))[: len(rows)]):
                    chosen_text = {"token": text} if text is not None else {}
                    places.append((chosen_text, [({"token": token}, value) for token, value in row.items()]))
        steps = []
        for generated, entries in places:
            for _, value in entries:  # check also those of tokens without an id
                NextTokens({0: value})
            chosen = self._id(generated) if "token" in generated else None
            likely = sorted(((self._id(one), value) for one, value in entries), key=lambda entry: -entry[1])
            del likely[self._top :]
            if len(likely) > 2 and chosen is not None and likely[-1][0] == chosen:
                del likely[-1]
            top = {token: value for token, value in likely if token is not None}
            if len(top) < 2:
                break
            steps.append((chosen, top))
        return steps

    def _id(self, entry: Mapping[str, Any]) -> int | None:
        """Return the id of a token in an answer: None if several tokens have its text, -1 for an invalid id."""
        token, given = entry.get("token"), entry.get("id")
        if given is not None or not isinstance(token, str):
            return given if type(given) is int else -1
        if not token.startswith(_TOKEN_ID):
            self._by_text = True
            return self.token_texts.by_text.get(token)
        digits = token.removeprefix(_TOKEN_ID)
        return int(digits) if re.fullmatch("[0-9]{1,9}", digits) else -1

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> HttpAnswer:
        """Send a request until it is answered, its time is used up, or the time to wait for a loading server."""
        headers = {"Accept": "application/json", "User-Agent": f"ropewalk/{__version__}"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        begun, pause = time.monotonic(), PAUSE
        while True:
            answer = failure = None
            deadline = time.monotonic() + self._timeout
            request = Request(self._base + path, data, headers, method=method)  # a proxy changes it
            try:
                answer = _within(self._timeout, partial(self._exchange, request))
            except (OSError, HTTPException, UnicodeError) as error:
                failure = error.reason if isinstance(error, URLError) else error
            else:
                if answer.status not in RETRIED:
                    return answer
                pause = max(pause, answer.retry_after)
            now = time.monotonic()
            waits = now < deadline and now + pause <= begun + self._wait  # NaN waits for nothing
            if isinstance(failure, ssl.SSLError) or not waits:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        if answer is not None:
            rule = f"verify: the server is still loading or busy after {now - begun:,.0f} seconds."
            raise self._refusal(answer, rule)
        raise self._unreachable(failure)

    def _unreachable(self, failure: object) -> Unreachable:
        rule, error = "the server cannot be reached", type(failure).__name__
        cure = (
            f"Check that it runs at this address and answers within {self._timeout:g} seconds. "
            "Pass --wait SECONDS for a server that is still starting."
        )
        if isinstance(failure, ssl.SSLCertVerificationError):
            rule, error = "the server's certificate is not trusted", failure.verify_message
            cure = "Set SSL_CERT_FILE to a .pem file of it, and use the host name that it contains."
        elif isinstance(failure, ssl.SSLError):
            rule, error = "the server does not answer in https", failure.reason
            cure = "Check whether the address begins with http:// instead."
        proxy = {"proxy": urlsplit(self._proxy).hostname} if self._proxy else {}
        return Unreachable(f"verify: {rule}.", facts={"server": self.root, "error": error, **proxy}, cure=cure)

    def _exchange(self, request: Request) -> HttpAnswer:
        """Send a request once, and return the whole answer."""
        if self._address:  # a host that drops packets is given up before the time of an answer
            socket.create_connection(self._address, CONNECTING).close()
            self._address = None
        with self._opener.open(request, timeout=self._timeout) as response:
            content = response.read(LARGEST + 1)
        encoding = response.getheader("Content-Encoding", "identity")
        if len(content) > LARGEST or encoding.lower() != "identity":
            raise EngineError(
                "verify: the server's answer is too large or compressed.",
                facts={"server": self.root, "bytes, at least": len(content), "encoding": self._shown(encoding)},
                cure=f"Check the address. An answer must be uncompressed and at most {LARGEST >> 20} MiB.",
            )
        if response.length:  # the connection was closed too early
            raise IncompleteRead(content, response.length)
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

    def _refusal(self, answer: HttpAnswer, rule: str) -> EngineError:
        """Return the error for an answer's status, with the server's text."""
        error, cure = EngineError, CURES.get(answer.status, "See the server's own log.")
        if answer.status == 404:
            cure = self._cure_of_404()
        elif answer.status in RETRIED:
            requested = f" The server asks for {answer.retry_after:,.0f} seconds." if answer.retry_after else ""
            error, cure = Loading, f"Pass --wait SECONDS to wait longer.{requested}"
        facts = {"server": self.root, "model": self._model, "status": answer.status}
        return error(rule, facts=facts | {"answer": self._shown(answer.text)}, cure=cure)

    def _cure_of_404(self) -> str:
        """Return what to change if the server does not know a path or a model."""
        names = self._listed("id")
        if self._list.status != 200:
            return "Check the path of the address: this one has no /v1/models."
        if self._model is not None and self._model not in names:
            return f"Pass the model's name on this server as --served-name: {self._shown(', '.join(names))}."
        return "Use a server with /v1/completions. One that only chats applies a template."


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _bare(text: str) -> str:
    """Remove spaces, backslashes and characters outside printable ASCII."""
    return re.sub(r"[^!-\[\]-~]", "", text)


def _within(seconds: float, call: Callable[[], ReturnT]) -> ReturnT:
    """Return the result of a call; raise `TimeoutError` after this time, whatever it waits for, and leave it alone."""
    future = Future[ReturnT]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)
