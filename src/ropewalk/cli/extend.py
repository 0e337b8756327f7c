"""The command `ropewalk extend apply`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import MODEL, path, tokens


def apply(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    out: Annotated[Path, path("A folder to write, or a file NEW.gguf or NEW.json (only the config).")],
    target: Annotated[int | None, tokens("Desired length [default: four times the trained length].")] = None,
    trained_length: Annotated[
        int | None, tokens("Trained length in tokens [default: from the config or its family].")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Extension method, with the name used by `ropewalk doctor` [default: yarn].")
    ] = None,
    length: Annotated[
        int | None, tokens("Length to state in the config, if it is less than the target [default: the target].")
    ] = None,
    record: Annotated[
        Path | None, path("Use method and lengths of a record of `ropewalk doctor --json`.", "--from")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at --out.")] = False,
) -> None:
    """Write a folder or .gguf file with a method in its config.

    The folder appears when it is complete. No weights are opened; those of a .gguf file are copied block by block.
    """
    from ropewalk import serving
    from ropewalk.progress import shown as display
    from ropewalk.rope.hugging_face import text_part

    with display("extend", lines=True) as progress:
        written = serving.apply(
            model, out, method=method, target=target, length=length, trained_length=trained_length, record=record,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    config = text_part(written)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if out.suffix == ".gguf":
        shown = {key: value for key, value in written.items() if not isinstance(value, list)}
        typer.echo(f"keys: {json.dumps(shown)}")
    elif rope is not None:
        ordered = {key: rope[key] for key in sorted(rope, key=lambda key: (key != "rope_type", key != "rope_theta"))}
        typer.echo(f"rope_parameters: {json.dumps(ordered)[:300]}")
    typer.echo(f"extend: wrote {out}")


extend = typer.Typer(
    name="extend", help="Extend a checkpoint's context: apply a method.", no_args_is_help=True, rich_markup_mode=None
)
extend.command()(apply)
