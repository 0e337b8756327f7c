"""`ropewalk report`: write the doctor's report from its record."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def report(
    record: Annotated[Path, typer.Argument(help="The JSON file of `ropewalk doctor --json` or --report.")],
    out: Annotated[Path, typer.Option(help="Write index.html, report.json and figures into this folder.")],
) -> None:
    """Write the doctor's report from its record; runs no model."""
    from ropewalk.atomic_io import check_output
    from ropewalk.diagnosis.depth import read_record
    from ropewalk.diagnosis.page import PAGE, write_report

    check_output(out / PAGE, new_folder=True)
    page = write_report(out, read_record(record))
    typer.echo(f"Report: {shlex.quote(str(page))}")
