"""The report's figures and tables of retrieval."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ropewalk.measure.answers import CONFIDENCE, LEAST, Accuracy
from ropewalk.report.parts import Drawing, Table
from ropewalk.report.record import Document, printable
from ropewalk.statistics import signed

Row = dict[str, Any]
_LONGEST = 6  # lengths that have curves


def retrieval_rows(document: Document) -> list[Row]:
    """Return every cell of method, task, length and depth, also of an old record; none if it was not measured."""
    cells = document.get("retrieval") or []
    return list(cells) if isinstance(cells, list) else [_row_of_old(row) for row in cells.get("results") or []]


def retrieval_details(document: Document) -> Row:
    """Return protocol, means, distances and sentences; empty if retrieval was not measured."""
    details = document.get("retrieval")
    if not isinstance(details, dict):
        return dict(document.get("retrieval_details") or {})
    means = []
    rows = retrieval_rows(document)
    for key in dict.fromkeys((row["method"], row["task"], row["length"]) for row in rows):
        of_key = [row for row in rows if (row["method"], row["task"], row["length"]) == key]
        counts = sum(row["found"] for row in of_key), sum(row["asked"] for row in of_key)
        if counts[1]:
            together = Accuracy.independent(*counts, of_key[0]["chance"])
            means.append({**dict(zip(("method", "task", "length"), key, strict=True)), **together.to_json()})
    return {**details, "means": means}


def _row_of_old(row: Row) -> Row:
    """Return a cell of a record in which each text has one question."""
    return {
        **{name: row[name] for name in ("method", "task", "length", "depth", "chance")},
        "asked": row["n"],
        "found": row["correct"],
        "interval": row["ci"],
    }


def retrieval_drawings(document: Document) -> Iterator[Drawing]:
    """Yield the heat maps and the curves by distance of each task; none if retrieval was not measured.

    A map needs at least 20 answers in each of its cells, or an old record.
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
    """Return a cell's depth as text: 0.5, or 0.2 to 0.4."""
    part = row.get("depths")
    return f"{row['depth']:g}" if part is None else f"{part[0]:g} to {part[1]:g}"


def _file(task: str, *more: str) -> str:
    return "-".join(["retrieval", *([re.sub(r"[^a-z0-9_]+", "-", task.lower())] if task else []), *more])


