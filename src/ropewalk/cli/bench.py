"""`ropewalk bench`: how fast rotation is here, beside a copy and beside other packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.bench.plan import Preset
    from ropewalk.bench.record import Record

BUSY = 0.5  # load of the last minute, in processes


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small shapes, seconds in all: only to try it.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Up to 131,072 tokens: for a machine with memory.")] = False,
    seconds: Annotated[float | None, typer.Option(help="Spent on each group [default: the preset's].")] = None,
    threads: Annotated[int | None, typer.Option(help="For all who take part [default: torch's].")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    peers: Annotated[str, typer.Option(help='"all", "none", or names with commas between.')] = "all",
    out: Annotated[Path | None, typer.Option(help="Append records to this file of JSON lines [default: "
        "benchmarks/results/rotation.jsonl in a checkout, else ./ropewalk-bench.jsonl].")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it: FILE.png, FILE.svg, or FILE for both.")] = None,
    again: Annotated[Path | None, typer.Option("--from", metavar="RECORDS", help="Measure nothing: show and draw the "
        "last run of this file.")] = None,
) -> None:  # fmt: skip
    """Time rotation beside a copy of the same bytes and beside other packages, once it has been found correct.

    Every result is held against a float64 oracle before it is timed. Contenders take turns; ratios are of medians.
    Stopped by Ctrl-C, it shows what was measured until then, and that is in the file.
    """
    from rich.console import Console

    from ropewalk.bench.record import append, last_run, results_file

    if figure is not None:
        _check_figure(figure)
    console = Console()
    if again is not None:
        _show(console, last_run(again), figure)
        return
    preset, named, place = _prepare(quick, wide, seconds, threads, device, peers)
    out = out or results_file("rotation.jsonl")
    from ropewalk.bench.run import run
    from ropewalk.progress import ProgressBar

    records: list[Record] = []
    stopped = False
    try:
        with ProgressBar("bench") as bar:
            for record in run(preset, device=place, seconds=seconds, peers=named, progress=bar):
                append(out, record)
                records.append(record)
    except KeyboardInterrupt:
        stopped = True
    if records:
        _show(console, records, figure)
        console.print(f"Records: {out}", highlight=False, markup=False, soft_wrap=True)
    if stopped:
        typer.echo("bench: stopped; what was measured is in the file.", err=True)
        raise typer.Exit(130)


def _prepare(
    quick: bool, wide: bool, seconds: float | None, threads: int | None, device: str, peers: str
) -> tuple[Preset, list[str] | None, str]:
    """The preset, the peers by name (None: all) and the device, once all of it makes sense."""
    import torch

    from ropewalk.bench.peers import peers_of
    from ropewalk.bench.plan import DEFAULT, QUICK, WIDE
    from ropewalk.bench.run import usable

    if quick and wide:
        raise RopeError("bench: --quick and --wide exclude each other.", cure="Pass one of them.")
    for name, value in (("--seconds", seconds), ("--threads", threads)):
        if value is not None and not value > 0:
            raise RopeError(f"bench: {name} must be above 0.", facts={name: value}, cure="Leave it out.")
    place = usable(device)
    known = peers_of(place)
    named = None if peers == "all" else [] if peers == "none" else [name.strip() for name in peers.split(",")]
    unknown = [name for name in named or () if name not in known]
    if unknown:
        raise RopeError(
            "bench: there is no such peer on this device.",
            facts={"--peers": unknown, "device": place},
            cure=f'Choose from {", ".join(known)}; or "all", or "none".',
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return QUICK if quick else WIDE if wide or place != "cpu" else DEFAULT, named, place


def _show(console: Console, records: Sequence[Record], figure: Path | None) -> None:
    """The gate, the bounds, the sweep, who was left out; then the figure."""
    from rich.text import Text

    from ropewalk.bench.summary import copy_bandwidths, left_out, shares
    from ropewalk.cli.bench_tables import bounds_table, share_tables

    first = records[0]
    console.print(Text(f"{first['device']}, {first['threads']} threads, ropewalk {first['commit'] or 'installed'}"))
    if first["load"] and first["load"][0] > BUSY:
        console.print(Text(f"The machine was busy at the start (load {first['load'][0]}): times are noisy."))
    for record in records:
        if record["kind"] == "gate":
            used = ", ".join(f"{share:.0%} in {dtype}" for dtype, share in record["share_of_bound"].items())
            console.print(Text(f"{record['cases']} cases agree with the float64 oracle. Of the bound used: {used}."))
    console.print(bounds_table(records))
    curves = shares(records)
    for table in share_tables(curves):
        console.print(table)
    for dtype, bandwidth in copy_bandwidths(records).items():
        console.print(Text(f"copy, {dtype}, at the largest size: {bandwidth / 1e9:.1f} GB/s read and written"))
    for name, reasons in left_out(records).items():
        console.print(Text(f"not timed: {name}: {'; '.join(reasons)}"))
    if figure is not None and curves:
        _draw(curves, first, figure)
        console.print(Text(f"Figure: {figure}"), soft_wrap=True)


def _draw(curves: dict[str, Any], facts: Record, path: Path) -> None:
    from ropewalk.atomic_io import write_whole
    from ropewalk.figures.bandwidth import copy_bandwidth
    from ropewalk.figures.style import render

    heads = "queries of 32 heads and keys of 8, 128 features each" if facts["preset"] != "quick" else "small shapes"
    where = f"{facts['device']}, {facts['threads']} threads, torch {facts['versions'].get('torch', '')}"
    note = (
        f"Median time of y.copy_(x) over each one's own; {heads}, half-split (rotary-embedding-torch: interleaved).\n"
        f"{where}, {facts['date'][:10]}"
    )
    drawn = copy_bandwidth(curves, title="Rotation: share of copy bandwidth by size", note=note)
    for kind in [path.suffix[1:]] if path.suffix else ["png", "svg"]:
        write_whole(path.with_suffix(f".{kind}"), render(drawn, kind))


def _check_figure(path: Path) -> None:
    """Before any work: the kind of file is known, and matplotlib is there."""
    from ropewalk.optional import need

    if path.suffix not in ("", ".png", ".svg"):
        raise RopeError(
            "bench: a figure is a .png or an .svg file.",
            facts={"--figure": str(path)},
            cure="Name one of these, or leave the ending out to have both.",
        )
    need("matplotlib", extra="figures")
