"""Figures as files: a .png, an .svg, or both; each written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.atomic_io import check_writable, write_whole
from ropewalk.errors import RopeError
from ropewalk.figures.style import render
from ropewalk.optional import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "svg")


def targets(out: Path) -> list[Path]:
    """The files that `out` names: itself, or without a known ending both; checked before any work is done.

    A name such as "v1.2" has no known ending; another picture format is refused.
    """
    need("matplotlib", extra="figures")
    ending = out.suffix[1:].lower()
    if ending in ("pdf", "jpg", "jpeg", "eps", "ps", "webp", "gif", "tif", "tiff"):
        raise RopeError(
            "figure: a figure is a .png or an .svg file.",
            facts={"--out": str(out)},
            cure="Name one of these, or leave the ending out to have both.",
        )
    chosen = [out] if ending in KINDS else [out.with_name(f"{out.name}.{kind}") for kind in KINDS if out.name]
    for path in chosen or [out]:
        check_writable(path, new_folder=True)
    return chosen


def write(figure: Figure, paths: list[Path]) -> None:
    """The figure into every file, in the kind that its ending says."""
    for path, content in [(path, render(figure, path.suffix[1:].lower())) for path in paths]:
        write_whole(path, content)
