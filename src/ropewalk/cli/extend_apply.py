"""`ropewalk extend apply`: one method, the weights as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.extend_output import MODEL, OUT_OR_FILE, OVERWRITE, drawing, print_extended, stopped
from ropewalk.extend.settings import ApplySettings


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
