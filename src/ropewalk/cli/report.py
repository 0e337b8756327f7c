"""`ropewalk report`: write the doctor's report from its record."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import path, read_path


def report(
    records: Annotated[
        list[Path],
        typer.Argument(
            parser=read_path,
            metavar="RECORDS",
            help="JSON files of `ropewalk doctor --json` or --report, also of --map.",
        ),
    ],
    out: Annotated[Path, path("Write index.html, report.json and figures into this folder.")],
) -> None:
    """Write the doctor's report from its record, or compare several; runs no model."""
    from ropewalk.atomic_io import check_output
    from ropewalk.diagnosis.depth import read_record
    from ropewalk.diagnosis.page import PAGE, write_report

    check_output(out / PAGE)
    page = write_report(out, *map(read_record, records))
    typer.echo(f"Report: {shlex.quote(str(page))}")
