"""The command that is running, as one would type it again, and what its numbers depend on."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Collection, Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from ropewalk.models.decoder import Decoder


def command_line(context: typer.Context, *, leave_out: Container[str] = ()) -> str:
    """The command with what was given to it, defaults unsaid; of a path only its last name, so that a record that is
    shown around tells nobody's folders. `leave_out` names parameters that change no number."""
    words = ["ropewalk", context.info_name or ""]
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


def given_options(context: typer.Context) -> set[str]:
    """The names of the parameters that were given, whatever their values."""
    return {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }


def refuse_ignored(
    command: str, given: Collection[str], names: Collection[str], present: bool, what: str, cure: str
) -> None:
    """Raise `RopeError` for those of `names` that are given while what they belong to is not there."""
    lost = [f"--{name.replace('_', '-')}" for name in names if name in given]
    if lost and not present:
        raise RopeError(
            f"{command}: these options belong to {what}, and would be ignored.",
            facts={"given": lost},
            cure=f"{cure[0].upper()}{cure[1:]}, or leave them out.",
        )


def _shown(value: Any) -> str:
    """A value as it is typed; a path by its name alone."""
    text = str(value)
    return Path(text).resolve().name if isinstance(value, Path) or Path(text).exists() else text


def environment_of(device: str, model: Decoder) -> dict[str, Any]:
    """What numbers and times depend on: versions, machine, threads, and the model's size."""
    import torch

    from ropewalk import __version__

    return {
        "ropewalk": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
        "threads": torch.get_num_threads(),
        "parameters": model.num_parameters(),
    }
