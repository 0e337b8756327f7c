"""The examples as modules, and a text of a few words for them."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples"
SENTENCE = "the rope was laid along a walk of three hundred yards and every strand had its own turn to keep"


def example(name: str) -> Any:
    """Import one file of examples/, as a script there would."""
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def prose(words: int, seed: int = 0) -> str:
    """Words in a random order, in lines of twelve."""
    chosen = random.Random(seed).choices(SENTENCE.split(), k=words)
    return "\n".join(" ".join(chosen[i : i + 12]) for i in range(0, words, 12)) + "\n"
