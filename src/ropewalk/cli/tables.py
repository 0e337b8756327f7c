"""Shared output of several commands, printed with rich: audit, lint, and tables that fit the console."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ropewalk.audit.findings import Finding

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def print_findings(name: str, rows: Mapping[str, str], findings: Sequence[Finding], none: str) -> None:
    """Print rows and findings under a name; `none` is the sentence for no findings."""
    from rich.text import Text

    from ropewalk.progress import plain_console

    console, wide = plain_console(), max(map(len, rows), default=0) + 4
    console.print(Text(name, style="bold"))
    for row, value in rows.items():
        lines = textwrap.wrap(value, max(console.width - wide, 20), break_long_words=False, break_on_hyphens=False)
        console.print(Text(f"  {row.replace('_', ' '):<{wide - 2}}" + f"\n{'':{wide}}".join(lines)), soft_wrap=True)
    for line in [finding_line(each) for each in findings] or [Text(none)]:
        line.pad_left(2)
        console.print(line)


def finding_line(finding: Finding) -> Text:
    """Return one finding of the lint, with its severity in colour."""
    from rich.text import Text

    where = f" ({finding.layer_type})" if finding.layer_type else ""
    line = Text(f"{finding.severity} {finding.code}{where}: ", style=_COLORS[finding.severity])
    return line.append(f"{finding.message} {finding.cure}", style="default")


def stacked(console: Console, rows: Mapping[str, Mapping[str, str]], best: str | None = None) -> list[Table]:
    """Return one table, or several if the columns do not fit into the width of the console.

    `rows`: the cells of each by the heads of their columns, by a key; that of `best` is green. The first column is in
    every table. Cells of a column that does not fit next to it are folded, so numbers are never cut.
    """
    from rich.box import SIMPLE_HEAD
    from rich.measure import Measurement as Width
    from rich.table import Table

    first, *heads = next(iter(rows.values()))

    def table(start: int, end: int) -> Table:
        made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        made.add_column(first, overflow="fold")
        for head in heads[start:end]:
            made.add_column(head, justify="right", overflow="fold")
        for key, cells in rows.items():
            shown = [cells[head] for head in (first, *heads[start:end])]
            made.add_row(*shown, style="bold green" if key == best else None)
        return made

    unlimited = console.options.update(max_width=10_000)
    tables, start = [], 0
    while start < len(heads):
        end = start + 1
        while end < len(heads) and Width.get(console, unlimited, table(start, end + 1)).maximum <= console.width:
            end += 1
        tables.append(table(start, end))
        start = end
    return tables
