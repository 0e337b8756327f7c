"""`ropewalk extend tune`: one method, and training at the target length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.extend_output import MODEL, OUT, OVERWRITE, drawing, print_extended, stopped
from ropewalk.extend.settings import TuneSettings


def tune(
    model: Annotated[str, MODEL],
    out: Annotated[Path, OUT],
    settings: TuneSettings,
    overwrite: Annotated[bool, OVERWRITE] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away the stopped run beside --out.")] = False,
    log_every: Annotated[int, typer.Option(help="Updates between lines of the log.")] = 10,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Updates between checkpoints [default: a twentieth of the run].")
    ] = None,
) -> None:
    """Apply a method, train at the target length, and write the result.

    The result is a Hugging Face folder. The loss by position is measured before and after, beside crop. The folder
    appears when all of it is done, with README.md and extend.json. Stopped, the same command continues.
    """
    from ropewalk.cli.training_progress import TrainingProgress
    from ropewalk.extend import tune as run
    from ropewalk.progress.bar import ProgressBar
    from ropewalk.training import Housekeeping

    housekeeping = Housekeeping(log_every=log_every, validate_every=checkpoint_every, checkpoint_every=checkpoint_every)
    try:
        with ProgressBar("extend", every=10) as progress:
            done = run(
                model,
                out,
                settings,
                overwrite=overwrite,
                restart=restart,
                housekeeping=housekeeping,
                report=TrainingProgress("extend", progress),
                progress=progress,
                draw=drawing("extension_figure"),
            )
    except KeyboardInterrupt as stop:
        raise stopped(stop) from None
    print_extended(done)
