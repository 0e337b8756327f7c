"""The options of `ropewalk` itself, before any command."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk.version import __version__


def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    """How far does a checkpoint's context really reach, and what would extend it?"""
    if version:
        typer.echo(f"ropewalk {__version__}")
        raise typer.Exit
