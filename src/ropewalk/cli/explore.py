"""`ropewalk explore`: open the page of interactive pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import path


def explore(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help='A model to add: a config.json, a folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".',
        ),
    ] = None,
    out: Annotated[Path | None, path("Write the page into this file instead of opening it.", metavar="FILE")] = None,
) -> None:
    """Open the explorer: interactive pictures of rotary position embeddings, in one HTML file.

    The file works offline.

    For example: ropewalk explore tiny
    """
    from ropewalk.atomic_io import check_output, write_output
    from ropewalk.figures.explorer import page_of, show

    if out is not None:
        check_output(out)
    page = page_of(source)
    if out is None:
        typer.echo(show(page))
    else:
        write_output(out, page)
        typer.echo(str(out))
