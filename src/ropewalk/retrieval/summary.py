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
    """What chance finds, how far each method reaches, whether any is distinguishable from guessing, and the cost."""
    protocol = measurement.protocol
    of_tasks = [found for task in protocol.tasks if (found := measurement.accuracy(measurement.methods[0], task=task))]
    if protocol.scoring == "choice":
        low, high = (end(found.chance for found in of_tasks) for end in (min, max))
        yield f"Chance finds {low:.1%}." if f"{low:.1%}" == f"{high:.1%}" else f"Chance finds {low:.1%} to {high:.1%}."
    longest = protocol.lengths[-1]
    for method in measurement.methods:
        reached = measurement.effective_length(method, threshold)
        reach = "at no measured length" if reached is None else f"up to {reached:,} tokens"
        sentence = f"{method} finds {threshold:.1%} or more {reach}"
        found, raw = (measurement.accuracy(method, length=longest, raw=raw) for raw in (False, True))
        if found is not None and raw is not None:
            as_it_is = f", raw {raw.value:.2f}" if raw.correct != found.correct else ""
            sentence += f"; {_cell(found)}{as_it_is} at {longest:,}{_doubt(found, protocol.scoring)}"
        yield f"{sentence}."
    if any(found.interval is None for found in _cells(measurement)):
        yield "One text of a task and length gives no interval, as its answers belong together: ask for more texts."
    yield from _costs(measurement)


def _cells(measurement: RetrievalMeasurement) -> list[Accuracy]:
    """Each task at each length, of the first method."""
    found = [
        measurement.accuracy(measurement.methods[0], length=length, task=task)
        for length in measurement.protocol.lengths
        for task in measurement.protocol.tasks
    ]
    return [one for one in found if one is not None]


def _costs(measurement: RetrievalMeasurement) -> Iterator[str]:
    """How many answers a text gave, and what an answer took."""
    found = [one for method in measurement.methods if (one := measurement.accuracy(method)) is not None]
    answers, texts, seconds = sum(one.n for one in found), sum(len(one.texts) for one in found), measurement.seconds
    if seconds:
        yield f"{answers / texts:.3g} answers for each text, {sum(seconds.values()) / answers:.2g} seconds each."


def _doubt(found: Accuracy, scoring: str) -> str:
    """Whether an accuracy may be guessing; nothing without an interval."""
    if scoring != "choice" or found.interval is None:
        return ""
    return ", not distinguishable from guessing" if found.interval[0] <= found.chance else ""


def _cell(found: Accuracy | None) -> str:
    """An accuracy with its interval: 0.90 (0.60 to 0.98); without one: 0.90."""
    if found is None:
        return "\u2013"
    if found.interval is None:
        return f"{found.value:.2f}"
    low, high = found.interval
    return f"{found.value:.2f} ({low:.2f} to {high:.2f})"
