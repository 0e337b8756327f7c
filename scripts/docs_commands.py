"""Make the command-line reference from the commands; it replaces `<!-- every command -->` on a page."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

PLACE = re.compile(r"^<!-- every command --> \*.*\*$", re.MULTILINE)


def with_commands(markdown: str) -> str:
    """Return a page with every command in place of the mark."""
    return PLACE.sub(lambda _: "\n\n".join(commands()), markdown)


def commands() -> Iterator[str]:
    """Yield heading, text, usage and options of each command and subcommand."""
    import typer

    from ropewalk.cli.app import COMMANDS, build

    for name in COMMANDS:
        application = typer.main.get_command(build(name))
        with application.make_context("ropewalk", [], resilient_parsing=True) as context:
            yield from _described(application.commands[name], name, context, 2)


def _described(command: Any, name: str, parent: Any, level: int) -> Iterator[str]:
    with command.make_context(name, [], parent=parent, resilient_parsing=True) as context:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield f"{'#' * level} {context.command_path}"
        yield "\n\n".join(_plain(part) for part in inspect.cleandoc(command.help or "").split("\n\n"))
        yield f"```console\n$ {usage}\n```"
        rows = []
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)  # None: hidden
            if parameter.name != "help" and record is not None:
                rows.append(record)
        if rows:
            lines = [f"| `{what.strip()}` | {_plain(text)} |" for what, text in rows]
            yield "\n".join(['<div class="stack" markdown>\n', "| | |", "|---|---|", *lines, "\n</div>"]).replace(
                "`  ", "`"
            )
        for other, inner in getattr(command, "commands", {}).items():
            yield from _described(inner, other, context, level + 1)


def _plain(text: str) -> str:
    """Return a help text with Markdown and HTML characters escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def main() -> int:
    sys.stdout.write("\n\n".join(commands()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
