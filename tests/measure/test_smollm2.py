"""A model that can copy and answer: SmolLM2-135M."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.diagnosis import Protocol

FILE = os.environ.get("ROPEWALK_SMOLLM2", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path(FILE).is_file(), reason="set ROPEWALK_SMOLLM2 to the GGUF file")
def test_a_model_that_can_copy_is_seen_to(tmp_path: Path) -> None:
    """Said to be trained to 256 of its 8,192 tokens, plain uses all of 1,024, crop only what it sees."""
    found = rw.doctor(
        FILE,
        trained_length=256,
        target=1024,
        methods="crop",
        state=tmp_path,
        protocol=Protocol(windows=3, start_char=30_000),
    ).use
    assert found is not None
    assert all(row.gain > 4 for row in found.of("plain", "copy"))
    assert found.controls["copy"].gain > 4
    assert found.shows_use("plain") is True
    assert (found.reach("plain") or 0) > 256
    assert found.shows_use("crop") is False
    assert all(abs(row.gain) < 1 for row in found.of("crop", "copy") if row.distance > 256)
