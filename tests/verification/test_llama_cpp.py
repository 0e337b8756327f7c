"""A real llama.cpp server, started plain and with YaRN; ROPEWALK_TEST_GGUF names a small .gguf file to serve."""

from __future__ import annotations

import os

import pytest

from ropewalk.readers.adapters import open_reader
from ropewalk.verification.evidence import Probe
from ropewalk.verification.expectation import expected_positions
from ropewalk.verification.hypotheses import Hypothesis
from ropewalk.verification.llama_cpp import llama_cpp_server
from ropewalk.verification.predictions import predict

pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
FILE = os.environ.get("ROPEWALK_TEST_GGUF")
WORDS = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
pytestmark = [pytest.mark.slow, pytest.mark.skipif(FILE is None, reason="ROPEWALK_TEST_GGUF is not set")]


def test_a_server_with_yarn_is_told_from_a_plain_one():
    """Each answers nearest to what our own forward says under its own rope; the tokens are the same."""
    reader = open_reader(FILE, name="model")
    trained = reader.trained_length
    yarn = expected_positions(reader.positions, "yarn:4", trained)
    ids = reader.tokenizer.encode_prompt(WORDS * 2)
    ours = {
        name: predict(reader, Hypothesis(name, positions), ids, [len(ids)])[len(ids)]
        for name, positions in (("plain", reader.positions), ("yarn", yarn))
    }
    options = {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": trained}
    for name, other, given in (("plain", "yarn", {}), ("yarn", "plain", options)):
        with llama_cpp_server(FILE, reader.tokenizer, context=512, threads=1, options=given) as engine:
            assert engine.token_ids(WORDS) == reader.tokenizer.encode(WORDS)
            answer = engine.ask(ids)
        question = Probe(len(ids), answer.top, ours)
        assert answer.prompt_tokens == len(ids)
        assert 2 * question.misfit(name) < question.misfit(other)
