"""The client of OpenAI's completions: every form of answer, and every way to fail."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from ropewalk.checkpoints.load import load
from ropewalk.errors import RopeError
from ropewalk.verification.engine import Engine, Loading, NextTokens, TooLong
from ropewalk.verification.openai_engine import KEY, OpenAIEngine
from tests.checkpoints.prefixes import OurEngine
from tests.verification.fake_server import answer, serving


@pytest.fixture(scope="module")
def ours():
    """`tiny` as an engine."""
    return OurEngine(load("tiny"))


@pytest.mark.parametrize("style", ["llama.cpp", "vllm", "sglang"])
def test_each_servers_form_is_read(ours, style):
    """Ids, ids in words, and text: the same tokens and numbers come out, text as far as it names one token."""
    ids = ours.token_ids("It was the best of times, it was the")
    with serving(ours, style=style) as url:
        engine = OpenAIEngine(url, ours.reader.tokenizer)
        assert isinstance(engine, Engine)
        [answer], direct = engine.generate(ids, 1), ours.ask(ids)
        assert engine.model == "the-model"
        assert answer.prompt_tokens == len(ids)
        assert len(answer.top) >= (10 if style == "sglang" else 20)
        assert all(direct.top[token] == value for token, value in answer.top.items())
        assert engine.token_ids("of times") == (None if style == "sglang" else ours.token_ids("of times"))


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/completions"])
def test_any_way_to_write_the_address(ours, end):
    """With or without the version and the path."""
    assert OpenAIEngine(f"https://host:8000/base{end}", ours.reader.tokenizer).root == "https://host:8000/base"


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://user:secret@host/", "http://[::1", "http://host:99999"]
)
def test_what_is_no_address(ours, url):
    """Refused, and a password is not shown."""
    with pytest.raises(RopeError, match="invalid address of a server") as refused:
        OpenAIEngine(url, ours.reader.tokenizer)
    assert "secret" not in str(refused.value)


def failing(url, ours, **more):
    """The message of the error that asking raises."""
    with pytest.raises(RopeError) as failed:
        OpenAIEngine(url, ours.reader.tokenizer, **more).generate([1, 2, 3], 1)[0]
    return str(failed.value)


@pytest.mark.parametrize("key", ["\tsk-secret\n", 'sk"s/e+c%r&\\t'])
@pytest.mark.parametrize("form", ["plain", "JSON", "URL", "all", "JSON in JSON", "ASCII", "UTF-16", "status 200"])
def test_the_key_is_sent_and_never_shown(ours, monkeypatch, key, form):
    """A server that repeats it in its answer, in whatever form, does not bring it into the message."""
    monkeypatch.setenv(KEY, key)
    key, seen = key.strip(), []

    def refuse(path, body, headers):
        seen.append(headers.get("Authorization"))
        forms = {
            "plain": f"bad key {key}",
            "URL": quote(key),
            "all": "".join(f"%{ord(character):02x}" for character in key),
            "JSON in JSON": {"error": json.dumps({"error": key})},
            "ASCII": '{"error": "' + "".join(f"\\u{ord(character):04x}" for character in key) + '"}',
            "UTF-16": iter([key.encode("utf-16")]),
        }
        return 200 if "200" in form else 401, forms.get(form, {"error": f"bad key {key}"})

    with serving(ours, refuse) as url:
        message = failing(url, ours, model="m")
    assert seen == [f"Bearer {key}"]
    assert "200" in form or ("401" in message and KEY in message)
    secret = re.sub(r"\W", "", key)
    assert secret not in re.sub(r"\W|u00..", "", unquote(message))
    monkeypatch.delenv(KEY)
    with serving(ours, refuse) as url:
        failing(url, ours, model="m")
    assert seen[1:] == [None]


@pytest.mark.parametrize("key", ["sk secret", "sk-s\u00e9cret", "sk\nsecret"])
def test_a_key_that_is_none_is_refused(ours, monkeypatch, key):
    """The message names the variable and does not show the key."""
    monkeypatch.setenv(KEY, key)
    with pytest.raises(RopeError, match=KEY) as refused:
        OpenAIEngine("http://localhost", ours.reader.tokenizer)
    assert "sk" not in str(refused.value)
    assert "cret" not in str(refused.value)


def test_a_certificate_that_is_not_trusted(ours, tmp_path, monkeypatch):
    """The cure names SSL_CERT_FILE, which works; https to a server of http names http."""
    openssl = shutil.which("openssl") or pytest.skip("needs openssl")
    made = str(tmp_path / "both.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", made, "-out", f"{made}.c", *subject]
    subprocess.run(command, check=True, capture_output=True)
    with open(made, "a") as file:
        file.write(Path(f"{made}.c").read_text())
    with serving(ours, certificate=made) as url:
        begun = time.monotonic()
        assert "not trusted" in failing(url, ours, model="m")
        assert "SSL_CERT_FILE" in failing(url, ours, model="m")
        assert time.monotonic() - begun < 5, "it is not tried again"
        monkeypatch.setenv("SSL_CERT_FILE", made)
        assert OpenAIEngine(url, ours.reader.tokenizer).generate([1, 2, 3], 1)[0].prompt_tokens == 3
    with serving(ours) as url:
        assert "http://" in failing(url.replace("http", "https"), ours, model="m")


@pytest.mark.parametrize(
    ("listed", "cure"),
    [
        ((404, "no such path"), "Check the path of the address"),
        ((200, {"data": [{"id": "n"}, {"id": "o"}]}), "as --served-name: n, o."),
        ((200, {"data": [{"id": "m"}]}), "Use a server with /v1/completions."),
    ],
)
def test_what_a_server_does_not_find(ours, listed, cure):
    """A wrong path, a wrong name, and a server of chat only have a cure each."""
    with serving(ours, lambda path, body, headers: listed if "models" in path else (404, "no m")) as url:
        assert cure in failing(url, ours, model="m")


def chat(*entries):
    """A completion in the form of llama.cpp."""
    return {"choices": [{"logprobs": {"content": [{"top_logprobs": list(entries)}]}}]}


A, B = {"id": 1, "logprob": -1.0}, {"id": 2, "logprob": -2.0}


NONE = (
    "<html>", "", "null", "5", "[" * 100_000, '{"a":' * 100_000, {"choices": None}, {"choices": [None]},
    {"choices": {}}, {"choices": []}, {"choices": [5]}, {"choices": [{"text": "a", "logprobs": None}]},
    {"choices": [{"logprobs": 5}]}, {"choices": [{"logprobs": {"content": {}}}]},
    {"choices": [{"logprobs": {"content": [None]}}]}, {"choices": [{"logprobs": {"top_logprobs": [None]}}]},
    chat(), chat(A),
)  # fmt: skip
MALFORMED = (
    None, 5, {}, {"id": 3}, {"id": 3, "logprob": None}, {"id": 3, "logprob": "-1"}, {"id": 3, "logprob": -math.inf},
    {"id": 3, "logprob": math.nan}, {"id": 3, "logprob": True}, {"id": 3, "logprob": 10**400},
    {"id": 3, "logprob": 5.0}, {"id": -3, "logprob": -1.0}, {"id": 3.0, "logprob": -1.0},
    {"token": "token_id:x", "logprob": -1.0}, {"token": 5, "logprob": -1.0},
    {"token": "no such text", "logprob": math.nan},
)  # fmt: skip
UNUSABLE = [*((one, "returns no log-prob") for one in NONE), *((chat(A, B, one), "malformed") for one in MALFORMED)]


@pytest.mark.parametrize(("content", "words"), UNUSABLE)
def test_unusable_answers(ours, content, words):
    """No log-probabilities, a value that is no finite number, or a token that is no id, next to whatever else."""
    with serving(ours, lambda path, body, headers: (200, content)) as url:
        assert words in failing(url, ours, model="m")


@pytest.mark.parametrize(("generated", "numbers", "kept"), [({}, 21, 20), ({"id": 3}, 6, 6), ({"id": 5}, 6, 5)])
def test_only_the_likeliest_are_kept(ours, generated, numbers, kept):
    """As many as were asked for, without the generated token where it is the last."""
    content = chat(*({"id": token, "logprob": -float(token)} for token in reversed(range(numbers))))
    content["choices"][0]["logprobs"]["content"][0] |= {"token": "a", **generated} if generated else {}
    with serving(ours, lambda path, body, headers: (200, content)) as url:
        assert set(OpenAIEngine(url, ours.reader.tokenizer, model="m").generate([1, 2, 3], 1)[0].top) == set(
            range(kept)
        )


@pytest.mark.parametrize("usage", [None, [], 5, {}, {"prompt_tokens": "3"}, {"prompt_tokens": True}])
def test_usage_that_is_not_reported(ours, usage):
    """Anything but a number of tokens is none."""
    with serving(ours, lambda path, body, headers: (200, chat(A, B) | {"usage": usage})) as url:
        engine = OpenAIEngine(url, ours.reader.tokenizer, model="m")
        assert engine.generate([1, 2, 3], 1)[0] == NextTokens({1: -1.0, 2: -2.0}, None, token=1)


@pytest.mark.parametrize("listed", [5, "x", [], {"data": 5}, {"data": [None]}, {"data": [{"id": 5}]}, {"data": {}}])
def test_a_list_of_models_that_is_none(ours, listed):
    """A message, with what the server has sent."""
    with serving(ours, lambda path, body, headers: (200, listed)) as url:
        assert "lists no model" in failing(url, ours)


def drip(piece, count, pause=0.01):
    """Yield one piece of bytes again and again."""
    for _ in range(count):
        time.sleep(pause)
        yield piece


@pytest.mark.parametrize("case", ["silent", "headers", "body", "chunks", "loading"])
def test_one_deadline_for_a_request(ours, case):
    """A server that thinks, drips or asks to be asked later is given up after the time for one request."""

    def handler(path, body, headers):
        if case == "silent":
            time.sleep(0.8)
            return 200, "late"
        if case == "loading":
            return 429, "busy", {"Retry-After": "100000"}
        if case == "headers":
            return 200, drip(b"X-A: b\r\n", 80)
        more = {"Transfer-Encoding": "chunked"} if case == "chunks" else {"Content-Length": "100000"}
        return 200, drip(b"1\r\n \r\n" if case == "chunks" else b" ", 80), more

    begun = time.monotonic()
    with serving(ours, handler) as url:
        message = failing(url, ours, model="m", timeout=0.3)
        assert time.monotonic() - begun < 0.75
    assert ("100,000 seconds" if case == "loading" else "cannot be reached") in message


def test_one_size_for_an_answer(ours, monkeypatch):
    """No more than the largest answer is read, and nothing is decompressed."""
    sent = []

    def endless():
        for _ in range(100):
            sent.append(1)
            yield b" " * 2**20

    with serving(ours, lambda path, body, headers: (200, endless())) as url:
        assert "too large" in failing(url, ours, model="m")
    assert len(sent) < 20
    zipped = {"Content-Encoding": "gzip"}
    with serving(ours, lambda path, body, headers: (200, "x", zipped)) as url:
        assert "compressed" in failing(url, ours, model="m")


def test_a_server_that_is_loading_is_asked_again(ours):
    """503 twice, then the answer."""
    seen = []

    def loading(path, body, headers):
        seen.append(path)
        return (503, "loading") if len(seen) < 3 else None

    with serving(ours, loading) as url:
        engine = OpenAIEngine(url, ours.reader.tokenizer, model="m")
        assert len(engine.generate([1, 2, 3], 1)[0].top) == 20
        assert len(seen) == 3
        seen[:] = []
        with pytest.raises(Loading, match="still loading or busy after 0 seconds") as failed:
            OpenAIEngine(url, ours.reader.tokenizer, model="m", wait=0.1).generate([1, 2, 3], 1)[0]
        assert "--wait" in str(failed.value)
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ((), {"temperature": 0.0}),
        (("temperature",), {"temperature": 1.0, "top_k": 1}),
        (("temperature", "top_k"), {"temperature": 1.0}),
    ],
)
def test_fields_that_a_server_refuses_are_left_out(ours, refused, left):
    """vLLM's own field, more log-probabilities than it gives, and each way to sample nothing."""
    asked = []

    def strict(path, body, headers):
        asked.append(body)
        values = {"temperature": 0.0, "top_k": 1}
        wrong = [n for n in body if n.startswith("return_") or (n in refused and body[n] == values[n])]
        if wrong:
            return 422, {"error": f"{wrong[0]} is invalid"}
        return (400, {"error": "logprobs is at most 5"}) if body["logprobs"] > 5 else None

    with serving(ours, strict) as url:
        engine = OpenAIEngine(url, ours.reader.tokenizer, model="m")
        assert len(engine.generate([1, 2, 3], 1)[0].top) == 5
    assert {name: asked[-1][name] for name in ("temperature", "top_k") if name in asked[-1]} == left


