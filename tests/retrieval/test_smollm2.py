"""A model that can answer: SmolLM2-135M finds the passkey within its trained length, by its log-probability."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk.checkpoints.load import load
from ropewalk.readers.adapters import reader_of
from ropewalk.retrieval.measure import measure_retrieval

FILE = os.environ.get("ROPEWALK_SMOLLM2", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path(FILE).is_file(), reason="set ROPEWALK_SMOLLM2 to the GGUF file")
def test_the_passkey_is_found_within_the_trained_length() -> None:
    """Eight of ten at 1,024 tokens, where guessing would find one in twelve."""
    reader = reader_of(load(FILE))
    assert reader.tokenizer is not None
    found = measure_retrieval({"plain": reader}, reader.tokenizer, tasks=["passkey"], lengths=[1024], samples=2)
    accuracy = found.accuracy("plain")
    assert accuracy is not None
    assert accuracy.value >= 0.8
