"""Retrieval in the report: heat maps by depth, accuracy by distance, and the numbers as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ropewalk.measure.answers import CONFIDENCE, LEAST, Accuracy
from ropewalk.report.drawing import Drawing
from ropewalk.report.record import Document, printable
from ropewalk.report.tables import Table

Row = dict[str, Any]
_LONGEST = 6  # lengths whose curves are drawn


def retrieval_rows(document: Document) -> list[Row]:
    """Every cell of method, task, length and depth, also of a record of old; none where retrieval was not measured."""
    found = document.get("retrieval") or []
    return list(found) if isinstance(found, list) else [_row_of_old(row) for row in found.get("results") or []]


def retrieval_details(document: Document) -> Row:
    """The protocol, means, distances and sentences; empty where retrieval was not measured."""
    found = document.get("retrieval")
    if not isinstance(found, dict):
        return dict(document.get("retrieval_details") or {})
    means = []
    rows = retrieval_rows(document)
    for key in dict.fromkeys((row["method"], row["task"], row["length"]) for row in rows):
        of_key = [row for row in rows if (row["method"], row["task"], row["length"]) == key]
        counts = sum(row["found"] for row in of_key), sum(row["asked"] for row in of_key)
        if counts[1]:
            together = Accuracy.independent(*counts, of_key[0]["chance"])
            means.append({**dict(zip(("method", "task", "length"), key, strict=True)), **together.to_json()})
    return {**found, "means": means}


def _row_of_old(row: Row) -> Row:
    """A cell as records held it when each text had one question."""
    return {
        **{name: row[name] for name in ("method", "task", "length", "depth", "chance")},
        "asked": row["n"],
        "found": row["correct"],
        "interval": row["ci"],
    }


def retrieval_drawings(document: Document) -> Iterator[Drawing]:
    """The heat maps and the curves by distance, by task; none where retrieval was not measured.

    A map is drawn where each of its cells has at least 20 answers, or the record is old. Raises `RopeError` where
    matplotlib is missing.
    """
    rows, old = retrieval_rows(document), isinstance(document.get("retrieval"), dict)
    for task in dict.fromkeys(row["task"] for row in rows if row["depth"] is not None):
        of_task = [row for row in rows if row["task"] == task and row["depth"] is not None]
        if old or min(row["asked"] for row in of_task) >= LEAST:
            depths = dict(sorted((row["depth"], _depth(row)) for row in of_task))
            yield _heat(document, of_task, depths, "depth", str(task))
    others = [row for row in rows if row["depth"] is None]
    if others and (old or min(row["asked"] for row in others) >= LEAST):
        yield _heat(document, others, {row["task"]: printable(str(row["task"])) for row in others}, "task", "")
    distances = retrieval_details(document).get("by_distance") or []
    for task in dict.fromkeys(row["task"] for row in distances):
        yield _curves(document, [row for row in distances if row["task"] == task], str(task))


def _depth(row: Row) -> str:
    """A cell's depth in words: 0.5, or 0.2 to 0.4."""
    part = row.get("depths")
    return f"{row['depth']:g}" if part is None else f"{part[0]:g} to {part[1]:g}"


def _file(task: str, *more: str) -> str:
    return "-".join(["retrieval", *([re.sub(r"[^a-z0-9_]+", "-", task.lower())] if task else []), *more])


