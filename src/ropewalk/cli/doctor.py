"""`ropewalk doctor`: how far a checkpoint's context reaches, and what would extend it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.cli.options import MODEL, command_line, path, tokens
from ropewalk.diagnosis.settings import DTYPES, DoctorSettings
from ropewalk.serving.engines import RUNNERS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ropewalk.diagnosis.depth import DepthMap
    from ropewalk.diagnosis.record import Diagnosis

_COLORS = {"extend": "green", "keep": "green", "cut": "yellow", "undecided": "yellow", "unfit": "red"}


def doctor(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)] = "tiny",
    target: Annotated[
        int | None,
        tokens("Desired length [default: four times the trained length; less if the text or the minutes are too few]."),
    ] = None,
    trained_length: Annotated[
        int | None, tokens("Trained length; overrides the config and the table of families.")
    ] = None,
    text: Annotated[
        list[Path] | None,
        path(
            "Text to measure on: a UTF-8 file (plain or gzipped) or a folder; repeatable [default: passages of books "
            "and code].",
            metavar="FILE",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            metavar="NAMES",
            help='Extension methods, separated by commas; "all" includes those in attention [default: the first three '
            "of yarn, llama3, dca and ntk that the engine runs].",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"Engine for the model: {', '.join(RUNNERS)}. The best method that it runs is recommended [default: "
            "the best of all, and the best for engines]."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="End after this many minutes with the best answer so far [default: 10 on a CPU]."),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(help="Most windows of text to read [default: up to 8, until the answer stands].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the windows and of the facts.")] = 0,
    depth: Annotated[
        bool,
        typer.Option(
            "--map",
            help="Instead of an answer, print which facts are found by the length of the text and their place in it, at"
            " four lengths up to the target, unchanged and under --methods [default: the first].",
        ),
    ] = False,
    dtype: Annotated[
        str, typer.Option(help=f"Dtype of the weights: {', '.join(DTYPES)}; auto is bfloat16 if that is fast here.")
    ] = "float32",
    device: Annotated[
        str, typer.Option(help="Device to compute on: cpu, cuda, ...; auto spreads the layers over all devices.")
    ] = "cpu",
    json_file: Annotated[Path | None, path("Write all results to this file.", "--json")] = None,
    report: Annotated[Path | None, path("Write index.html and figures into this folder.")] = None,
    state: Annotated[
        Path | None, path("Folder of the saved results [default: in the user's cache].", metavar="FOLDER")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the same run.")] = False,
) -> None:
    """Measure how far a checkpoint's context really reaches, and what would extend it."""
    from ropewalk.atomic_io import check_output
    from ropewalk.diagnosis.record import Diagnosis
    from ropewalk.diagnosis.run import RunInterrupted, prepare
    from ropewalk.progress import plain_console, shown
    from ropewalk.statistics import counted

    settings = DoctorSettings(
        target=target, trained_length=trained_length, text=text or None, methods=methods or None, engine=engine,
        minutes=minutes, windows=windows, seed=seed, dtype=dtype, device=device, state=state, resume=resume,
    )  # fmt: skip
    if json_file is not None:
        check_output(json_file)
    record = json_file
    if report is not None:
        from ropewalk.diagnosis.page import FIGURES, MAP, RECORD, check_folder, write_report

        check_folder(report, MAP if depth else FIGURES)
        record = record or report / RECORD
    status = 0
    kept = [*(["--json", str(json_file)] if json_file else []), *(["--report", str(report)] if report else [])]
    try:
        with shown("doctor", None, lines=True) as display:
            found: Diagnosis | DepthMap
            if depth:
                from ropewalk.diagnosis.depth import depth_map

                found = depth_map(model, settings, progress=display, kept=kept)
            else:
                found = prepare(model, settings, display, kept=kept, record=record).measure(display)
    except RunInterrupted as stop:
        sys.stderr.write(
            f"\nStopped: {counted(stop.kept, 'result')} saved, {stop.due} missing. "
            "To resume, rerun the command with --resume.\n"
        )
        if stop.diagnosis is None:
            raise typer.Exit(130) from None
        found, status = stop.diagnosis, 130
    command = command_line(context, leave_out=("json_file", "report", "resume", "state"))
    found = dataclasses.replace(found, environment={**found.environment, "command": command})
    if json_file is not None:
        found.to_json(json_file)
    page = None if report is None else write_report(report, found)
    console = plain_console()
    if isinstance(found, Diagnosis):
        print_diagnosis(console, found)
    else:
        console.file.write(f"{found}\n")
    if page is not None:
        console.file.write(f"Report: {shlex.quote(str(page))}\n")
    raise typer.Exit(status)


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print the strip of facts, the table with its terms, the answer, the config's findings, and what to run next."""
    from rich.text import Text

    from ropewalk.diagnosis.page import strip_rows
    from ropewalk.figures.report import strip_text

    strip = strip_text(strip_rows(diagnosis), diagnosis.target)
    if not console.options.ascii_only and max(map(len, strip)) <= console.width:
        console.file.write("\n".join([*strip, "\n"]))
    for table in stacked(console, diagnosis.rows(), diagnosis.verdict.method):
        console.print(table)
    console.print(Text(f"{diagnosis.terms()}\n"))
    verdict = diagnosis.verdict
    line = Text(f"{diagnosis.name}: ", style="bold")
    line.append(verdict.headline, style=_COLORS[verdict.action])
    console.print(line.append(f" {' '.join(verdict.reasons)}", style="not bold"))
    for finding in diagnosis.inspection["lint"]:
        if finding["severity"] != "note":
            console.print(Text(f"{finding['severity']} {finding['code']}: {finding['message']} {finding['cure']}"))
    for one in diagnosis.following:  # as it is, because rich would change tabs in a path
        console.file.write(f"{one}\n")


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
