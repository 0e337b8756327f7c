"""A text and a model for the retrieval tests."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.models.decoder import Decoder
from tests.diagnosis.models import ROPE, tiny_decoder

WORDS = ["".join(letters) for letters in itertools.product("bdgk", "aeiou", "lmnr", "aeiou", "stz")]
TEXT = ("story", ". ".join(" ".join(WORDS[start : start + 7]) for start in range(0, len(WORDS), 7)) + ".")
"""Sentences of seven words that each occur once."""


def tokenizer() -> TextTokenizer:
    """One token per byte."""
    return TextTokenizer.bytes()


LONGER = dataclasses.replace(ROPE, max_position_embeddings=256)


def decoder(rope: Any = LONGER, **changes: Any) -> Decoder:
    """Random weights over bytes."""
    return tiny_decoder(rope, vocab_size=257, **changes)
