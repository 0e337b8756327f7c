"""`ropewalk figure`: draw the figures of the lesson by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from ropewalk.figures.entry import Entry


def figure(
    name: Annotated[str | None, typer.Argument(help="The figure; --list shows all.", metavar="NAME")] = None,
    more: Annotated[
        list[str] | None, typer.Argument(help="Further settings, as in --set A=1 B=2.", metavar="[KEY=VALUE...]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A .png or .svg file, or both without an ending [default: NAME]; with --all, a folder."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the figure (repeatable).")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the figures, or the settings of NAME.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Draw every figure, as PNG and SVG.")] = False,
) -> None:
    """Compute and draw a figure of the lesson.

    For example: ropewalk figure clocks --set head_dim=128 theta=500000 --out clocks.svg
    """
    from ropewalk.figures.catalog import ENTRIES
    from ropewalk.figures.entry import known

    words = [word for word in (name, *(more or ())) if word is not None]
    names = [word for word in words if "=" not in word]
    chosen = [*(settings or ()), *(word for word in words if "=" in word)]
    if len(names) > 1 or (everything and (names or chosen)):
        raise RopeError(
            "figure: pass either a name with its settings, or --all without settings.",
            facts={"names": names, "settings": chosen, "--all": everything},
            cure="Run ropewalk figure NAME --set key=value, or ropewalk figure --all --out FOLDER.",
        )
    if listing:
        _list(known(ENTRIES, names[0]) if names else None)
    elif everything:
        _draw([(entry, {}, (out or Path()) / entry.name) for entry in ENTRIES.values() if entry.ready()])
    elif names:
        entry = known(ENTRIES, names[0])
        _draw([(entry, dict(entry.read(chosen)), out or Path(entry.name))])
    else:
        raise RopeError(
            "figure: the name is missing.",
            facts={"known": ", ".join(ENTRIES)},
            cure="Run ropewalk figure NAME; `ropewalk figure --list` describes the figures.",
        )


def _list(entry: Entry | None) -> None:
    """Print one line for each figure, or for each setting of one."""
    from ropewalk.figures.catalog import ENTRIES

    if entry is None:
        ready = [one for one in ENTRIES.values() if one.ready()]
        width = max(len(one.name) for one in ready)
        for one in ready:
            typer.echo(f"{one.name:<{width}}  {one.line}")
        return
    typer.echo(f"{entry.name}: {entry.line}")
    for parameter in entry.parameters.values():
        typer.echo(f"  {parameter}")


def _draw(work: list[tuple[Entry, dict[str, object], Path]]) -> None:
    """Compute and write each figure; check every path before any work."""
    from ropewalk.figures.style import picture_files, write_figure
    from ropewalk.progress import ProgressBar

    places = [picture_files(path, "figure", new_folder=True) for _, _, path in work]
    try:
        for number, ((entry, settings, _), paths) in enumerate(zip(work, places, strict=True), 1):
            with ProgressBar("figure", lines=False) as bar:
                bar.begin(f"{entry.name} ({number} of {len(work)})", 0)
                write_figure(entry.figure(**settings), paths)  # type: ignore[arg-type]
            for path in paths:
                typer.echo(str(path))
    except KeyboardInterrupt:
        typer.echo("figure: stopped; the files named above are complete.", err=True)
        raise typer.Exit(130) from None
