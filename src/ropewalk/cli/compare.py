"""`ropewalk compare`: the same decoder with each encoding, measured far beyond its trained length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.cli.options import Overrides
from ropewalk.comparison import CompareSettings
from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ropewalk.comparison import Row
    from ropewalk.progress import ProgressBar


def compare(
    *,
    settings: Overrides[CompareSettings],
    out: Annotated[
        Path,
        typer.Option(help="Folder of the runs; the same command resumes them.", rich_help_panel="Run"),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Four encodings, one seed; takes minutes.", rich_help_panel="Run")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="All encodings, three seeds, longer; takes a few nights.", rich_help_panel="Run"),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes of one thread [default: one for each core].", rich_help_panel="Run"),
    ] = None,
) -> None:
    """Train one decoder with each encoding on one text, and measure its loss at 1 to 16 times that length.

    Without --quick or --full it takes about an hour on two cores. To resume, rerun the command. The record is
    OUT/results.jsonl.
    """
    from rich.console import Console

    from ropewalk.comparison import PRESETS, packaged_text
    from ropewalk.comparison import compare as run
    from ropewalk.comparison.record import read_record
    from ropewalk.processes import current
    from ropewalk.progress import ProgressBar

    if quick and full:
        raise RopeError("compare: --quick and --full are mutually exclusive.", cure="Pass one of them.")
    if workers is not None and workers < 1:
        raise RopeError(
            "compare: --workers must be at least 1.", facts={"workers": workers}, cure="Leave out --workers."
        )
    defaults = PRESETS["quick" if quick else "full" if full else "hour"]
    if "text" not in settings.values:
        defaults = {**defaults, "text": (str(packaged_text(out)),)}
    chosen = settings.over(defaults)
    console = Console()
    try:
        with ProgressBar("compare", total=len(chosen.jobs)) as bar:
            record = run(chosen, out, workers=workers, report=RunProgress(bar))
    except KeyboardInterrupt:
        typer.echo("compare: stopped. To resume from the last checkpoints, rerun the command.", err=True)
        raise typer.Exit(130) from None
    if not current().is_first:
        return
    _show(console, *read_record(record))
    console.print(f"Record: {record}", highlight=False, markup=False, soft_wrap=True)


def _show(console: Console, first: dict[str, Any], lines: Sequence[dict[str, Any]]) -> None:
    """Print the losses and their rise over the trained length."""
    from rich.text import Text

    from ropewalk.comparison import summarise

    trained = first["settings"]["seq_len"]
    rows = summarise(lines, trained)
    for table in (
        *_tables(console, "Loss, nats per token, by length of the window", rows, rise=False),
        *_tables(console, f"Rise in loss over {trained:,} tokens, the trained length", rows, rise=True),
    ):
        console.print(table)
    count = len(first["settings"]["seeds"])
    if count > 1:
        console.print(Text(f"Mean of {count} seeds and half of the 95 % t interval."))


def _tables(console: Console, title: str, rows: Sequence[Row], *, rise: bool) -> list[Table]:
    """Return tables of the losses, or of their rise, by encoding and length."""
    from ropewalk.cli.tables import stacked

    lengths = sorted({row.length for row in rows})[int(rise) :]
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        mean, band = (row.rise, row.rise_interval) if rise else (row.loss, row.interval)
        name = row.encoding if row.scaling is None else f"{row.encoding}, {row.scaling}"
        shown = "no value" if mean is None else f"{round(mean, 3) + 0.0:{'+' if rise else ''}.3f}"
        cells.setdefault(name, {})[row.length] = shown + ("" if band is None else f"±{(band[1] - band[0]) / 2:.3f}")
    lines = {name: [by_length.get(length, "") for length in lengths] for name, by_length in cells.items()}
    return stacked(console, title, [(f"{length:,}", "bold") for length in lengths], lines, names="encoding")


class RunProgress:
    """Display the runs of a comparison: a bar for each and one for all, or lines if there is no terminal."""

    def __init__(self, bar: ProgressBar) -> None:
        self.bar = bar
        self.running: set[str] = set()

    def __call__(self, encoding: str, seed: int, step: int, steps: int, facts: dict[str, Any]) -> None:
        """Show one report of a run; see `ropewalk.comparison.run.RunReport`."""
        name = f"{encoding}, seed {seed}"
        if facts.get("done"):
            self._end(name)
            return
        if name not in self.running:
            self.running.add(name)
            self.bar.begin(name, steps, key=name)
        self.bar.advance_to(step, key=name)
        if facts.get("measuring"):
            self.bar.note("measuring", key=name)
        elif "loss" in facts:
            self.bar.note(f"loss {facts['loss']:.2f}", key=name)

    def _end(self, name: str) -> None:
        if name in self.running:  # it may have run in another process
            self.running.remove(name)
            self.bar.end(name)
        self.bar.advance(1)
        if not self.bar.console.is_terminal:
            self.bar.line(f"compare: {name} is done")
