"""The command `ropewalk serve-config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import MODEL, path, tokens
from ropewalk.serving.engines import ENGINES


def serve_config(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    engine: Annotated[str, typer.Option(help=f"{', '.join(ENGINES[:-1])} or {ENGINES[-1]}.")],
    method: Annotated[str | None, typer.Option(help="Extension method [default: from --from, else as-is].")] = None,
    target: Annotated[
        int | None,
        tokens("Desired length in tokens [default: four times the trained length]."),
    ] = None,
    factor: Annotated[float | None, typer.Option(help="Multiple of the trained length, instead of --target.")] = None,
    records: Annotated[
        list[Path] | None,
        path("A record of `ropewalk doctor --json`; several give the cost by factor.", "--from"),
    ] = None,
    length: Annotated[
        int | None,
        tokens("Context of the engine, if less than the target [default: from --from, else the target]."),
    ] = None,
    trained_length: Annotated[
        int | None,
        tokens("Trained length in tokens [default: from the config]."),
    ] = None,
    json_file: Annotated[Path | None, path("Write everything to this file.", "--json")] = None,
) -> None:
    """Print the commands, flags and files to serve an extended model, and the engine's caveats.

    The weights are not loaded and no engine is started. To check a running server, use `ropewalk verify`.
    """
    from ropewalk.atomic_io import check_output, write_output
    from ropewalk.errors import RopeError
    from ropewalk.progress import plain_console
    from ropewalk.serving.serve import serve_config as configure

    if json_file is not None:
        check_output(json_file)
    if factor is not None and target is not None:
        raise RopeError(
            "serve-config: --target and --factor are mutually exclusive.",
            facts={"--target": target, "--factor": factor},
            cure="Pass one of them.",
        )
    served = configure(
        model,
        engine,
        method=method,
        target=target,
        factor=factor,
        length=length,
        trained_length=trained_length,
        records=records or (),
    )
    console = plain_console()

    def show(text: str) -> None:
        console.print(text, soft_wrap=True)

    if served.file is not None:
        name, content = served.file
        show(f"cat > {name} <<'END'\n{content}END")
    for step in served.steps:
        show(step)
    if served.note is not None:
        show(f"\n{served.note}")
    if served.costs:
        show("")
    for cost in served.costs:
        show(cost.sentence)
    show(f"\nChecked for {engine}: {served.checked}.")
    if served.caveats:
        show("Known behaviour of this engine:")
    for caveat in served.caveats:
        show(f"- {caveat.text} ({caveat.evidence})")
    if json_file is not None:
        write_output(json_file, json.dumps(served.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
