"""Sentence polarity (Pang and Lee 2005) as two CSV files: `python sentence_polarity.py ZIP FOLDER`.

The set has no split of its own: a tenth of each class, drawn with seed 0, is the test. CC-BY-4.0 as NLTK marks it.
"""

from __future__ import annotations

import csv
import random
import sys
import zipfile
from pathlib import Path

CLASSES = {"negative": "sentence_polarity/rt-polarity.neg", "positive": "sentence_polarity/rt-polarity.pos"}


def main(archive: Path, folder: Path) -> None:
    """Write FOLDER/train.csv and FOLDER/test.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    with zipfile.ZipFile(archive) as file:
        for label, name in CLASSES.items():
            lines = [line.strip() for line in file.read(name).decode("latin-1").split("\n")]
            rows = [(line, label) for line in lines if line]
            random.Random(0).shuffle(rows)
            tenth = len(rows) // 10
            parts["test"] += rows[:tenth]
            parts["train"] += rows[tenth:]
    for part, rows in parts.items():
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out)
            writer.writerows([("text", "label"), *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