def _heat(document: Document, rows: Sequence[Row], names: dict[Any, str], key: str, task: str) -> Drawing:
    """Return a heat map: a panel for each method, a row for each depth or task, a column for each length."""
    from ropewalk.figures.use import heat_map

    cells = {(row["method"], row[key], row["length"]): row["found"] / row["asked"] for row in rows}
    lengths = sorted({row["length"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows))
    title = f"Retrieval: {printable(task)}" if task else "Retrieval: tasks without a depth"
    return Drawing(
        _file(task),
        "Share of right answers by length of the text"
        + (" and depth of the needle (0: at the beginning, furthest from the question)." if task else "."),
        f"{title}. Heat maps of accuracy for {', '.join(methods)} at {', '.join(f'{n:,}' for n in lengths)} tokens; "
        f"the lowest cell is {min(cells.values()):.2f}. The table below has the numbers.",
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
    """Return the accuracy of guessing; None if it differs between rows."""
    chances = {round(row["chance"], 9) for row in rows}
    return chances.pop() if len(chances) == 1 else None


def _curves(document: Document, rows: Sequence[Row], task: str) -> Drawing:
    """Return accuracy by distance: a panel for each of the longest lengths, a line for each method."""
    from ropewalk.figures.use import MeasuredValue, accuracy_by_distance

    lengths = sorted({row["length"] for row in rows})[-_LONGEST:]
    curves: dict[int, dict[str, dict[float, MeasuredValue]]] = {length: {} for length in lengths}
    for row in rows:
        if row["length"] in curves:
            share = MeasuredValue(row["found"] / row["asked"], row["interval"] and tuple(row["interval"]))
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
        "Share of right answers by the distance from the end of the question back to the needle.",
        f"{title}, in texts of {', '.join(f'{n:,}' for n in lengths)} tokens. At the largest distance of the longest: "
        + "; ".join(f"{method} {value:.2f}" for method, value in last.items())
        + ". The table below has the numbers.",
        draw(False),
        draw(True),
    )


def retrieval_table(document: Document) -> Table | None:
    """Return each method's right answers by task and length, calibrated and raw; None if nothing was measured."""
    means = [row for row in retrieval_details(document).get("means") or [] if row["task"] is not None]
    if not means:
        return None
    lengths, calibrates = sorted({row["length"] for row in means}), any("found_raw" in row for row in means)
    rows = []
    for method, task in dict.fromkeys((row["method"], row["task"]) for row in means):
        by_length = {row["length"]: row for row in means if (row["method"], row["task"]) == (method, task)}
        cells = [cell for length in lengths for cell in _shares(by_length.get(length), calibrates)]
        rows.append([method, str(task), *cells, f"{max(row['chance'] for row in by_length.values()):.3g}"])
    by_length_heads = [
        head
        for length in lengths
        for head in ([f"{length:,} tokens, calibrated", f"{length:,}, raw"] if calibrates else [f"{length:,} tokens"])
    ]
    title = f"Right answers; in brackets the {CONFIDENCE:.0%} interval. Raw: without calibration"
    return Table(title, ["method", "task", *by_length_heads, "chance"], rows, best=document["recommended"])


def paired_table(document: Document) -> Table | None:
    """Return the share that each method finds more than crop, paired by question; None if that was not measured."""
    paired = retrieval_details(document).get("more_than_crop") or []
    rows = [
        [
            row["method"],
            str(row["task"]),
            f"{row['length']:,}",
            signed(row["difference"], row["interval"]),
            signed(row["difference_raw"], row["interval_raw"]),
            f"{row['asked']:,}",
        ]
        for row in paired
    ]
    heads = ["method", "task", "tokens", "calibrated", "raw", "questions"]
    title = f"Share found, minus crop's share of the same questions, with the {CONFIDENCE:.0%} interval"
    return Table(title, heads, rows, best=document["recommended"]) if rows else None


def distance_table(document: Document) -> Table | None:
    """Return the right answers by distance of the needle; None if that was not measured."""
    measured = retrieval_details(document).get("by_distance") or []
    if not measured:
        return None
    methods, calibrates = (
        list(dict.fromkeys(row["method"] for row in measured)),
        any("found_raw" in r for r in measured),
    )
    cells: dict[tuple[str, int, tuple[float, float]], dict[str, Row]] = {}
    for row in measured:
        cells.setdefault((row["task"], row["length"], tuple(row["distances"])), {})[row["method"]] = row
    rows = [
        [
            str(task),
            f"{length:,}",
            f"{low:,.0f} to {high:,.0f}",
            *(cell for method in methods for cell in _shares(of_methods.get(method), calibrates)),
        ]
        for (task, length, (low, high)), of_methods in cells.items()
    ]
    heads = [head for method in methods for head in ([method, f"{method}, raw"] if calibrates else [method])]
    return Table("Right answers by distance", ["task", "tokens", "distance", *heads], rows)


def _shares(row: Row | None, calibrates: bool) -> list[str]:
    """Return right answers with their interval, 0.75 [0.47, 0.91] (18 of 24), and if `calibrates` the raw ones."""
    if row is None:
        return ["", ""] if calibrates else [""]
    raw = row.get("found_raw")
    interval = "" if row["interval"] is None else "[{:.2f}, {:.2f}] ".format(*row["interval"])
    shown = f"{row['found'] / row['asked']:.2f} {interval}({row['found']} of {row['asked']})"
    bare = "" if raw is None else f"{raw / row['asked']:.2f} ({raw})"
    return [shown, bare] if calibrates else [shown]
