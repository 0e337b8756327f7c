"""The client of OpenAI's completions: every form of answer, and every way to fail."""

from __future__ import annotations

import pytest

from ropewalk.checkpoints.load import load_decoder
from ropewalk.errors import RopeError
from ropewalk.verification.engine import Engine, TooLong
from ropewalk.verification.openai_engine import KEY, OpenAIEngine
from ropewalk.verification.ours import OurEngine
from tests.verification.fake_server import serving, slow

pytest.importorskip("urllib3")


@pytest.fixture(scope="module")
def ours():
    """`tiny` as an engine."""
    return OurEngine(load_decoder("tiny"))


@pytest.mark.parametrize("style", ["llama.cpp", "vllm", "sglang"])
def test_each_servers_form_is_read(ours, style):
    """Ids, ids in words, and text: the same tokens and numbers come out, text as far as it names one token."""
    ids = ours.token_ids("It was the best of times, it was the")
    with serving(ours, style=style) as url, OpenAIEngine(url, ours.reader.tokenizer) as engine:
        assert isinstance(engine, Engine)
        answer, direct = engine.ask(ids), ours.ask(ids)
        assert engine.model == "the-model"
        assert answer.prompt_tokens == len(ids)
        assert len(answer.top) >= (10 if style == "sglang" else 20)
        assert all(direct.top[token] == value for token, value in answer.top.items())
        assert engine.token_ids("of times") == (None if style == "sglang" else ours.token_ids("of times"))


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/completions"])
def test_any_way_to_write_the_address(ours, end):
    """With or without the version and the path."""
    assert OpenAIEngine(f"https://host:8000/base{end}", ours.reader.tokenizer).root == "https://host:8000/base"


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user:secret@host/"])
def test_what_is_no_address(ours, url):
    """Refused, and a password is not shown."""
    with pytest.raises(RopeError, match="no address of a server") as refused:
        OpenAIEngine(url, ours.reader.tokenizer)
    assert "secret" not in str(refused.value)


def failing(url, ours, **more):
    """The message of the error that asking raises."""
    with OpenAIEngine(url, ours.reader.tokenizer, **more) as engine, pytest.raises(RopeError) as failed:
        engine.ask([1, 2, 3])
    return str(failed.value)


def test_the_key_is_sent_and_never_shown(ours, monkeypatch):
    """A server that repeats it in its refusal does not bring it into the message."""
    monkeypatch.setenv(KEY, "sk-secret")
    seen = []

    def refuse(path, body, headers):
        seen.append(headers.get("Authorization"))
        return 401, {"error": f"bad key {headers.get('Authorization')}"}

    with serving(ours, refuse) as url:
        message = failing(url, ours, model="m")
    assert seen == ["Bearer sk-secret"]
    assert "401" in message
    assert KEY in message
    assert "sk-secret" not in message


def test_without_a_key_none_is_sent(ours, monkeypatch):
    """No header, and the cure names the variable."""
    monkeypatch.delenv(KEY, raising=False)
    with serving(ours, lambda path, body, headers: (401, "Authorization" in headers and "sent")) as url:
        assert KEY in failing(url, ours)


def test_a_wrong_model_name(ours):
    """The name and the way to find the right one."""
    with serving(ours, lambda path, body, headers: (404, {"error": "no model m"})) as url:
        message = failing(url, ours, model="m")
    assert "'m'" in message
    assert "--served-name" in message


def test_no_log_probabilities(ours):
    """An endpoint that ignores the field."""
    with serving(ours, lambda path, body, headers: (200, {"choices": [{"text": "a", "logprobs": None}]})) as url:
        assert "gives no log-probabilities" in failing(url, ours, model="m")


def test_an_answer_that_is_no_json(ours):
    """A page in the way."""
    with serving(ours, lambda path, body, headers: (200, "<html>")) as url:
        assert "gives no log-probabilities" in failing(url, ours, model="m")


def test_a_server_that_takes_too_long(ours):
    """A time-out is a message; it is tried again first."""
    with serving(ours, slow(0.6)) as url:
        assert "cannot be reached" in failing(url, ours, model="m", timeout=0.1)


def test_no_server(ours):
    """Nothing listens there."""
    assert "cannot be reached" in failing("http://127.0.0.1:9", ours, model="m")


def test_a_server_that_is_loading_is_asked_again(ours):
    """503 twice, then the answer."""
    seen = []

    def loading(path, body, headers):
        seen.append(path)
        return (503, "loading") if len(seen) < 3 else None

    with serving(ours, loading) as url, OpenAIEngine(url, ours.reader.tokenizer, model="m") as engine:
        assert len(engine.ask([1, 2, 3]).top) == 20
    assert len(seen) == 3


def test_fields_that_a_server_refuses_are_left_out(ours):
    """vLLM's own field, and more log-probabilities than it gives."""

    def strict(path, body, headers):
        for field in [name for name in body if name.startswith("return_")]:
            return 400, {"error": f"unknown field {field}"}
        return (400, {"error": "logprobs is at most 5"}) if body["logprobs"] > 5 else None

    with serving(ours, strict) as url, OpenAIEngine(url, ours.reader.tokenizer, model="m") as engine:
        assert len(engine.ask([1, 2, 3]).top) == 20


def test_a_prompt_that_is_too_long(ours):
    """Its own error, so that shorter prompts still count."""
    said = {"error": {"message": "request exceeds the available context size"}}
    with (
        serving(ours, lambda path, body, headers: (400, said)) as url,
        OpenAIEngine(url, ours.reader.tokenizer, model="m") as engine,
        pytest.raises(TooLong, match="does not fit"),
    ):
        engine.ask([1, 2, 3])
