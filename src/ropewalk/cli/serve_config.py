"""`ropewalk serve-config`: how an engine is told to serve a model under a method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import TOKENS


def serve_config(
    model: Annotated[
        str, typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny".')
    ],
    engine: Annotated[str, typer.Option(help="vllm, sglang, llama.cpp, ollama or transformers.")],
    method: Annotated[
        str | None, typer.Option(help="Extension method [default: that of --from; else as the checkpoint is].")
    ] = None,
    target: Annotated[
        int | None, TOKENS, typer.Option(help="Length wanted, in tokens [default: four times the trained length].")
    ] = None,
    factor: Annotated[float | None, typer.Option(help="In place of --target: times the trained length.")] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option("--from", help="What `ropewalk doctor --json` wrote; several give the cost by factor."),
    ] = None,
    trained_length: Annotated[
        int | None, TOKENS, typer.Option(help="Trained length in tokens, where the config does not say.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all of it to this file.")] = None,
) -> None:
    """Print how an engine is told to serve an extended model, and what it is known to ignore.

    Commands, flags and files. The weights are not read and no engine is started. `ropewalk verify` checks a server.
    """
    from rich.console import Console

    from ropewalk.atomic_io import check_writable, write_json
    from ropewalk.errors import RopeError
    from ropewalk.extend.serve import serve_config as configure

    if json_file is not None:
        check_writable(json_file)
    if factor is not None and target is not None:
        raise RopeError(
            "serve-config: --target and --factor say the same.",
            facts={"--target": target, "--factor": factor},
            cure="Leave one of them out.",
        )
    found = configure(
        model,
        engine,
        method=method,
        target=target,
        factor=factor,
        trained_length=trained_length,
        records=records or (),
    )
    console = Console(highlight=False)

    def show(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    if found.file is not None:
        name, content = found.file
        show(f"# {name}\n{content}")
    for step in found.steps:
        show(step)
    if found.costs:
        show("")
    for cost in found.costs:
        show(cost.sentence)
    if found.caveats:
        show("\nKnown of this engine:")
    for caveat in found.caveats:
        show(f"- {caveat.says} ({caveat.versions}; {caveat.source})")
    if json_file is not None:
        write_json(json_file, json.loads(json.dumps(found.to_json())), indent=1)
