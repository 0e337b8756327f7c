"""`ropewalk vectors`: write files to test the rotary position embedding of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.cli.options import path


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
    from ropewalk.errors import RopeError
    from ropewalk.progress import plain_console

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
