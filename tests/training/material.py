"""Small texts and small runs."""

from __future__ import annotations

import random
from typing import Any

from ropewalk.training import Housekeeping, TrainSettings

SENTENCE = "the rope was laid along a walk of three hundred yards and every strand had its own turn to keep"


def prose(words: int, seed: int = 0) -> str:
    """Words in a random order, in lines of twelve."""
    chosen = random.Random(seed).choices(SENTENCE.split(), k=words)
    return "\n".join(" ".join(chosen[i : i + 12]) for i in range(0, words, 12)) + "\n"


def small(text: str, **changes: Any) -> TrainSettings:
    """Settings of a run that takes a tenth of a second."""
    settings: dict[str, Any] = {
        "tokenizer": "bytes",
        "layers": 2,
        "hidden_size": 16,
        "heads": 2,
        "kv_heads": 1,
        "intermediate_size": 32,
        "seq_len": 16,
        "batch_size": 4,
        "steps": 12,
        "dropout": 0.1,
        "precision": "float32",
        "device": "cpu",
        "validation_windows": 4,
    }
    return TrainSettings(text=(text,), **(settings | changes))


EVERY = Housekeeping(log_every=2, validate_every=4, checkpoint_every=3)
