"""The `ropewalk` command: puts the commands together, and turns a RopeError into a message and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """The typer application with every command."""
    import typer

    from ropewalk.cli.bench import bench
    from ropewalk.cli.classify import classify
    from ropewalk.cli.compare import compare
    from ropewalk.cli.doctor import doctor
    from ropewalk.cli.extend import extend
    from ropewalk.cli.figure import figure
    from ropewalk.cli.generate import generate
    from ropewalk.cli.inspect import inspect
    from ropewalk.cli.options import options
    from ropewalk.cli.report import report
    from ropewalk.cli.train import train

    app = typer.Typer(
        name="ropewalk",
        help="How far does a checkpoint's context really reach, and what would extend it?",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for command in (doctor, extend, report, inspect, generate, train, compare, bench, figure):
        app.command()(command)
    app.add_typer(classify)

    app.callback(invoke_without_command=True)(options)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; always ends in SystemExit.

    The status is 0, 2 for bad input, 130 after Ctrl-C, and 141 where whoever read the output has gone (`| head -1`):
    what a shell reports of `cat` or `grep` then, so that `set -o pipefail` can tell a cut output from a failure.
    """
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141
    except KeyboardInterrupt:  # during imports, or where a command has no word of its own
        status = _stopped()
    if status == 141:
        _silence()
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int:
    """The exit status of one command; its errors are already on standard error."""
    try:
        import typer  # noqa: F401
    except ImportError:
        return _fail("ropewalk: the command line is not installed. Install it: pip install 'ropewalk[cli]'")
    try:
        build()(args=None if arguments is None else list(arguments), prog_name="ropewalk")
    except RopeError as error:
        return _fail(_by_command(str(error), sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(f"ropewalk: {error.strerror or error}: {error.filename or 'output'}")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich and click end with 1 then, which says "failed"
            return 141
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):  # no command has caught it
            return _stopped()
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def _silence() -> None:
    """Let what is still buffered for a closed pipe go nowhere, or Python would complain of it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):  # no file behind it: then there is no pipe to complain of
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _by_command(message: str, arguments: Sequence[str]) -> str:
    """Name the command that ran, where it trains with what `ropewalk train` is made of."""
    command = next((word for word in arguments if not word.startswith("-")), "train")
    return f"{command}: {message.removeprefix('train: ')}" if message.startswith("train: ") else message


def _stopped() -> int:
    with suppress(OSError):
        sys.stderr.write("ropewalk: stopped.\n")
    return 130


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 2
