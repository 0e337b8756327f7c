"""`ropewalk extend apply`: one method, the weights as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.extend_output import MODEL, OUT, OVERWRITE, drawing, print_extended, stopped
from ropewalk.extend.settings import ApplySettings


def apply(
    model: Annotated[str, MODEL],
    out: Annotated[Path, OUT],
    settings: ApplySettings,
    overwrite: Annotated[bool, OVERWRITE] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away a stopped tuning beside --out.")] = False,
) -> None:
    """Apply a method and write the checkpoint as a Hugging Face folder.

    The folder appears when all of it is done, with README.md, and extend.json where the loss was measured.
    """
    from ropewalk.extend import apply as run
    from ropewalk.progress.bar import ProgressBar

    try:
        with ProgressBar("extend", every=10) as progress:
            done = run(
                model,
                out,
                settings,
                overwrite=overwrite,
                restart=restart,
                progress=progress,
                draw=drawing("extension_figure"),
            )
    except KeyboardInterrupt as stop:
        raise stopped(stop) from None
    print_extended(done)
