"""`ropewalk doctor`: how far a checkpoint's context reaches, and what would extend it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.diagnosis.settings import DoctorSettings


def doctor(
    *,
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny".'),
    ] = "tiny",
    settings: DoctorSettings,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write index.html and figures into this folder.")] = None,
) -> None:
    """Measure how far a checkpoint's context really reaches, and what would extend it."""
    from rich.console import Console

    from ropewalk.atomic_io import check_writable
    from ropewalk.cli.command_line import command_line
    from ropewalk.cli.doctor_output import print_diagnosis
    from ropewalk.diagnosis.doctor_run import RunInterrupted
    from ropewalk.diagnosis.prepare import prepare
    from ropewalk.processes import current
    from ropewalk.readers.sharded import sharing_windows
    from ropewalk.report.write import RECORD, check_folder, write_report

    if json_file is not None:
        check_writable(json_file)
    if report is not None:
        check_folder(report)
    try:
        with sharing_windows(settings.together):
            found = prepare(model, settings).measure()
    except RunInterrupted as stop:
        sys.stderr.write(
            f"\nStopped: {stop.kept} {stop.kind} are kept, {stop.due} are due. "
            "Run the same command with --resume to go on.\n"
        )
        raise typer.Exit(130) from None
    if not current().is_first:
        return
    command = command_line(context, leave_out=("json_file", "report", "resume", "state"))
    found = dataclasses.replace(found, environment={**found.environment, "command": command})
    document = found.to_json(json_file)
    page = None if report is None else write_report(report, document)
    console, written = Console(), None if report is None else report / RECORD
    print_diagnosis(console, found, model=model, trained_length=settings.trained_length, record=json_file or written)
    if page is not None:
        console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)
