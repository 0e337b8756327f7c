"""`ropewalk doctor`: how far a checkpoint's context reaches, and what would extend it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.cli.options import command_line
from ropewalk.diagnosis.settings import DoctorSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.diagnosis.record import Diagnosis

_COLORS = {"extend": "green", "keep": "green", "cut": "yellow", "undecided": "yellow", "unfit": "red"}


def doctor(
    *,
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".')
    ] = "tiny",
    settings: DoctorSettings,
    depth: Annotated[
        bool,
        typer.Option(
            "--map",
            help="Instead of an answer, print which facts are found by the length of the text and their place in it, at"
            " four lengths up to the target, unchanged and under --methods [default: the first].",
            rich_help_panel="Measurement",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all results to this file.", rich_help_panel="Results")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write index.html and figures into this folder.", rich_help_panel="Results")
    ] = None,
) -> None:
    """Measure how far a checkpoint's context really reaches, and what would extend it."""

    from ropewalk.atomic_io import check_output
    from ropewalk.diagnosis.depth import DepthMap, map_under
    from ropewalk.diagnosis.prepare import prepare
    from ropewalk.diagnosis.run import RunInterrupted
    from ropewalk.processes import current
    from ropewalk.progress import plain_console, shown
    from ropewalk.statistics import counted

    if json_file is not None:
        check_output(json_file)
    record = json_file
    if report is not None:
        from ropewalk.diagnosis.page import RECORD, check_folder, write_report

        check_folder(report, "map" if depth else "facts")
        record = record or report / RECORD
    status = 0
    kept = [*(["--json", str(json_file)] if json_file else []), *(["--report", str(report)] if report else [])]
    try:
        with shown("doctor", None, lines=current().is_first) as display:
            found: Diagnosis | DepthMap
            if depth:
                found = map_under(model, settings, display, kept=kept)
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
    if not current().is_first:
        return
    command = command_line(context, leave_out=("json_file", "report", "resume", "state"))
    found = dataclasses.replace(found, environment={**found.environment, "command": command})
    if json_file is not None:
        found.to_json(json_file)
    page = None if report is None else write_report(report, found)
    console = plain_console()
    if isinstance(found, DepthMap):
        console.file.write(f"{found}\n")
    else:
        print_diagnosis(console, found)
    if page is not None:
        console.file.write(f"Report: {shlex.quote(str(page))}\n")
    if status:
        raise typer.Exit(status)


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print the strip of facts, the table with its terms, the answer, the config's findings, and what to run next."""
    from rich.text import Text

    from ropewalk.cli.tables import stacked
    from ropewalk.diagnosis.page import strip_rows
    from ropewalk.figures.strip import strip_text

    strip, (heads, rows) = strip_text(strip_rows(diagnosis), diagnosis.target), diagnosis.rows()
    if not console.options.ascii_only and max(map(len, strip)) <= console.width:
        console.file.write("\n".join([*strip, "\n"]))
    best = diagnosis.labels.get(diagnosis.verdict.method or "")
    for table in stacked(console, heads[1:], {row[0]: row[1:] for row in rows}, best, names=heads[0]):
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
