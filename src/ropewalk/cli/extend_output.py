"""Share arguments, figures and printing among the commands of `ropewalk extend`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ropewalk.extend.job import Draw, Extended

MODEL = typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny".')
OUT = typer.Option(help="The folder to write.", show_default=False)
OUT_OR_FILE = typer.Option(help="The folder to write, or a file MODEL.gguf.", show_default=False)
OVERWRITE = typer.Option("--overwrite", help="Replace what an export wrote to --out.")


def drawing(figure: str) -> Draw | None:
    """Return a function that draws a record as PNG, by `ropewalk.figures.extension`; None if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return None
    from ropewalk.figures import extension
    from ropewalk.figures.style import render

    return lambda record: render(getattr(extension, figure)(record), "png")


def print_extended(done: Extended) -> None:
    """Print the losses before and after, and what was written."""
    from rich.console import Console

    from ropewalk.statistics import signed

    console = Console(highlight=False)
    width = max((len(variant["name"]) for variant in done.record["variants"]), default=0)
    for variant in done.record["variants"]:
        beyond = variant["loss_beyond"]
        line = f"{variant['name']:<{width}} within {variant['loss_within']:.3f}"
        console.print(line + ("" if beyond is None else f"  beyond {beyond:.3f}"), markup=False)
    verdict = done.record["verdict"]
    against = "tuned" if "tuned_minus_crop_beyond" in verdict else "method"
    differences = {
        f"{against}_minus_crop_beyond": f"{against} - crop",
        "tuned_minus_its_crop_beyond": "tuned - its crop",
        "interaction_beyond": "(tuned - untuned) x (full - crop)",
    }
    for key, what in differences.items():
        found = verdict.get(key)
        if found is not None:
            interval = None if found["ci"] is None else tuple(found["ci"])
            trained = done.record["protocol"]["trained_length"]
            line = f"{what} beyond {trained:,} tokens: {signed(found['nats'], interval)} nats per token"
            console.print(line, markup=False, soft_wrap=True)
    rope = done.exported.rope
    if rope is not None:
        console.print(f"rope_parameters: {json.dumps(rope.parameters)[:300]}", markup=False, soft_wrap=True)
    elif done.exported.folder.suffix == ".gguf":
        shown = {key: value for key, value in done.exported.config.items() if not isinstance(value, list)}
        console.print(f"keys: {json.dumps(shown)}", markup=False, soft_wrap=True)
    console.print(f"extend: wrote {done.exported.folder}", markup=False, soft_wrap=True)


def stopped(reason: object = "") -> typer.Exit:
    """Print how to resume after Ctrl-C; return exit status 130."""
    typer.echo(f"extend: {str(reason) or 'stopped'}. The same command continues from there.", err=True)
    return typer.Exit(130)
