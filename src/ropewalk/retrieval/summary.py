"""The result in rows and sentences, for a console, a report or a page."""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.retrieval.protocol import THRESHOLD
from ropewalk.retrieval.result import Accuracy, RetrievalMeasurement


def accuracy_rows(measurement: RetrievalMeasurement, task: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: each method's accuracy with its interval at each length, over all tasks or for one of them."""
    heads = ["method", *(f"{length:,}" for length in measurement.protocol.lengths)]
    rows = [
        [method, *(_cell(measurement.accuracy(method, length=at, task=task)) for at in measurement.protocol.lengths)]
        for method in measurement.methods
    ]
    return heads, rows


def sentences(measurement: RetrievalMeasurement, threshold: float = THRESHOLD) -> Iterator[str]:
    """What chance finds, how far each method reaches, and whether any is distinguishable from guessing."""
    chances = sorted({measurement.chance(task) for task in measurement.protocol.tasks})
    if measurement.protocol.scoring == "choice":
        low, high = chances[0], chances[-1]
        yield f"Chance finds {low:.1%}." if low == high else f"Chance finds {low:.1%} to {high:.1%}, by task."
    longest = measurement.protocol.lengths[-1]
    for method in measurement.methods:
        reached = measurement.effective_length(method, threshold)
        reach = "at no measured length" if reached is None else f"up to {reached:,} tokens"
        sentence = f"{method} finds {threshold:.1%} or more {reach}"
        found = measurement.accuracy(method, length=longest)
        if found is not None:
            guessing = measurement.protocol.scoring == "choice" and found.interval[0] <= found.chance
            doubt = ", not distinguishable from guessing" if guessing else ""
            sentence += f"; {_cell(found)} at {longest:,}{doubt}"
        yield f"{sentence}."


def _cell(found: Accuracy | None) -> str:
    """An accuracy with its interval: 0.90 (0.60 to 0.98)."""
    if found is None:
        return "\u2013"
    low, high = found.interval
    return f"{found.value:.2f} ({low:.2f} to {high:.2f})"
