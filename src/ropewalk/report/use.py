"""The use of far tokens in the report: the figure, and the numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ropewalk.measure.copy_test import span_of
from ropewalk.report.drawing import Drawing
from ropewalk.report.record import Document, short_name
from ropewalk.report.tables import Table
from ropewalk.statistics import signed

Row = dict[str, Any]


def rows_of(document: Document) -> list[Row]:
    """What was measured of the use of far tokens; nothing in a record of old."""
    return list(document.get("use") or [])


def used_span(document: Document, method: str) -> str:
    """Where a method is shown to use far tokens, in a few words; empty where that is not shown."""
    copies = [row for row in rows_of(document) if (row["method"], row["test"]) == (method, "copy")]
    copies = sorted((row for row in copies if not row.get("control")), key=lambda row: row["distance"])
    shown = [row["distance"] for row in copies if row["interval"] and row["interval"][0] > (row["needed"] or math.inf)]
    return span_of(shown, [row["distance"] for row in copies])


def use(document: Document) -> Iterator[Drawing]:
    """Yield the gain by distance; nothing if the copy test was not measured.

    Rows of other tests, which old records contain, are in the table only.
    """
    from ropewalk.figures.use import Gain, gain_by_distance

    rows = [row for row in rows_of(document) if row["test"] == "copy"]
    far, control = ([row for row in rows if bool(row.get("control")) == within] for within in (False, True))
    if not far:
        return
    copies: dict[str, dict[int, Any]] = {}
    for row in sorted(far, key=lambda row: row["distance"]):
        gain = Gain(row["gain"], None if row["interval"] is None else tuple(row["interval"]))
        copies.setdefault(row["method"], {})[row["distance"]] = gain
    needed = next((row["needed"] for row in far if row.get("needed") is not None), None)
    within = {row["distance"]: Gain(row["gain"], None) for row in control}

    def draw(narrow: bool) -> Any:
        return gain_by_distance(
            copies,
            trained_length=document["trained_length"],
            control=within,
            needed=needed,
            recommended=document["recommended"],
            title="Use of far tokens" if narrow else f"{short_name(document)}: use of far tokens",
            narrow=narrow,
        )

    yield Drawing(
        "use",
        "How much lower the loss of the same tokens is when what they repeat stands far back than when it does not. "
        "Zero beyond the trained length (shaded): what stands there is not used.",
        "Gain in nats per token by distance: "
        + "; ".join(f"{row['method']} at {row['distance']:,}: {row['gain']:.3f}" for row in far)
        + ".",
        draw(False),
        draw(True),
    )


def use_table(document: Document) -> Table | None:
    """Every gain with its interval; None where nothing was measured."""
    rows = rows_of(document)
    if not rows:
        return None
    cells = [
        [
            f"{row['method']}, control" if row.get("control") else row["method"],
            row["test"],
            f"{row['distance']:,}",
            signed(row["gain"], None if row["interval"] is None else tuple(row["interval"])),
        ]
        for row in rows
    ]
    heads = ["method", "test", "tokens back", "gain"]
    return Table("Use of far tokens: gain in nats per token", heads, cells, best=document["recommended"])