def _heat(document: Document, rows: Sequence[Row], names: dict[Any, str], key: str, task: str) -> Drawing:
    """One heat map: a panel for each method, a row for each depth or task, a column for each length."""
    from ropewalk.figures.retrieval import heat_map

    cells = {(row["method"], row[key], row["length"]): row["found"] / row["asked"] for row in rows}
    lengths = sorted({row["length"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    title = f"Retrieval: {printable(task)}" if task else "Retrieval: tasks without a depth"
    return Drawing(
        _file(task),
        "Part of the answers found, by length of the text"
        + (" and by where the needle stands (0: at the beginning, furthest from the question)." if task else "."),
        f"{title}. Heat maps of accuracy for {', '.join(methods)} at {', '.join(f'{n:,}' for n in lengths)} tokens; "
        f"the lowest cell is {min(cells.values()):.2f}. The numbers stand in the table below.",
        heat_map(
            {method: [[cells.get((method, name, n)) for n in lengths] for name in names] for method in methods},
            lengths=lengths,
            rows=list(names.values()),
            **({} if task else {"row_title": "task"}),
            trained_length=document["trained_length"],
            chance=_chance(rows),
            n=[row["asked"] for row in rows],
            title=title,
        ),
    )


def _chance(rows: Sequence[Row]) -> float | None:
    """What guessing finds, where it is the same in all rows."""
    chances = {round(row["chance"], 9) for row in rows}
    return chances.pop() if len(chances) == 1 else None


def _curves(document: Document, rows: Sequence[Row], task: str) -> Drawing:
    """Accuracy by distance: a panel for each length, the longest six, and a line for each method."""
    from ropewalk.figures.retrieval import Share, accuracy_by_distance

    lengths = sorted({row["length"] for row in rows})[-_LONGEST:]
    curves: dict[int, dict[str, dict[float, Share]]] = {length: {} for length in lengths}
    for row in rows:
        if row["length"] in curves:
            share = Share(row["found"] / row["asked"], row["interval"] and tuple(row["interval"]))
            curves[row["length"]].setdefault(row["method"], {})[sum(row["distances"]) / 2] = share
    title = f"Retrieval by distance: {printable(task)}"

    def draw(narrow: bool) -> Any:
        return accuracy_by_distance(
            {lengths[-1]: curves[lengths[-1]]} if narrow else curves,
            trained_length=document["trained_length"],
            chance=_chance(rows),
            title=title,
            narrow=narrow,
        )

    last = {method: list(points.values())[-1].value for method, points in curves[lengths[-1]].items()}
    return Drawing(
        _file(task, "distance"),
        "Part of the answers found, by how far back the needle stands from the end of its question.",
        f"{title}, in texts of {', '.join(f'{n:,}' for n in lengths)} tokens. At the largest distance of the longest: "
        + "; ".join(f"{method} {value:.2f}" for method, value in last.items())
        + ". The numbers stand in the table below.",
        draw(False),
        draw(True),
    )


def retrieval_table(document: Document) -> Table | None:
    """Right answers of each method in each task by length, with their intervals; None where nothing was measured."""
    means = [row for row in retrieval_details(document).get("means") or [] if row["task"] is not None]
    if not means:
        return None
    lengths = sorted({row["length"] for row in means})
    rows = []
    for method, task in dict.fromkeys((row["method"], row["task"]) for row in means):
        found = {row["length"]: row for row in means if (row["method"], row["task"]) == (method, task)}
        cells = [_share(found[length]) if length in found else "" for length in lengths]
        rows.append([method, str(task), *cells, f"{max(row['chance'] for row in found.values()):.3g}"])
    heads = ["method", "task", *(f"{length:,} tokens" for length in lengths), "chance"]
    title = f"Right answers; in brackets the {CONFIDENCE:.0%} interval, raw: without calibration"
    return Table(title, heads, rows, best=document["recommended"])


def distance_table(document: Document) -> Table | None:
    """Right answers by how far back the needle stands; None where that was not measured."""
    found = retrieval_details(document).get("by_distance") or []
    if not found:
        return None
    methods = list(dict.fromkeys(row["method"] for row in found))
    cells: dict[tuple[str, int, tuple[float, float]], dict[str, Row]] = {}
    for row in found:
        cells.setdefault((row["task"], row["length"], tuple(row["distances"])), {})[row["method"]] = row
    rows = [
        [
            str(task),
            f"{length:,}",
            f"{low:,.0f} to {high:,.0f}",
            *(_share(of_methods[method]) if method in of_methods else "" for method in methods),
        ]
        for (task, length, (low, high)), of_methods in cells.items()
    ]
    return Table("Right answers by distance", ["task", "tokens", "distance", *methods], rows)


def _share(row: Row) -> str:
    """Right answers with their interval: 0.75 [0.47, 0.91] (18 of 24; raw 16)."""
    raw = row.get("found_raw")
    counts = f"({row['found']} of {row['asked']}" + ("" if raw in (None, row["found"]) else f"; raw {raw}") + ")"
    interval = "" if row["interval"] is None else "[{:.2f}, {:.2f}] ".format(*row["interval"])
    return f"{row['found'] / row['asked']:.2f} {interval}{counts}"
