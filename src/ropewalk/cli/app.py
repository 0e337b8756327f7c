"""The `ropewalk` command: its subcommands, exit status, and error messages."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from ropewalk.errors import RopeError
from ropewalk.imports import install_command

if TYPE_CHECKING:
    import typer


COMMANDS = {
    "doctor": "Measure how far a checkpoint's context really reaches, and what would extend it.",
    "extend": "Extend a checkpoint's context: apply a method.",
    "report": "Write the doctor's report from its record, or compare several; runs no model.",
    "inspect": "Describe the rope of a config or a command and its known traps, or compare two; runs no model.",
    "serve-config": "Print the commands, flags and files to serve an extended model, and the engine's caveats.",
    "verify": "Determine which rotary embedding an engine applies to a model.",
    "vectors": "Write the conformance vectors of a config: files to test an engine's rotation in any language.",
    "explore": "Open the explorer: interactive pictures of rotary position embeddings, in one HTML file.",
}
"""Each command and its line in `ropewalk --help`."""

APART = ("doctor", "inspect", "verify")
"""The commands with a module of their own; the others are in `ropewalk.cli.commands`.

A module contains the functions or groups with the names of its commands, with underscores for dashes. It is imported
when a command runs; what needs torch, which takes seconds, is imported by the functions.
"""

TRACEBACK = "ROPEWALK_TRACEBACK"
"""The variable that makes an unexpected exception print its traceback."""


def build(chosen: str | None = None) -> typer.Typer:
    """Return the typer application with the command `chosen`, and only the name and help line of the others."""
    import typer

    from ropewalk.cli.options import options

    app = typer.Typer(
        name="ropewalk",
        help="How far does a checkpoint's context really reach, and what would extend it?",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, line in COMMANDS.items():
        if name != chosen:
            app.command(name, help=line)(lambda: None)
            continue
        module = import_module(f"ropewalk.cli.{name if name in APART else 'commands'}")
        command = getattr(module, name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            app.add_typer(command)
        else:
            app.command(name)(command)
    app.callback(invoke_without_command=True)(options)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; always raises SystemExit.

    The status is 0 on success, 2 for invalid input, 70 after an unexpected exception, 130 after Ctrl-C, 143 after
    SIGTERM, which also stops the command as Ctrl-C does, and 141 if the output's pipe was closed (`| head -1`). A shell
    reports 141 for `cat` or `grep` in this case, too, so `set -o pipefail` recognizes it.
    """
    terminated = []

    def terminate(number: int, _: object) -> None:
        terminated.append(number)
        raise KeyboardInterrupt

    handler = None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # write \xb1 instead of failing if the encoding has no such character
            stream.reconfigure(errors="backslashreplace")
    try:
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGTERM, terminate)
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141
    except KeyboardInterrupt:  # during imports, or in a command that does not catch it
        status = _stopped()
    except Exception as error:
        status = _unexpected(error)
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    if status == 141:
        _silence()
    sys.exit(143 if terminated and status == 130 else status)


def _run(arguments: Sequence[str] | None) -> int:
    """Run one command and print its errors; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        import typer  # noqa: F401
    except ImportError:
        return _fail(f"ropewalk: the command line is not installed. Install it: {install_command('cli')}")
    try:
        with _short_warnings():
            command = next((word for word in words if not word.startswith("-")), None)  # no other option has a value
            build(command)(args=words, prog_name="ropewalk")
    except RopeError as error:
        _fail(str(error))
        return error.exit_status
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(f"ropewalk: {error.strerror or error}: {error.filename or 'output'}")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich and click exit with 1 then, which means a failure
            return 141
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):  # no command has caught it
            return _stopped()
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print a `UserWarning`, which is for the user of the command, without the file and the line that raised it."""
    before = warnings.formatwarning

    def text(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
        return f"{message}\n" if category is UserWarning else before(message, category, *place, **line)

    warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = before


def _silence() -> None:
    """Discard output that is still buffered for a closed pipe; otherwise Python would report it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):  # it is no file, so there is no pipe
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _stopped() -> int:
    with suppress(OSError):
        sys.stderr.write("ropewalk: stopped.\n")
    return 130


def _unexpected(error: Exception) -> int:
    """Print an exception that is a fault of ropewalk as one sentence, after its traceback if that is wanted."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    with suppress(OSError):
        sys.stderr.write(
            f"ropewalk: an unexpected error, which is a fault of ropewalk: {reason} (please report it with its "
            f"traceback, which {TRACEBACK}=1 prints)\n"
        )
    return 70


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 2
