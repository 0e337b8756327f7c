"""`ropewalk inspect`: audit and lint a config, without running the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import TOKENS


def inspect(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG_OR_MODEL",
            help='A config.json, a Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".',
        ),
    ],
    target: Annotated[
        int | None, TOKENS, typer.Option(help="The target length in tokens [default: 4x trained].")
    ] = None,
    trained_length: Annotated[
        int | None,
        TOKENS,
        typer.Option(help="Trained length in tokens [default: from the config or its family]."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Describe the rope of a config and its known traps; runs no model."""
    from rich.console import Console

    from ropewalk.atomic_io import check_output, write_output
    from ropewalk.audit.sources import audits_of, findings_of, inspection
    from ropewalk.checkpoints.checkpoint import Checkpoint
    from ropewalk.cli.tables import print_inspection

    if json_file is not None:
        check_output(json_file)
    found = Checkpoint.open(source)
    audits = audits_of(found, trained_length=trained_length, target=target)
    findings = findings_of(found, audits[0].target)
    print_inspection(Console(), found.name, audits, findings)
    if json_file is not None:
        document = inspection(found.name, audits, findings)
        write_output(json_file, json.dumps(document, indent=1, allow_nan=False) + "\n")
