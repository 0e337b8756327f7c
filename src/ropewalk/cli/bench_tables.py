"""What `ropewalk bench` prints: the bounds, and the share of copy bandwidth by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.bench.record import Record
from ropewalk.bench.rows import Outcome, judge, rows_for
from ropewalk.bench.summary import Curve

if TYPE_CHECKING:
    from rich.table import Table


def bounds_table(records: Sequence[Record]) -> Table:
    """Each bound with its measured ratio, and whether it holds; not judged where the shapes are not the bounds' own."""
    first = records[0]
    judged = first["preset"] != "quick"
    table = _table("Bounds: ratios of medians" if judged else "Ratios of medians; the shapes are too small to judge")
    for head in ("measure", "against"):
        table.add_column(head, overflow="fold")
    for head in ("measured", "at most", ""):
        table.add_column(head, justify="right", no_wrap=True)
    for outcome in judge(rows_for(first["place"]), records):
        row, unit = outcome.row, "" if outcome.row.against else " µs"
        value = "-" if outcome.value is None else f"{outcome.value:.2f}{unit}"
        against = ", ".join(name.removeprefix("ropewalk, ") for name in row.against) or "the clock"
        table.add_row(row.name, against, value, f"{row.at_most:.2f}{unit}", _verdict(outcome, judged))
    return table


def share_tables(shares: Mapping[str, Mapping[str, Curve]]) -> list[Table]:
    """For each dtype: the contenders by rows, tokens by columns, the copy's speed as 100 %."""
    tables = []
    for dtype, curves in shares.items():
        sizes = sorted({tokens for curve in curves.values() for tokens, _ in curve})
        table = _table(f"Share of copy bandwidth, {dtype}, by tokens")
        table.add_column("", overflow="fold")
        for size in sizes:
            table.add_column(f"{size:,}", justify="right", no_wrap=True)
        for name, curve in curves.items():
            found = dict(curve)
            table.add_row(name, *(f"{found[size]:.0%}" if size in found else "-" for size in sizes))
        tables.append(table)
    return tables


def _verdict(outcome: Outcome, judged: bool) -> str:
    if outcome.holds is None:
        return "[yellow]not measured[/]"
    if not judged:
        return ""
    return "[green]pass[/]" if outcome.holds else "[bold red]fail[/]"


def _table(title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
