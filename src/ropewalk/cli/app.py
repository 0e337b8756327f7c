"""The `ropewalk` command: puts the commands together, and turns a RopeError into a message and exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """The typer application with every command."""
    import typer

    from ropewalk.cli.doctor import doctor
    from ropewalk.cli.generate import generate
    from ropewalk.cli.inspect import inspect
    from ropewalk.cli.options import options
    from ropewalk.cli.train import train

    app = typer.Typer(
        name="ropewalk",
        help="How far does a checkpoint's context really reach, and what would extend it?",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (doctor, inspect, generate, train):
        app.command()(command)

    app.callback(invoke_without_command=True)(options)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; always ends in SystemExit: 0, 2 for bad input, 130 after Ctrl-C."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit(_fail("ropewalk: the command line is not installed. Install it: pip install 'ropewalk[cli]'"))
    try:
        build()(args=None if arguments is None else list(arguments), prog_name="ropewalk")
    except RopeError as error:
        sys.exit(_fail(str(error)))
    except OSError as error:
        sys.exit(_fail(f"ropewalk: {error.strerror or error}: {error.filename or 'output'}"))
    sys.exit(0)


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 2
