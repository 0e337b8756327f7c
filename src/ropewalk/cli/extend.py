"""`ropewalk extend`: the group of its two commands."""

from __future__ import annotations

import typer

from ropewalk.cli.extend_apply import apply
from ropewalk.cli.extend_tune import tune
from ropewalk.cli.settings_options import with_options

extend = typer.Typer(
    name="extend",
    help="Extend a checkpoint's context: apply a method, or tune under one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (apply, tune):
    extend.command()(with_options(command))
