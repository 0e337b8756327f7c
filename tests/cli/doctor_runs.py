"""Runs of `ropewalk doctor` on a small random model with a tokenizer of bytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ropewalk.checkpoints.load import save
from ropewalk.cli.app import main
from ropewalk.tokenizer import TextTokenizer
from tests.diagnosis.models import tiny_decoder

TEXT = "It was the best of times. It was the worst of times! " * 60


def write_checkpoint(folder: Path, rope: Any, *, tokenizer: bool = True) -> Path:
    """Save a random model there."""
    model = tiny_decoder(rope, vocab_size=256)
    save(model, folder, tokenizer=TextTokenizer.bytes() if tokenizer else None)
    return folder


def run_command(*arguments: str | int | Path) -> int:
    """Run a command of ropewalk; the exit status."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return int(ended.value.code or 0)


def doctor(*arguments: str | int | Path) -> int:
    """Run the doctor; the exit status."""
    return run_command("doctor", *arguments)


def finite_or_null(value: Any) -> bool:
    """Whether a JSON value holds no NaN and no infinity."""
    if isinstance(value, dict):
        return all(map(finite_or_null, value.values()))
    if isinstance(value, list):
        return all(map(finite_or_null, value))
    return not isinstance(value, float) or math.isfinite(value)
