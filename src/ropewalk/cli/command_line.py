"""The command that is running, as one would type it again."""

from __future__ import annotations

import shlex
from collections.abc import Container
from pathlib import Path
from typing import Any

import typer


def command_line(context: typer.Context, *, leave_out: Container[str] = ()) -> str:
    """The command and the options that were given to it, as text for a shell.

    Of a path only its last name is in it, so that a record does not show anybody's folders. `leave_out` names
    parameters that change no number.
    """
    words = ["ropewalk", *context.command_path.removeprefix("ropewalk").split()]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in leave_out or source is None or source.name != "COMMANDLINE":
            continue
        values = context.params[name]
        option = parameter.opts[0] if parameter.param_type_name == "option" else None
        if isinstance(values, bool):
            words.append(option or str(values)) if values else words.append(parameter.secondary_opts[0])
            continue
        for value in values if isinstance(values, list | tuple) else [values]:
            words += [*([option] if option else []), _shown(value)]
    return shlex.join(words)


def _shown(value: Any) -> str:
    """A value as it is typed; a path by its name alone."""
    text = str(value)
    return Path(text).resolve().name if isinstance(value, Path) or Path(text).exists() else text
