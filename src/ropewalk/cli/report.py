"""`ropewalk report`: write the doctor's report from its record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    record: Annotated[Path, typer.Argument(help="The JSON file of `ropewalk doctor --json` or --report.")],
    out: Annotated[Path, typer.Option(help="Write index.html, report.json and figures into this folder.")],
) -> None:
    """Write the doctor's report from its record; runs no model."""
    from ropewalk.diagnosis.page import check_folder, write_report
    from ropewalk.diagnosis.record import Diagnosis
    from ropewalk.progress import plain_console

    check_folder(out)
    page = write_report(out, Diagnosis.read(record))
    plain_console().print(f"Report: {page}", soft_wrap=True)
