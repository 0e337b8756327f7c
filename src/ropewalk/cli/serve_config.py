"""The command `ropewalk serve-config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import MODEL, path, tokens, write_record
from ropewalk.serving.engines import ENGINES


def serve_config(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    engine: Annotated[str, typer.Option(help=f"{', '.join(ENGINES[:-1])} or {ENGINES[-1]}.")],
    method: Annotated[str | None, typer.Option(help="Extension method [default: from --from, else as-is].")] = None,
    target: Annotated[int | None, tokens("Desired length in tokens [default: four times the trained length].")] = None,
    factor: Annotated[float | None, typer.Option(help="Multiple of the trained length, instead of --target.")] = None,
    record: Annotated[
        Path | None, path("Use method and lengths of a record of `ropewalk doctor --json`.", "--from")
    ] = None,
    length: Annotated[
        int | None,
        tokens("Context of the engine, if less than the target [default: from --from, else the target]."),
    ] = None,
    trained_length: Annotated[int | None, tokens("Trained length in tokens [default: from the config].")] = None,
    json_file: Annotated[Path | None, path("Write everything to this file.", "--json")] = None,
) -> None:
    """Print the commands, flags and files to serve an extended model, and the engine's caveats.

    The weights are not loaded and no engine is started. To check a running server, use `ropewalk verify`.
    """
    from ropewalk.atomic_io import check_output
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
        model, engine, method=method, target=target, factor=factor, length=length, trained_length=trained_length,
        record=record,
    )  # fmt: skip
    lines = [] if served.file is None else ["cat > {} <<'END'\n{}END".format(*served.file)]
    lines += [*served.steps, *([] if served.note is None else [f"\n{served.note}"])]
    lines += [f"\nChecked for {engine}: {served.checked}.", *["Known behaviour of this engine:"] * bool(served.caveats)]
    lines += [f"- {caveat.text} ({caveat.evidence})" for caveat in served.caveats]
    plain_console().print("\n".join(lines), soft_wrap=True)
    write_record(json_file, served.to_json())
