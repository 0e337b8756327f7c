"""A real llama.cpp server of the built-in model; `benchmarks/engines/servers.py` checks those of SmolLM2."""

from __future__ import annotations

import pytest

import ropewalk as rw
from ropewalk.checkpoints.load import load
from ropewalk.verification.adapters import llama_cpp_server
from tests.models.material import gguf_of

pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
YARN = {"rope_scaling_type": 2, "rope_freq_scale": 0.25}
CASES = [
    ({}, None, "as expected", "as expected"),
    pytest.param(YARN | {"yarn_orig_ctx": 256}, "yarn:4", "as expected", "as expected", marks=pytest.mark.thorough),
    (YARN | {"yarn_orig_ctx": 1024}, "yarn:4", "other", "yarn with original_max_position_embeddings 1024"),
    pytest.param(
        {"rope_scaling_type": 1, "rope_freq_scale": 0.5},
        "pi:2",
        "as expected",
        "as expected",
        marks=pytest.mark.thorough,
    ),
    ({"rope_freq_base": 1e5}, None, "other", "theta 100000"),
]
Q4_0, FLASH = 2, 1  # ggml_type and llama_flash_attn_type, which a cache of values in few bits needs
CACHES = [
    ({"cache_type_k": Q4_0}, "undecided", "nats, such as 16-bit weights and a 16-bit cache of keys and values."),
    ({"cache_type_k": Q4_0, "cache_type_v": Q4_0}, "undecided", "needs an engine with less noise than 0.1"),
    ({"cache_type_k": Q4_0, "cache_type_v": Q4_0, "rope_freq_base": 5e3}, "other", "Applies theta 5000"),
    ({"rope_freq_base": 1.12e4}, "none", "Neither plain RoPE"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The built-in model, its GGUF file, and a folder for our predictions, which all tests share."""
    folder = tmp_path_factory.mktemp("llama_cpp")
    file = gguf_of("tiny", folder / "tiny.gguf")
    return load("tiny").float(), file, folder / "state"


@pytest.mark.parametrize(("options", "expect", "kind", "name"), CASES)
def test_what_a_server_was_started_with(tiny, options, expect, kind, name):
    """llama.cpp's own reading of its options, asked over HTTP: named, with its own tokenizer's tokens compared."""
    model, file, state = tiny
    with llama_cpp_server(file, model.tokenizer, context=512, threads=1, options=options) as engine:
        found = rw.verify(model, engine, expect=expect, state=state)
    assert found.engine == "llama.cpp"
    assert (found.verdict.kind, found.hypotheses[0].name) == (kind, name), found.verdict.sentence
    assert found.tokenisation.startswith("the same")
    assert found.noise < 2e-3, "float32 weights"
    assert found.hypotheses[0].misfit < 5e-3


@pytest.mark.parametrize(("options", "kind", "words"), CACHES)
def test_a_cache_in_four_bits_is_noise(tiny, options, kind, words):
    """Undecided because of its noise; a wrong rope with or without it is named, or none of the hypotheses."""
    model, file, state = tiny
    options = {"flash_attn_type": FLASH, **options}
    with llama_cpp_server(file, model.tokenizer, context=512, threads=1, options=options) as engine:
        found = rw.verify(model, engine, state=state)
    assert (found.verdict.kind, found.exit_status) == (kind, 3 if kind == "undecided" else 1), str(found)
    assert words in str(found)
    assert ("--rope-freq-base" in str(found)) == (kind == "other"), "the flags of llama.cpp"
