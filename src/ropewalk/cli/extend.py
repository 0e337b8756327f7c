"""`ropewalk extend`: apply a method to a checkpoint, or tune it at the target length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.extend_output import MODEL, OUT, OUT_OR_FILE, OVERWRITE, drawing, print_extended, stopped
from ropewalk.cli.options import with_options
from ropewalk.extend.settings import ApplySettings, TuneSettings


def apply(
    *,
    context: typer.Context,
    model: Annotated[str, MODEL],
    out: Annotated[Path, OUT_OR_FILE],
    settings: ApplySettings,
    record: Annotated[
        Path | None,
        typer.Option("--from", help="Take method and lengths from what `ropewalk doctor --json` wrote."),
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away a stopped tuning beside --out.")] = False,
) -> None:
    """Apply a method and write a Hugging Face folder, or a .gguf file.

    The folder appears when all of it is done, with README.md, and extend.json where the loss was measured. Weights of a
    .gguf source go into a .gguf file block by block, as they are.
    """
    from ropewalk.extend import apply as run
    from ropewalk.extend.runs import CHOSEN, refuse_beside_a_record
    from ropewalk.progress import ProgressBar

    sources = {name: context.get_parameter_source(name) for name in CHOSEN}
    typed = {
        name: getattr(settings, name) for name, source in sources.items() if source and source.name == "COMMANDLINE"
    }
    if record is not None and typed:
        refuse_beside_a_record(typed)
    try:
        with ProgressBar("extend", every=10) as progress:
            done = run(
                model,
                out,
                settings,
                record=record,
                overwrite=overwrite,
                restart=restart,
                progress=progress,
                draw=drawing("extension_figure"),
            )
    except KeyboardInterrupt as stop:
        raise stopped(stop) from None
    print_extended(done)


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
    from ropewalk.progress import ProgressBar
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


extend = typer.Typer(
    name="extend",
    help="Extend a checkpoint's context: apply a method, or tune under one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (apply, tune):
    extend.command()(with_options(command))
