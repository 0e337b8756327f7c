"""Made-up texts of a few words."""

from __future__ import annotations

import random

SENTENCE = "the rope was laid along a walk of three hundred yards and every strand had its own turn to keep"


def prose(words: int, seed: int = 0) -> str:
    """Words in a random order, in lines of twelve."""
    chosen = random.Random(seed).choices(SENTENCE.split(), k=words)
    return "\n".join(" ".join(chosen[i : i + 12]) for i in range(0, words, 12)) + "\n"
