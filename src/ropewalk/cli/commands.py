"""The commands that run no model: `ropewalk extend`, `report`, `serve-config`, `vectors` and `explore`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.atomic_io import check_output, write_output
from ropewalk.cli.options import MODEL, path, read_path, tokens, write_record
from ropewalk.errors import RopeError
from ropewalk.progress import plain_console
from ropewalk.serving.engines import ENGINES


def apply(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    out: Annotated[Path, path("A folder to write, or a file NEW.gguf or NEW.json (only the config).")],
    target: Annotated[int | None, tokens("Desired length [default: four times the trained length].")] = None,
    trained_length: Annotated[
        int | None, tokens("Trained length in tokens [default: from the config or its family].")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Extension method, with the name used by `ropewalk doctor` [default: yarn].")
    ] = None,
    length: Annotated[
        int | None, tokens("Length to state in the config, if it is less than the target [default: the target].")
    ] = None,
    record: Annotated[
        Path | None, path("Use method and lengths of a record of `ropewalk doctor --json`.", "--from")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at --out.")] = False,
) -> None:
    """Write a folder or .gguf file with a method in its config.

    The folder appears when it is complete. No weights are opened; those of a .gguf file are copied block by block.
    """
    from ropewalk import serving
    from ropewalk.progress import shown as display
    from ropewalk.rope.hugging_face import text_part

    with display("extend", lines=True) as progress:
        written = serving.apply(
            model, out, method=method, target=target, length=length, trained_length=trained_length, record=record,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    config = text_part(written)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if out.suffix == ".gguf":
        shown = {key: value for key, value in written.items() if not isinstance(value, list)}
        typer.echo(f"keys: {json.dumps(shown)}")
    elif rope is not None:
        ordered = {key: rope[key] for key in sorted(rope, key=lambda key: (key != "rope_type", key != "rope_theta"))}
        typer.echo(f"rope_parameters: {json.dumps(ordered)[:300]}")
    typer.echo(f"extend: wrote {out}")


extend = typer.Typer(
    name="extend", help="Extend a checkpoint's context: apply a method.", no_args_is_help=True, rich_markup_mode=None
)
extend.command()(apply)


def report(
    records: Annotated[
        list[Path],
        typer.Argument(
            parser=read_path,
            metavar="RECORDS",
            help="JSON files of `ropewalk doctor --json` or --report, also of --map.",
        ),
    ],
    out: Annotated[Path, path("Write index.html, report.json and figures into this folder.")],
) -> None:
    """Write the doctor's report from its record, or compare several; runs no model."""
    from ropewalk.diagnosis.depth import read_record
    from ropewalk.diagnosis.page import PAGE, write_report

    check_output(out / PAGE)
    page = write_report(out, *map(read_record, records))
    typer.echo(f"Report: {shlex.quote(str(page))}")


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
    lines += [*served.steps, f"\nChecked for {engine}: {served.checked}."]
    lines += ["Known behaviour of this engine:"] * bool(served.caveats)
    lines += [f"- {caveat.text} ({caveat.evidence})" for caveat in served.caveats]
    plain_console().print("\n".join(lines), soft_wrap=True)
    write_record(json_file, served.to_json())


def vectors(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG_OR_MODEL",
            help='Each a config.json, a Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".',
        ),
    ],
    out: Annotated[Path, path("Write NAME.json and NAME.safetensors into this folder.")] = Path("vectors"),
) -> None:
    """Write the conformance vectors of a config: files to test an engine's rotation in any language."""
    from ropewalk.audit.vectors import conformance_vectors

    made = [conformance_vectors(source) for source in sources]
    names = [one.name for one in made]
    if len(set(names)) < len(names):
        raise RopeError(
            "vectors: two sources have the same file name.",
            facts={"sources": sources, "names": names},
            cure="Run the command for each of them with a different --out.",
        )
    for one in made:
        paths = one.write(out)
        size = sum(path.stat().st_size for path in paths)
        cases = len(one.document["cases"])
        plain_console().print(f"{paths[0]} and {paths[1].name}: {cases} cases, {size:,} bytes", soft_wrap=True)


def explore(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help='A model to add: a config.json, a folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".',
        ),
    ] = None,
    out: Annotated[Path | None, path("Write the page into this file instead of opening it.", metavar="FILE")] = None,
) -> None:
    """Open the explorer: interactive pictures of rotary position embeddings, in one HTML file.

    The file works offline.

    For example: ropewalk explore tiny
    """
    from ropewalk.figures.explorer import page_of, show

    if out is not None:
        check_output(out)
    page = page_of(source)
    if out is None:
        typer.echo(show(page))
    else:
        write_output(out, page)
        typer.echo(str(out))