def test_a_proxy(ours, monkeypatch):
    """HTTP_PROXY and NO_PROXY are honoured, with the proxy's password; https asks the proxy for a tunnel."""
    seen = []

    def proxy(path, body, headers):
        seen.append(headers.get("Proxy-Authorization"))
        return answer(ours, path.removeprefix("http://127.0.0.2:9"), body, "llama.cpp")

    with serving(ours, proxy) as url:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, url.replace("//", "//me:secret@"))
        assert len(OpenAIEngine("http://127.0.0.2:9", ours.reader.tokenizer).generate([1, 2, 3], 1)[0].top) == 20
        assert seen == ["Basic bWU6c2VjcmV0"] * 2
        assert "proxy" in failing("https://127.0.0.2:9", ours, model="m", wait=0.0)
        monkeypatch.setenv("no_proxy", "127.0.0.2")
        assert "proxy" not in failing("http://127.0.0.2:9", ours, model="m", wait=0.0)


def test_a_prompt_that_is_too_long(ours):
    """Its own error, so that shorter prompts still count."""
    said = {"error": {"message": "request exceeds the available context size"}}
    with (
        serving(ours, lambda path, body, headers: (400, said)) as url,
        pytest.raises(TooLong, match="does not fit"),
    ):
        OpenAIEngine(url, ours.reader.tokenizer, model="m").generate([1, 2, 3], 1)[0]


def test_a_server_that_takes_text_only(ours):
    """The answers of mlx_lm.server 0.32.2, as received: named, with the cure; a 400 for another cause is not."""
    said = "text input must be of type `str` (single example)"

    def mlx(path, body, headers):
        if type(body.get("logprobs", False)) is not bool:
            return 400, {"error": "logprobs must be of type bool"}
        return (200, {"choices": [{"text": "-"}]}) if isinstance(body["prompt"], str) else (404, {"error": said})

    with serving(ours, mlx) as url:
        message = failing(url, ours, model="m")
    assert "takes text only" in message
    assert said in message
    assert "--engine mlx" in message
    with serving(ours, lambda path, body, headers: (400, {"error": "busy"})) as url:
        assert "takes text only" not in failing(url, ours, model="m")
