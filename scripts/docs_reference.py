"""The public names of the package, and its commands with their options, in Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import ropewalk as rw
from ropewalk import encodings, scaling
from ropewalk.diagnosis.depth import DepthMap, depth_map
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.rope.extensions import Extension


def names_of(subpackages: str) -> list[tuple[str, Any]]:
    """Return every public name of these subpackages with its object.

    More groups contain what `ropewalk.__all__` omits: `scalings`, `encodings`, `extensions`, `record`
    (`Diagnosis`, `depth_map` and `DepthMap`), and `rw_NAME`, the `__all__` of the module `ropewalk.NAME`.
    """
    entries: list[tuple[str, Any]] = []
    for group in subpackages.split():
        if group == "scalings":
            rules = ((name, thing) for name, thing in vars(scaling).items() if inspect.isclass(thing))
            entries += [(f"rw.scaling.{name}", thing) for name, thing in rules if scaling.Scaling in thing.mro()[1:]]
        elif group == "encodings":
            entries += [(f"rw.encodings.{kind.__name__}", kind) for kind in encodings.ENCODINGS.values()]
        elif group == "record":
            entries += [(f"{kind.__module__}.{kind.__name__}", kind) for kind in (Diagnosis, depth_map, DepthMap)]
        elif group.startswith("rw_"):
            module = import_module(f"ropewalk.{group.removeprefix('rw_')}")
            things = [(name, getattr(module, name)) for name in module.__all__ if name not in rw.__all__]
            entries += [(f"{group.replace('_', '.')}.{name}", thing) for name, thing in things if callable(thing)]
        elif group == "extensions":
            own = {name: kind for name, kind in Extension.registry.items() if kind.__module__ == Extension.__module__}
            entries += [(f"rw.rope.extensions.{name}", kind) for name, kind in own.items()]
        else:
            public = ((name, getattr(rw, name)) for name in rw.__all__ if not inspect.ismodule(getattr(rw, name)))
            entries += [(f"rw.{name}", thing) for name, thing in public if thing.__module__.split(".")[1] == group]
    return entries


def names_table(subpackages: str) -> str:
    """Return a table of these names: a link to the file, and the first sentence of the docstring."""
    rows = []
    for name, thing in names_of(subpackages):
        first = re.split(r"(?<=[^.]\.)\s|\n\n|:\n", inspect.getdoc(thing) or "", maxsplit=1)[0]
        path = Path(inspect.getfile(inspect.unwrap(thing))).relative_to(Path(rw.__file__).parents[1])
        rows.append(f"| [`{name}`](../../src/{path}) | {' '.join(first.split()).rstrip('.:')} |")
    return "\n".join(["| name | what it does |", "|---|---|", *rows])


def commands() -> str:
    """Return heading, text, usage and options of each command and subcommand."""
    import typer

    from ropewalk.cli.app import COMMANDS, build

    parts: list[str] = []
    for name in COMMANDS:
        application = typer.main.get_command(build(name))
        with application.make_context("ropewalk", [], resilient_parsing=True) as context:
            parts += _described(application.commands[name], name, context, 2)
    return "\n\n".join(parts)


def _described(command: Any, name: str, parent: Any, level: int) -> Iterator[str]:
    with command.make_context(name, [], parent=parent, resilient_parsing=True) as context:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield f"{'#' * level} {context.command_path}"
        yield "\n\n".join(_plain(part) for part in inspect.cleandoc(command.help or "").split("\n\n"))
        yield f"```console\n$ {usage}\n```"
        shown = [one.get_help_record(context) for one in command.get_params(context) if one.name != "help"]
        if rows := [record for record in shown if record is not None]:  # None: hidden
            lines = [f"| `{what.strip()}` | {_plain(text)} |" for what, text in rows]
            yield "\n".join(["| | |", "|---|---|", *lines]).replace("`  ", "`")
        for other, inner in getattr(command, "commands", {}).items():
            yield from _described(inner, other, context, level + 1)


def _plain(text: str) -> str:
    """Return a help text with Markdown and HTML characters escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
