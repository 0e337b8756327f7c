"""`ropewalk inspect`: audit and lint a config, or compare two, without running the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import path, tokens, write_record

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def inspect(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG_OR_MODEL",
            help='A config.json, a Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".',
        ),
    ] = None,
    target: Annotated[int | None, tokens("The target length in tokens [default: 4x trained].")] = None,
    trained_length: Annotated[
        int | None, tokens("Trained length in tokens [default: from the config or its family].")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare with this model; exit status 1 if attention differs.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare the length, theta and scaling of this drafter.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="A command of vLLM, SGLang, llama-server or mlx_lm, quoted: which rope it serves; exit "
            "status 1 if a setting has no effect."
        ),
    ] = None,
    json_file: Annotated[Path | None, path("Write the results to this file.", "--json")] = None,
) -> None:
    """Describe the rope of a config or a command and its known traps, or compare two; runs no model."""
    from textwrap import wrap

    from rich.text import Text

    from ropewalk.atomic_io import check_output
    from ropewalk.audit.audit import answer, audits_of, inspection, summary
    from ropewalk.audit.compare import compare
    from ropewalk.audit.traps import findings_of
    from ropewalk.checkpoints.checkpoint import Checkpoint
    from ropewalk.errors import RopeError
    from ropewalk.progress import plain_console
    from ropewalk.serving.started import served_words, started

    given = {"--against": against, "--drafter": drafter, "--command": command}
    given = {name: value for name, value in given.items() if value is not None}
    other = against if drafter is None else drafter
    if len(given) > 1 or (source is None and command is None):
        raise RopeError(
            "inspect: pass a model, and at most one of --against, --drafter and --command.", facts={**given},
            cure="ropewalk inspect MODEL --against OTHER",
        )  # fmt: skip
    if json_file is not None:
        check_output(json_file)
    if other is not None and (target or trained_length):
        raise RopeError(
            f"inspect: {next(iter(given))} compares stated lengths.", cure="Omit --target and --trained-length."
        )
    done = None if command is None else started(command, source)
    sources = [one for one in (source, other) if one is not None]
    models = [done.model] if done else [Checkpoint.open(one, rotates=other is None) for one in sources]
    name, none, after = models[0].name, "Lint: no known trap in the config.", list[str]()
    if other is None:
        audits = audits_of(models[0], trained_length=trained_length, target=target)
        rows = answer(audits, served_words(models[0], done))
        findings = findings_of(models[0])
        if done is not None:
            findings = [*done.findings, *(one for one in findings if one.severity != "note")]
            name, none = f"{name} by {done.command.engine}", "Every setting of the rope has its effect."
            after = ["Right:", *done.line] if done.line else []
            after += [f"Not looked at: {', '.join(done.command.unread)}."] if done.command.unread else []
            after += [f"Read in {done.command.flags.source}."]
        document = inspection(name, audits, findings) | {"answer": rows}
        document |= {} if done is None else {"commands": done.line, "not_looked_at": done.command.unread}
    else:
        findings = [*compare(*models, drafter=drafter is not None)]
        name, none = f"{name} (A) and {models[1].name} (B)", "Same: the two rotate alike in every layer."
        sides = zip("AB", models, strict=True)
        rows = {side: "; ".join(map(summary, audits_of(of))) or "no layer rotates" for side, of in sides}
        document = {"generator": "ropewalk", "models": [each.name for each in models], "same": not findings}
        document |= {"differences": [vars(each) for each in findings]}
    console, wide = plain_console(), max(map(len, rows), default=0) + 4
    console.print(Text(name, style="bold"))
    for row, value in rows.items():
        lines = wrap(value, max(console.width - wide, 20), break_long_words=False, break_on_hyphens=False)
        console.print(Text(f"  {row.replace('_', ' '):<{wide - 2}}" + f"\n{'':{wide}}".join(lines)), soft_wrap=True)
    for one in findings:
        where = f" ({one.layer_type})" if one.layer_type else ""
        said = Text(f"  {one.severity} {one.code}{where}: ", style=_COLORS[one.severity])
        console.print(said.append(f"{one.message} {one.cure}", style="default"))
    for line in [*([] if findings else [f"  {none}"]), *after]:
        typer.echo(line)
    write_record(json_file, document)
    raise typer.Exit(int(bool(given) and any(each.severity == "error" for each in findings)))
