"""What the doctor prints: the audit, the lint and the table of losses, by rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.audit.audit import Audit
from ropewalk.audit.findings import Finding
from ropewalk.audit.sentences import audit_sentences
from ropewalk.diagnosis.measurement import Measurement
from ropewalk.diagnosis.standings import standing_rows
from ropewalk.diagnosis.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
_MOST_COLUMNS = 8


def print_inspection(console: Console, name: str, audits: Sequence[Audit], findings: Sequence[Finding]) -> None:
    """The audit of each rope, then the lint."""
    from rich.text import Text

    console.print(Text(name, style="bold"))
    for found in audits:
        for sentence in audit_sentences(found):
            console.print(Text(f"  {sentence}"))
    if not findings:
        console.print(Text("  Lint: no known trap in the config."))
    for finding in findings:
        where = f" ({finding.layer_type})" if finding.layer_type else ""
        line = Text("  ")
        line.append(f"{finding.severity} {finding.code}{where}: ", style=_COLORS[finding.severity])
        line.append(f"{finding.message} {finding.cure}")
        console.print(line)


def loss_tables(measurement: Measurement, console: Console, verdict: Verdict) -> list[Table]:
    """Losses in nats per token: every method by block (neighbours joined, eight columns at most)."""
    protocol = measurement.protocol
    groups = _groups(len(protocol.blocks))
    heads = []
    for group in groups:
        start, end = protocol.blocks[group[0]][0], protocol.blocks[group[-1]][1]
        style = "bold yellow" if start >= protocol.trained_length else "bold"
        heads.append((f"{_short(start)}-\n{_short(end)}", style))
    rows = {name: [f"{measurement.mean_over(name, group):.2f}" for group in groups] for name in measurement.results}
    return stacked(console, "Loss by position, nats per token", heads, rows, verdict.method)


def difference_tables(measurement: Measurement, console: Console, verdict: Verdict) -> list[Table]:
    """Each method within and beyond the trained length, and its paired differences to plain with their intervals."""
    title = f"Within and beyond the trained length of {measurement.protocol.trained_length:,} tokens"
    names, rows = standing_rows(measurement)
    heads = [(name, "bold") for name in names]
    return stacked(console, title, heads, rows, verdict.method)


def stacked(
    console: Console,
    title: str,
    heads: Sequence[tuple[str, str]],
    rows: Mapping[str, Sequence[str]],
    best: str | None = None,
    *,
    names: str = "method",
) -> list[Table]:
    """One table, or several one above the other, each with as many of the columns as the console is wide.

    Where not even one column fits beside the names, its cells are folded: a number is never cut.
    """
    from rich.measure import Measurement as Width

    def table(start: int, end: int) -> Table:
        cells = {name: row[start:end] for name, row in rows.items()}
        return _table(None if start else title, names, heads[start:end], cells, best)

    unlimited = console.options.update(max_width=10_000)
    tables, start = [], 0
    while start < len(heads):
        end = start + 1
        while end < len(heads) and Width.get(console, unlimited, table(start, end + 1)).maximum <= console.width:
            end += 1
        tables.append(table(start, end))
        start = end
    return tables


def _table(
    title: str | None,
    names: str,
    heads: Sequence[tuple[str, str]],
    rows: Mapping[str, Sequence[str]],
    best: str | None,
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column(names, overflow="fold")
    for head, style in heads:
        table.add_column(head, justify="right", header_style=style, overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *cells, style="bold green" if name == best else None)
    return table


def _groups(blocks: int) -> list[range]:
    """Neighbouring blocks joined so that at most eight columns remain.

    >>> [list(group) for group in _groups(3)], len(_groups(16)), len(_groups(17))
    ([[0], [1], [2]], 8, 6)
    """
    width = -(-blocks // _MOST_COLUMNS)
    return [range(start, min(start + width, blocks)) for start in range(0, blocks, width)]


def _short(length: int) -> str:
    """Tokens as a column head shows them: 512, 2k, 1.5k."""
    return f"{length / 1024:g}k" if length >= 1024 and length % 256 == 0 else str(length)
