"""`ropewalk doctor`: how far a checkpoint's context reaches, and what would extend it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.cli.options import Overrides, command_line
from ropewalk.diagnosis.settings import FILE_ONLY, DoctorSettings, Protocol, read_protocol

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.diagnosis.document import Diagnosis

_COLORS = {"extend": "green", "keep": "green", "cut": "yellow", "undecided": "yellow", "unfit": "red"}


def doctor(
    *,
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".'),
    ] = "tiny",
    settings: DoctorSettings,
    options: Overrides[Protocol],
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"JSON or TOML file, or JSON text, with fields of the protocol: {', '.join(FILE_ONLY)}.",
            rich_help_panel="Measurement",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all results to this file.", rich_help_panel="Results")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write index.html and figures into this folder.", rich_help_panel="Results")
    ] = None,
) -> None:
    """Measure how far a checkpoint's context really reaches, and what would extend it."""
    from rich.console import Console

    from ropewalk.atomic_io import check_output
    from ropewalk.diagnosis.prepare import prepare
    from ropewalk.diagnosis.run import RunInterrupted
    from ropewalk.processes import current
    from ropewalk.progress import shown
    from ropewalk.report.write import RECORD, check_folder, write_report

    chosen = options.over({} if protocol is None else read_protocol(protocol))
    settings = dataclasses.replace(settings, protocol=chosen)
    if json_file is not None:
        check_output(json_file)
    if report is not None:
        check_folder(report)
    status = 0
    kept = [*(["--json", str(json_file)] if json_file else []), *(["--report", str(report)] if report else [])]
    try:
        with shown("doctor", None, lines=current().is_first) as display:
            found = prepare(model, settings, display, kept=kept).measure(display)
    except RunInterrupted as stop:
        sys.stderr.write(
            f"\nStopped: {stop.kept} {stop.kind} are saved, {stop.due} are missing. "
            "To resume, rerun the command with --resume.\n"
        )
        if stop.diagnosis is None:
            raise typer.Exit(130) from None
        found, status = stop.diagnosis, 130
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
    if status:
        raise typer.Exit(status)


def print_diagnosis(
    console: Console,
    found: Diagnosis,
    *,
    model: str,
    trained_length: int | None = None,
    record: Path | None = None,
) -> None:
    """Print the verdict, the evidence, and the next command; arguments as for `Diagnosis.next_command`."""
    from ropewalk.cli.tables import SEVERITIES, finding_line

    print_verdict(console, found)
    print_table(console, found)
    print_methods(console, found)
    for finding in found.findings:
        if finding.severity != SEVERITIES[-1]:
            console.print(finding_line(finding))
    print_next(console, found, found.next_command(model=model, trained_length=trained_length, record=record))


def print_verdict(console: Console, found: Diagnosis) -> None:
    """Print the verdict's headline, its reasons, and sentences about work that was left out."""
    from rich.text import Text

    verdict = found.verdict
    line = Text(f"{found.name}: ", style="bold")
    line.append(verdict.headline, style=_COLORS[verdict.action])
    console.print(line.append(f" {' '.join(verdict.reasons)}" if verdict.reasons else "", style="not bold"))
    for said in (*(() if found.reading is None else (found.reading.sentence,)), *found.left_out):
        console.print(Text(said))
    if verdict.beside is not None:
        console.print(Text(f"Alternative: {verdict.beside.sentence} {verdict.beside.call}".rstrip()))


def print_table(console: Console, found: Diagnosis) -> None:
    """Print a table with every method's losses, differences, and how far it copies."""
    from rich.text import Text

    from ropewalk.cli.tables import stacked
    from ropewalk.diagnosis.document import standing_rows

    measurement, protocol = found.measurement, found.measurement.protocol
    heads, rows = standing_rows(found)
    best = next((label for label in rows if label.split(" ")[0] == found.verdict.method), None)
    title = f"Loss within and beyond {protocol.trained_length:,} tokens, nats per token"
    console.print(Text(f"\n{title}", style="bold"))
    for table in stacked(console, None, [(head, "bold") for head in heads], rows, best):
        console.print(table)
    several = f"{measurement.windows} windows" if measurement.windows > 1 else "One window"
    texts = ", ".join(protocol.texts[number] for number in sorted(set(measurement.texts))) or ", ".join(protocol.texts)
    said = f"{several} of {protocol.target:,} tokens of {texts}, seed {protocol.seed}. plain: the unchanged model. "
    said += f"crop: only the last {protocol.trained_length:,} tokens. ±: 98 % intervals."
    if found.copies is not None and found.copies.can_copy:
        said += " copies: the largest distance in tokens from which the model copies."
    choice = found.environment.get("dtype_choice")
    if choice is not None:
        said += f" Computed in {found.environment['dtype']}: {choice}."
    console.print(Text(f"{said}\n"))
    if found.copies is not None:
        for sentence in found.copies.sentences():
            console.print(Text(sentence))
        console.print()


def print_methods(console: Console, found: Diagnosis) -> None:
    """Print a short description of each method."""
    from rich.text import Text

    from ropewalk.diagnosis.document import shared_sentences
    from ropewalk.methods import METHODS

    names = list(found.measurement.results)
    indent = " " * (4 + max(map(len, names)))
    for name in names:
        words = fill(
            METHODS[name].changes, max(console.width, len(indent) + 20), initial_indent=indent, subsequent_indent=indent
        )
        line = Text(f"  {name}", style="bold" if name == found.verdict.method else "")
        console.print(line.append(words[len(name) + 2 :], style="default"), soft_wrap=True)
    for said in ("", *shared_sentences(found.measurement)):
        console.print(Text(said))


def print_next(console: Console, found: Diagnosis, command: str | None) -> None:
    """Print the next command, and the keys for config.json."""
    if command is not None:
        console.print("Next:", style="bold")
        for line in command.splitlines():
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if found.verdict.config is not None:
        line = f"or, in config.json: {json.dumps(found.verdict.config)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
