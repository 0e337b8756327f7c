"""`ropewalk extend search`: the few numbers of a rule, or one divisor per pair, searched on a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.cli.extend_output import MODEL, OVERWRITE, drawing, stopped
from ropewalk.extend.settings import SearchSettings

if TYPE_CHECKING:
    from ropewalk.extend.search_run import Searched


def search(
    model: Annotated[str, MODEL],
    settings: SearchSettings,
    out: Annotated[Path | None, typer.Option(help="Write the result as a Hugging Face folder.")] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    record: Annotated[Path | None, typer.Option(help="Write the numbers to this file, the figure beside it.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away the evaluations kept so far.")] = False,
) -> None:
    """Search numbers that every engine reads, or divisors of the pairs.

    The search starts from the published methods and minimizes the loss on --text, at little cost within the trained
    length. The result is measured on --validation, beside every method, and held against the best of them. Stopped,
    the same command continues; a larger --budget prolongs it.
    """
    from ropewalk.atomic_io import check_writable
    from ropewalk.extend import search as run
    from ropewalk.processes import current
    from ropewalk.progress import ProgressBar

    if record is not None:
        check_writable(record)
    try:
        with ProgressBar("extend", every=10) as progress:
            done = run(
                model,
                settings,
                out,
                overwrite=overwrite,
                restart=restart,
                progress=progress,
                draw=drawing("search_record_figure"),
            )
    except KeyboardInterrupt:
        raise stopped("stopped; every finished evaluation is kept") from None
    _print(done)
    if record is not None and current().is_first:
        _write_record(done, record)
        typer.echo(f"extend: wrote {record}")
    if done.exported is not None:
        typer.echo(f"extend: wrote {done.exported.folder}")


def _print(done: Searched) -> None:
    """The table of losses, and the result in words."""
    from rich.console import Console
    from rich.table import Table

    console, record = Console(highlight=False), done.record
    console.print(done.protocol, markup=False, soft_wrap=True)
    table = Table(title="Loss, nats per token", title_justify="left")
    of_answers = {row["name"]: row for row in (record["held_out_answers"] or {"rows": ()})["rows"]}
    first = ("search, answers", "held out, answers", "found") if of_answers else ("search text, beyond",)
    for head in ("", *first, "held out, beyond", "held out, within"):
        table.add_column(head, justify="left" if not head else "right")
    searched = {"searched": record["best"], **{row["name"]: row for row in record["starts"]}}
    for row in record["held_out"]["rows"]:
        name = row["name"]
        table.add_row(
            name,
            _in_search(searched[name], record["windows"]),
            *([f"{of_answers[name]['loss']:.4f}", f"{of_answers[name]['found']:.3f}"] if of_answers else []),
            f"{row['beyond']:.4f}",
            f"{row['within']:.4f}",
        )
    console.print(table)
    for method, reason in record["left_out"]:
        console.print(f"Left out: {method}: {reason}", markup=False)
    best_start = done.result.best_start
    if "numbers" in record["best"]:
        numbers = ", ".join(f"{name} {value:g}" for name, value in record["best"]["numbers"].items())
        console.print(f"Searched: {record['best']['rule']}{f' with {numbers}' if numbers else ''}.", markup=False)
    if "parts" in record["best"]:
        divisors = ", ".join(map(str, record["best"]["parts"]))
        console.print(f"Searched: DPE(({divisors}), window={record['best']['window']}).", markup=False)
    console.print(
        f"{record['evaluations']} evaluations; on the search {'answers' if of_answers else 'text'} "
        f"{record['best']['loss']:.4f}, against {best_start.loss:.4f} of {best_start.point.name}.",
        markup=False,
    )
    for line in done.sentences:
        console.print(line, markup=False, soft_wrap=True)


def _in_search(row: Mapping[str, Any], items: int) -> str:
    """A point's loss in the search, and whether it was left early."""
    if row["items"] < items:
        return f"left after {row['items']} of {items}" if row["items"] else "beyond the limit within"
    return "not a number" if row["loss"] is None else f"{row['loss']:.4f}"


def _write_record(done: Searched, path: Path) -> None:
    """The record as `path`, and its figure beside it as .png and .svg where matplotlib is installed."""
    from importlib.util import find_spec

    from ropewalk.atomic_io import write_whole

    write_whole(path, json.dumps(done.record, indent=1, allow_nan=False) + "\n")
    if find_spec("matplotlib") is not None:
        from ropewalk.figures.extension import search_record_figure
        from ropewalk.figures.style import render

        for kind in ("png", "svg"):
            write_whole(path.with_suffix(f".{kind}"), render(search_record_figure(done.record), kind))
