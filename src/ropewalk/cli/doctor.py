"""`ropewalk doctor`: how far a checkpoint's context reaches, and what would extend it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.diagnosis.settings import DoctorSettings


def doctor(
    *,
    context: typer.Context,
    model: Annotated[str, typer.Argument(help='A Hugging Face folder, a .gguf file, or "tiny".')] = "tiny",
    settings: DoctorSettings,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write index.html and figures into this folder.")] = None,
) -> None:
    """Measure how far a checkpoint's context really reaches, and what would extend it."""
    from rich.console import Console

    from ropewalk.atomic_io import check_writable, write_whole
    from ropewalk.cli.command_line import command_line
    from ropewalk.cli.doctor_output import print_losses, print_plan, print_retrieval
    from ropewalk.cli.progress import ProgressBar
    from ropewalk.diagnosis.doctor import RunInterrupted, prepare
    from ropewalk.report.write import check_folder, write_report

    if json_file is not None:
        check_writable(json_file)
    if report is not None:
        check_folder(report)
    console, run = Console(), prepare(model, settings)
    print_plan(console, run)
    try:
        with run.at_work():
            with ProgressBar("doctor", total=sum(job.tokens for job in run.plan.due(run.ledger))) as progress:
                measurement = run.measure_losses(progress)
            print_losses(console, measurement)
            accuracies = None
            if run.retrieval is not None:
                with ProgressBar("doctor", total=sum(one.cell.length for one in run.retrieval.due)) as progress:
                    accuracies = run.measure_retrieval(progress)
            if accuracies is not None:
                print_retrieval(console, accuracies)
    except RunInterrupted as stop:
        sys.stderr.write(
            f"\nStopped: {stop.kept} {stop.kind} are kept, {stop.due} are due. "
            "Run the same command with --resume to go on.\n"
        )
        raise typer.Exit(130) from None
    document = run.diagnosis(measurement, accuracies).to_json()
    words = command_line(context, leave_out=("json_file", "report", "resume", "state"))
    document["environment"]["command"] = words
    if json_file is not None:
        write_whole(json_file, json.dumps(document, indent=1, allow_nan=False) + "\n")
    if report is not None:
        console.print(f"Report: {write_report(report, document)}", markup=False, highlight=False, soft_wrap=True)
