"""The `ropewalk` command: puts the commands together, and turns a RopeError into a message and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from ropewalk.errors import RopeError
from ropewalk.optional import install_command
from ropewalk.processes import Launch, joined

if TYPE_CHECKING:
    import typer


COMMANDS = {
    "doctor": "Measure how far a checkpoint's context really reaches, and what would extend it.",
    "extend": "Extend a checkpoint's context: apply a method, or tune under one.",
    "report": "Make the doctor's report again from its record; runs no model.",
    "inspect": "Say what a rope config promises and which known traps it falls into; runs no model.",
    "serve-config": "Print the commands, flags and files that make an engine serve an extended model, and its caveats.",
    "verify": "Find out which rotary embedding an engine really applies to a model.",
    "generate": "Continue a prompt, and print the text while it is produced.",
    "train": "Train a decoder language model from scratch.",
    "classify": "Train a text classifier, and label texts with it.",
    "compare": "Train one decoder with each encoding on one text, and measure its loss at 1 to 16 times that length.",
    "explore": "Open the explorer: interactive pictures of rotary position embeddings, in one HTML file.",
    "figure": "Draw a figure of the lesson from numbers that are computed now.",
}
"""Each command and its line in `ropewalk --help`; `ropewalk.cli.<name>` holds the function or group of that name
(a dash is an underscore there).

A command is imported when it runs: most of them import torch, which takes seconds, and the help needs none of it.
"""

SHARED = (("doctor",), ("compare",))
"""The commands whose work several processes share, where torchrun or another launcher starts them."""
_NOT_SHARED = (
    "ropewalk: this command runs in one process. Start it without torchrun; shared out are "
    + ", ".join(" ".join(one) for one in SHARED)
    + "."
)


def build(chosen: str | None = None) -> typer.Typer:
    """The typer application: `chosen` as it is, and of every other command its name and line."""
    import typer

    from ropewalk.cli.options import Command, options, with_options

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
            app.command(name, help=line)(_another)
            continue
        module = name.replace("-", "_")
        command = getattr(import_module(f"ropewalk.cli.{module}"), module)
        if isinstance(command, typer.Typer):
            for part in command.registered_commands:
                part.cls = Command
            app.add_typer(command)
        else:
            app.command(name, cls=Command)(with_options(command))
    app.callback(invoke_without_command=True)(options)
    return app


def _another() -> None:
    """Stands for a command that does not run."""


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
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        import typer  # noqa: F401
    except ImportError:
        return _fail(f"ropewalk: the command line is not installed. Install it: {install_command('cli')}")
    try:
        launch = Launch.of_environment(os.environ)
        if launch.several and not _is_shared(words):
            return _fail(_NOT_SHARED) if launch.is_first else 2
        with joined(launch):
            try:
                with _quiet(launch):
                    build(_command(words))(args=words, prog_name="ropewalk")
            except RopeError as error:
                message = _by_command(str(error), words)
                return _fail(message) if launch.says_first(message) else 2
    except RopeError as error:
        return _fail(str(error))
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


@contextmanager
def _quiet(launch: Launch) -> Iterator[None]:
    """Of several processes only rank 0 prints."""
    if launch.is_first:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _is_shared(words: Sequence[str]) -> bool:
    """Whether several processes may share the command's work; help is printed by rank 0 in any case."""
    named = tuple(word for word in words if not word.startswith("-"))
    return not words or bool({"-h", "--help"} & set(words)) or any(named[: len(one)] == one for one in SHARED)


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
    return (
        f"{_command(arguments) or 'ropewalk'}: {message.removeprefix('train: ')}"
        if message.startswith("train: ")
        else message
    )


def _command(arguments: Sequence[str]) -> str | None:
    """The first word that is no option: `ropewalk` itself has no option that takes a value."""
    return next((word for word in arguments if not word.startswith("-")), None)


def _stopped() -> int:
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            sys.stderr.write("ropewalk: stopped.\n")
    return 130


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 2
