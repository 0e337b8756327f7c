"""Small labelled texts, and runs that take less than a second."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

from ropewalk.training.classification import ClassifySettings

WORDS = {
    "knot": ["bowline", "hitch", "splice", "bend", "loop", "reef", "sheepshank"],
    "sail": ["jib", "main", "spinnaker", "luff", "tack", "gennaker", "boom"],
    "weather": ["gale", "squall", "breeze", "calm", "fog", "swell", "thunder"],
}
FILLER = ["the", "a", "of", "on", "and", "with", "after", "before", "some", "every"]


def texts(rows: int, seed: int = 0) -> list[tuple[str, str]]:
    """(text, label): fillers and two words of the label's own, so that a bag of words tells the class."""
    generator = random.Random(seed)
    found = []
    for number in range(rows):
        label = list(WORDS)[number % len(WORDS)]
        words = generator.choices(FILLER, k=generator.randint(1, 8)) + generator.choices(WORDS[label], k=2)
        generator.shuffle(words)
        found.append((" ".join(words), label))
    return found


def write(path: Path, rows: list[tuple[str, str]], header: tuple[str, str] = ("text", "label")) -> str:
    """A CSV file of these rows; its path."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])
    return str(path)


def small(data: str, **changes: Any) -> ClassifySettings:
    """Settings of a run that takes a third of a second."""
    settings: dict[str, Any] = {
        "vocab_size": 300, "layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 32, "batch_size": 16,
        "epochs": 6, "patience": 6, "lr": 1e-2, "precision": "float32", "device": "cpu", "max_length": 32,
        "validation_fraction": 0.2, "dropout": 0.1,
    }  # fmt: skip
    return ClassifySettings(data, **settings | changes)
