"""The command `ropewalk extend apply`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.cli.options import with_options
from ropewalk.extend.settings import METHOD, OUTPUT, ApplySettings

if TYPE_CHECKING:
    from ropewalk.extend.job import Extended


MODEL = typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".')
OUT = typer.Option(help="The folder to write, or a file MODEL.gguf.", show_default=False, rich_help_panel=OUTPUT)
OVERWRITE = typer.Option("--overwrite", help="Replace an earlier export at --out.", rich_help_panel=OUTPUT)
RESTART = typer.Option("--restart", help="Discard the stopped run next to --out.", rich_help_panel=OUTPUT)


def print_extended(done: Extended) -> None:
    """Print the doctor's verdicts and the output folder."""
    from rich.console import Console

    console = Console(highlight=False)
    for name, found in done.diagnoses.items():
        console.print(f"{name}: {found.verdict.sentence}", markup=False, soft_wrap=True)
        console.print(found.table(), markup=False, soft_wrap=True)
    rope = done.exported.rope
    if rope is not None:
        console.print(f"rope_parameters: {json.dumps(rope.parameters)[:300]}", markup=False, soft_wrap=True)
    elif done.exported.folder.suffix == ".gguf":
        shown = {key: value for key, value in done.exported.config.items() if not isinstance(value, list)}
        console.print(f"keys: {json.dumps(shown)}", markup=False, soft_wrap=True)
    else:
        config = done.exported.config
        written = config.get("rope_parameters") or config.get("rope_scaling")
        if written is not None:
            console.print(f"rope_parameters: {json.dumps(written)[:300]}", markup=False, soft_wrap=True)
    console.print(f"extend: wrote {done.exported.folder}", markup=False, soft_wrap=True)


def stopped(reason: object = "") -> typer.Exit:
    """Print how to resume after Ctrl-C; return exit status 130."""
    typer.echo(f"extend: {str(reason) or 'stopped'}. To resume, rerun the command.", err=True)
    return typer.Exit(130)


def apply(
    *,
    context: typer.Context,
    model: Annotated[str, MODEL],
    out: Annotated[Path, OUT],
    settings: ApplySettings,
    record: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Use method and lengths of a record of `ropewalk doctor --json`.", rich_help_panel=METHOD
        ),
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    restart: Annotated[bool, RESTART] = False,
) -> None:
    """Apply a method and write a Hugging Face folder, or a .gguf file.

    The folder appears when it is complete. It contains README.md, and extend.json if the method was measured. Weights
    of a .gguf source are copied into a .gguf file block by block.
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
            )
    except KeyboardInterrupt as stop:
        raise stopped(stop) from None
    print_extended(done)


extend = typer.Typer(
    name="extend",
    help="Extend a checkpoint's context: apply a method.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
extend.command()(with_options(apply))
