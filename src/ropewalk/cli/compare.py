"""`ropewalk compare`: the same decoder with each encoding, measured far beyond the length it was trained at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ropewalk.comparison import Row
    from ropewalk.comparison.run import Tell


def compare(
    out: Annotated[Path, typer.Option(help="Folder of the runs; the same command goes on with what is in it.")],
    text: Annotated[list[Path] | None, typer.Option(help="UTF-8 text to train on [default: Moby Dick].")] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Text to measure on [default: the last tenth of each "
        "--text].")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Four encodings, one seed: minutes.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every encoding, three seeds, longer: a few nights.")] = False,
    encodings: Annotated[str | None, typer.Option(help="Names with commas between.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Whole numbers with commas between.")] = None,
    scalings: Annotated[str | None, typer.Option(help='Of each rope when tested: pi, ntk, yarn, or "none".')] = None,
    size: Annotated[str | None, typer.Option(help="Preset of `ropewalk train`.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens of a window: the trained length.")] = None,
    multiples: Annotated[str | None, typer.Option(help="Of it, to measure at [default: 1,2,4,8,16].")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows at a time.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Tokens of the trained tokenizer.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Measured on, at most.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes of one thread [default: one for each core].")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it: FILE.png, FILE.svg, or FILE for both; and its "
        "convergence beside it.")] = None,
) -> None:  # fmt: skip
    """Train one decoder with each encoding on the same text, and measure its loss at 1 to 16 times that length.

    Without --quick or --full it takes about an hour on two cores. Stopped, the same command goes on. The record is
    OUT/results.jsonl.
    """
    from rich.console import Console

    from ropewalk.comparison import PRESETS, CompareSettings
    from ropewalk.comparison import compare as run
    from ropewalk.comparison.run import read_record

    if quick and full:
        raise RopeError("compare: --quick and --full exclude each other.", cure="Pass one of them.")
    if workers is not None and workers < 1:
        raise RopeError("compare: --workers must be at least 1.", facts={"workers": workers}, cure="Leave it out.")
    if figure is not None:
        _check_figure(figure)
    chosen: dict[str, Any] = dict(PRESETS["quick" if quick else "full" if full else "hour"])
    if encodings is not None:
        chosen["encodings"] = _names(encodings)
    if scalings is not None:
        chosen["scalings"] = () if scalings == "none" else _names(scalings)
    for name, given in (("seeds", seeds), ("multiples", multiples)):
        if given is not None:
            chosen[name] = _numbers(name, given)
    numbers = {"size": size, "seq_len": seq_len, "steps": steps, "batch_size": batch_size, "vocab_size": vocab_size,
               "lr": lr, "tokens": tokens}  # fmt: skip
    chosen |= {name: value for name, value in numbers.items() if value is not None}
    texts = tuple(map(str, text or [_packaged_text(out)]))
    settings = CompareSettings(text=texts, validation=tuple(map(str, validation or ())), **chosen)
    console = Console()
    try:
        with _progress(len(settings.jobs)) as report:
            record = run(settings, out, workers=workers, report=report)
    except KeyboardInterrupt:
        typer.echo("compare: stopped. The same command goes on from the last checkpoints.", err=True)
        raise typer.Exit(130) from None
    _show(console, *read_record(record))
    for path in [] if figure is None else _draw(record, figure):
        console.print(f"Figure: {path}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Record: {record}", highlight=False, markup=False, soft_wrap=True)


def _show(console: Console, first: dict[str, Any], lines: Sequence[dict[str, Any]]) -> None:
    from rich.text import Text

    from ropewalk.comparison import summarise

    trained = first["settings"]["seq_len"]
    rows = summarise(lines, trained)
    for table in (
        *_tables(console, "Loss, nats per token, by length of the window", rows, rise=False),
        *_tables(console, f"Rise in loss over {trained:,} tokens, the trained length", rows, rise=True),
    ):
        console.print(table)
    count = len(first["settings"]["seeds"])
    if count > 1:
        console.print(Text(f"Mean of {count} seeds and half of the 95 % t interval."))


def _tables(console: Console, title: str, rows: Sequence[Row], *, rise: bool) -> list[Table]:
    from ropewalk.cli.tables import stacked

    lengths = sorted({row.length for row in rows})[int(rise) :]
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        mean, band = (row.rise, row.rise_interval) if rise else (row.loss, row.interval)
        name = row.encoding if row.scaling is None else f"{row.encoding}, {row.scaling}"
        shown = "no value" if mean is None else f"{round(mean, 3) + 0.0:{'+' if rise else ''}.3f}"
        cells.setdefault(name, {})[row.length] = shown + ("" if band is None else f"±{(band[1] - band[0]) / 2:.3f}")
    lines = {name: [by_length.get(length, "") for length in lengths] for name, by_length in cells.items()}
    return stacked(console, title, [(f"{length:,}", "bold") for length in lengths], lines, names="encoding")


def _draw(record: Path, path: Path) -> list[Path]:
    """The two figures of a record, each as it is named or as .png and .svg; returns what was written."""
    from ropewalk.context.output import write_whole
    from ropewalk.figures.style import render
    from ropewalk.gallery import draw

    written = []
    for name, place in (
        ("comparison", path),
        ("convergence", path.with_name(f"{path.stem}-convergence{path.suffix}")),
    ):
        drawn = draw(name, record=str(record))
        for kind in [path.suffix[1:]] if path.suffix else ["png", "svg"]:
            written.append(place.with_suffix(f".{kind}"))
            write_whole(written[-1], render(drawn, kind))
    return written


def _check_figure(path: Path) -> None:
    from ropewalk.models.extras import need

    if path.suffix not in ("", ".png", ".svg"):
        raise RopeError(
            "compare: a figure is a .png or an .svg file.",
            facts={"--figure": str(path)},
            cure="Name one of these, or leave the ending out to have both.",
        )
    need("matplotlib", extra="figures")


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


def _numbers(name: str, given: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in _names(given))
    except ValueError as error:
        raise RopeError(
            f"compare: --{name} takes whole numbers with commas between.",
            facts={name: given},
            cure="For example 0,1,2.",
        ) from error


def _packaged_text(out: Path) -> Path:
    """The packaged Moby Dick as a file of the run's folder."""
    from ropewalk.context.output import write_whole
    from ropewalk.context.sources import read_text

    path = out / "moby_dick.txt"
    if not path.exists():
        write_whole(path, read_text(None)[1])
    return path


@contextmanager
def _progress(runs: int) -> Iterator[Tell]:
    """A bar for each run on a terminal, a line at its beginning and end elsewhere; on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        total = bar.add_task("all runs", total=runs, said="")
        tasks: dict[tuple[str, int], Any] = {}
        finished = 0

        def report(encoding: str, seed: int, step: int, steps: int, facts: dict[str, Any]) -> None:
            nonlocal finished
            name = f"{encoding}, seed {seed}"
            if (encoding, seed) not in tasks:
                tasks[encoding, seed] = bar.add_task(name, total=steps, said="")
                if not console.is_terminal:
                    console.print(f"compare: {name}", markup=False)
            said = "measuring" if facts.get("measuring") else f"loss {facts['loss']:.2f}" if "loss" in facts else ""
            bar.update(tasks[encoding, seed], completed=step, said=said)
            if facts.get("done"):
                finished += 1
                bar.update(total, completed=finished)
                bar.remove_task(tasks[encoding, seed])
                if not console.is_terminal:
                    console.print(f"compare: {name} is done", markup=False)

        yield report
