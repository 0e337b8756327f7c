"""The command `ropewalk extend apply`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.cli.options import with_options
from ropewalk.serving.settings import METHOD, OUTPUT, ApplySettings

if TYPE_CHECKING:
    from ropewalk.serving.applying import Exported


MODEL = typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".')
OUT = typer.Option(
    help="A folder to write, or a file NEW.gguf or NEW.json (only the config).",
    show_default=False,
    rich_help_panel=OUTPUT,
)
OVERWRITE = typer.Option("--overwrite", help="Replace an earlier export at --out.", rich_help_panel=OUTPUT)


def print_exported(done: Exported) -> None:
    """Print the keys of the rope and the output folder."""
    from ropewalk.rope.hugging_face import text_part

    config = text_part(done.config)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if done.folder.suffix == ".gguf":
        shown = {key: value for key, value in done.config.items() if not isinstance(value, list)}
        typer.echo(f"keys: {json.dumps(shown)}")
    elif rope is not None:
        ordered = {key: rope[key] for key in sorted(rope, key=lambda key: (key != "rope_type", key != "rope_theta"))}
        typer.echo(f"rope_parameters: {json.dumps(ordered)[:300]}")
    typer.echo(f"extend: wrote {done.folder}")


def apply(
    *,
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
) -> None:
    """Write a folder or .gguf file with a method in its config.

    The folder appears when it is complete. No weights are opened; those of a .gguf file are copied block by block.
    """
    from ropewalk.progress import shown
    from ropewalk.serving import apply as run

    with shown("extend", lines=True) as progress:
        done = run(model, out, settings, record=record, overwrite=overwrite, progress=progress)
    print_exported(done)


extend = typer.Typer(
    name="extend", help="Extend a checkpoint's context: apply a method.", no_args_is_help=True, rich_markup_mode=None
)
extend.command()(with_options(apply))
