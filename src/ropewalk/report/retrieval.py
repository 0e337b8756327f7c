"""Retrieval in the report: a heat map for each task with depths, one for all others, and the numbers as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ropewalk.report.drawing import Drawing
from ropewalk.report.record import Document, printable
from ropewalk.report.tables import Table
from ropewalk.retrieval.protocol import CONFIDENCE
from ropewalk.retrieval.result import Accuracy

Result = dict[str, Any]


def retrieval_drawings(document: Document) -> Iterator[Drawing]:
    """The heat maps, by task; none where retrieval was not measured. Raises `RopeError` where matplotlib is missing."""
    results = _results(document)
    for task in dict.fromkeys(result["task"] for result in results if result["depth"] is not None):
        of_task = [result for result in results if result["task"] == task and result["depth"] is not None]
        depths = sorted({result["depth"] for result in of_task})
        yield _heat(document, of_task, {depth: f"{depth:g}" for depth in depths}, "depth", str(task))
    others = [result for result in results if result["depth"] is None]
    if others:
        yield _heat(document, others, {result["task"]: printable(str(result["task"])) for result in others}, "task", "")


def _heat(document: Document, results: list[Result], rows: dict[Any, str], key: str, task: str) -> Drawing:
    """One heat map: a panel for each method, a row for each depth or task, a column for each length."""
    from ropewalk.figures.retrieval import heat_map

    cells = {(result["method"], result[key], result["length"]): result["accuracy"] for result in results}
    lengths = sorted({result["length"] for result in results})
    chances = {result["chance"] for result in results}
    methods = list(dict.fromkeys(result["method"] for result in results))
    trained = document["trained_length"]
    title = f"Retrieval: {printable(task)}" if task else "Retrieval: tasks without a depth"
    worst = min(cells.values())
    return Drawing(
        "-".join(["retrieval", re.sub(r"[^a-z0-9_]+", "-", task.lower())] if task else ["retrieval"]),
        "Part of the examples answered rightly, by length of the input"
        + (" and by where the needle stands (0: at the beginning, furthest from the question)." if task else "."),
        f"{title}. Heat maps of accuracy for {', '.join(methods)} at {', '.join(f'{n:,}' for n in lengths)} tokens; "
        f"the lowest cell is {worst:.2f}. The numbers stand in the table below.",
        heat_map(
            {method: [[cells.get((method, row, n)) for n in lengths] for row in rows] for method in methods},
            lengths=lengths,
            rows=list(rows.values()),
            **({} if task else {"row_title": "task"}),
            trained_length=trained,
            chance=chances.pop() if len(chances) == 1 else None,
            n=[result["n"] for result in results],
            title=title,
        ),
    )


def retrieval_table(document: Document) -> Table | None:
    """Right answers of each method in each task by length, all depths together, with their intervals; None where
    nothing was measured."""
    results = _results(document)
    if not results:
        return None
    lengths = sorted({result["length"] for result in results})
    rows = []
    for method, task in dict.fromkeys((result["method"], result["task"]) for result in results):
        found = [result for result in results if (result["method"], result["task"]) == (method, task)]
        chance = {result["chance"] for result in found}
        cells = [_share([result for result in found if result["length"] == length]) for length in lengths]
        rows.append([method, str(task), *cells, f"{max(chance):.3g}"])
    heads = ["method", "task", *(f"{length:,} tokens" for length in lengths), "chance"]
    title = f"Right answers, all depths together; in brackets the {CONFIDENCE:.0%} interval (Wilson)"
    return Table(title, heads, rows, best=document["recommended"])


def _share(results: list[Result]) -> str:
    """Right answers of all, with their interval; empty where there are none: 0.75 [0.47, 0.91] (9 of 12)."""
    of = sum(result["n"] for result in results)
    if not of:
        return ""
    found = Accuracy(sum(result["correct"] for result in results), of, results[0]["chance"])
    low, high = found.interval
    return f"{found.value:.2f} [{low:.2f}, {high:.2f}] ({found.correct} of {of})"


def retrieval_details(document: Document) -> Result:
    """The protocol, the results and the sentences; empty where retrieval was not measured."""
    return dict(document.get("retrieval") or {})


def _results(document: Document) -> list[Result]:
    return list(retrieval_details(document).get("results") or [])
