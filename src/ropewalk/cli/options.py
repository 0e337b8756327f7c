"""Options that several commands have: lengths in tokens and paths; and the command line of a record."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ropewalk.atomic_io import as_path, write_output
from ropewalk.errors import RopeError, shell_command
from ropewalk.version import __version__

MODEL = 'A Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".'
_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_LENGTH = re.compile(r"([+-]?\d+(?:_\d+)*(?:\.\d+)?)([km]?)", re.IGNORECASE)


def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """How far does a checkpoint's context really reach, and what would extend it?"""
    if version:
        typer.echo(f"ropewalk {__version__}")
        raise typer.Exit


def tokens(description: str) -> Any:
    """Return an option for a length in tokens."""
    return typer.Option(parser=read_tokens, metavar="TOKENS", help=description)


def path(description: str, *names: str, metavar: str = "PATH") -> Any:
    """Return an option for a path, which must not be empty."""
    return typer.Option(*names, parser=read_path, metavar=metavar, help=description)


def read_tokens(text: str | int) -> int:
    """Return the number of tokens in `text`: k is 1,024, M is 1,048,576.

    Raises `typer.BadParameter` for any other text, and for fractions of a token.

    >>> [read_tokens(text) for text in ("8192", "8_192", "8k", "1.5k", "128K", "1M")]
    [8192, 8192, 8192, 1536, 131072, 1048576]
    """
    match = _LENGTH.fullmatch(str(text).strip())
    if match is not None and len(str(text)) < 100:  # Python converts no text of thousands of digits
        whole, _, decimals = match[1].replace("_", "").partition(".")
        count, part = divmod(int(whole + decimals) * _UNITS[match[2].lower()], int("1" + "0" * len(decimals)))
        if not part:
            return count
    raise typer.BadParameter(
        f"{str(text)[:100]!r} is not a whole number of tokens. Write 8192, 8_192, 8k (k is 1,024) or 1M (1,048,576)."
    )


def read_path(text: str) -> Path:
    """Return a path; raise `typer.BadParameter` for an empty one, which would be the current folder."""
    try:
        return as_path(text, "path")
    except RopeError as error:
        raise typer.BadParameter(f"{error.reason}. {error.cure}") from error


def write_record(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write a document into the file of --json, if there is one."""
    if path is not None:
        write_output(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def command_line(
    context: typer.Context, *, leave_out: Container[str] = (), changed: Mapping[str, Any] | None = None
) -> str:
    """Return the command and its given options as text for a shell.

    A path is shortened to its last part, so a record contains no private folders. `leave_out` contains parameters that
    do not change results. With `changed`, the values of some parameters, the command can be run: paths are complete.
    """
    new, shown = changed or {}, _shown if changed is None else str
    words = ["ropewalk", *context.command_path.removeprefix("ropewalk").split()]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in leave_out or (name not in new and (source is None or source.name != "COMMANDLINE")):
            continue
        values = new.get(name, context.params[name])
        option = [parameter.opts[0]] if parameter.param_type_name == "option" else []
        if isinstance(values, bool):
            words += option
            continue
        for value in values if isinstance(values, list | tuple) else [values]:
            words += [*option, shown(value)]
    return shell_command(*words)


def _shown(value: Any) -> str:
    """Return a value as text; a path as its last part."""
    text = str(value)
    with suppress(OSError):  # too long for a path
        return Path(text).resolve().name if Path(text).exists() else text
    return text
