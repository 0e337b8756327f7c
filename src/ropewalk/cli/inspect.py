"""`ropewalk inspect`: audit and lint a config, or compare two, without running the model."""

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
        int | None, TOKENS, typer.Option(help="Trained length in tokens [default: from the config or its family].")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare with this model; exit status 1 if attention differs.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Describe the rope of a config and its known traps, or compare two; runs no model."""
    from ropewalk.atomic_io import check_output, write_output
    from ropewalk.audit.audit import audit_sentences
    from ropewalk.audit.compare import compare, open_base
    from ropewalk.audit.sources import audits_of, findings_of, inspection
    from ropewalk.cli.tables import print_findings
    from ropewalk.errors import RopeError

    if json_file is not None:
        check_output(json_file)
    if against is not None and (target or trained_length):
        raise RopeError("inspect: --against compares stated lengths.", cure="Omit --target and --trained-length.")
    models = [open_base(each, rotates=against is None) for each in (source, against) if each is not None]
    name, none = models[0].name, "Lint: no known trap in the config."
    audits = audits_of(models[0], trained_length=trained_length, target=target)
    if against is None:
        sentences = [each for one in audits for each in audit_sentences(one)]
        findings = findings_of(models[0], audits[0].target)
        document = inspection(name, audits, findings)
    else:
        findings = [*compare(*models)]
        name, none = f"{name} (A) and {models[1].name} (B)", "Same: the two rotate alike in every layer."
        firsts = [[audit_sentences(one)[0] for one in audits_of(of)] or ["no layer rotates."] for of in models]
        sentences = [f"{side}: {each}" for side, of in zip("AB", firsts, strict=True) for each in of]
        document = {"generator": "ropewalk", "models": [each.name for each in models], "same": not findings}
        document |= {"differences": [vars(each) for each in findings]}
    print_findings(name, sentences, findings, none)
    if json_file is not None:
        write_output(json_file, json.dumps(document, indent=1, allow_nan=False) + "\n")
    raise typer.Exit(int(against is not None and any(each.severity == "error" for each in findings)))
