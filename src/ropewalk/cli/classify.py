"""`ropewalk classify`: train a text classifier on a CSV file, and label texts with it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.cli.options import with_options
from ropewalk.optional import install_command
from ropewalk.training.classification import ClassifySettings

if TYPE_CHECKING:
    from ropewalk.progress import ProgressBar
    from ropewalk.training import Event


def train(
    *,
    settings: ClassifySettings,
    test: Annotated[
        Path | None,
        typer.Option(help="CSV file to score on, once, at the end.", metavar="FILE", rich_help_panel="Run"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the run, the finished model and its scores.", rich_help_panel="Run")
    ],
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the run in --out and start over.", rich_help_panel="Run")
    ] = False,
) -> None:
    """Train a text classifier on the texts of a CSV file.

    The classifier is a bidirectional encoder, trained from scratch. To resume a stopped run, rerun the command. The
    folder --out contains the classifier. With --test, it also contains result.json (scores with intervals, scores by
    class, the scores of TF-IDF with logistic regression), confusion.png and confusion.svg.
    """
    from ropewalk.progress import ProgressBar
    from ropewalk.training.classification import train_classifier

    try:
        with ProgressBar("classify", lines=False) as bar:
            progress = ClassifierProgress(bar)
            result = train_classifier(settings, out, test=test, restart=restart, report=progress)
    except KeyboardInterrupt as stop:
        typer.echo(f"classify: {str(stop) or 'stopped'}. To resume, rerun the command.", err=True)
        raise typer.Exit(130) from None
    if result is not None:
        _draw(result, out)
        _print_scores(result)
    if progress.already:
        typer.echo(f"classify: the run in {out} is already finished; --restart trains it again.", err=True)
    else:
        typer.echo(f"classify: wrote {out}", err=True)


def predict(
    model: Annotated[Path, typer.Argument(help="The output folder of `classify train`.")],
    file: Annotated[Path, typer.Argument(help="CSV file (UTF-8, with a header) of the texts.")],
    out: Annotated[Path | None, typer.Option(help="The CSV file to write [default: standard output].")] = None,
    text_column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
) -> None:
    """Label the texts of a CSV file.

    The result is CSV with the columns text, label and probability of the label, in the order of the file.
    """
    from ropewalk.atomic_io import check_writable, write_whole
    from ropewalk.checkpoints.load import load_classifier
    from ropewalk.progress import ProgressBar
    from ropewalk.training.classification.dataset import read_rows
    from ropewalk.training.classification.score import predict as label
    from ropewalk.training.classification.score import predictions_csv

    if out is not None:
        check_writable(out)
    classifier = load_classifier(model)
    rows = read_rows(file, text_column=text_column, label_column=None)
    with ProgressBar("classify", total=len(rows), lines=False) as bar:
        predictions = label(classifier, rows.texts, report=bar.advance_to)
    content = predictions_csv(rows.texts, predictions)
    if out is None:
        sys.stdout.write(content)
    else:
        write_whole(out, content)
        typer.echo(f"classify: wrote {len(rows):,} rows to {out}", err=True)


def _draw(result: dict[str, Any], out: Path) -> None:
    """Draw confusion.png and confusion.svg if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        typer.echo(f"classify: no figure, because matplotlib is missing: {install_command('figures')}", err=True)
        return
    from ropewalk.atomic_io import write_whole
    from ropewalk.figures.confusion import confusion
    from ropewalk.figures.style import render
    from ropewalk.training.classification.score import counts_of

    figure = confusion(counts_of(result), result["classes"])
    for kind in ("png", "svg"):
        write_whole(out / f"confusion.{kind}", render(figure, kind))


def _print_scores(result: dict[str, Any]) -> None:
    """Print our scores and the baseline's, with intervals."""
    from rich.console import Console
    from rich.table import Table

    title = f"{result['data']['test_rows']:,} test rows, {len(result['classes'])} classes; 95 % bootstrap intervals"
    table = Table("", title=title, title_justify="left")
    for name in ("accuracy", "macro-F1"):
        table.add_column(name, justify="right")
    for label, key in (("classifier", "test"), ("TF-IDF + regression", "baseline"), ("difference", "difference")):
        scores = [result[key][name] for name in ("accuracy", "macro_f1")]
        sign = "+" if key == "difference" else ""
        cells = [
            f"{score['value']:{sign}.3f} ({score['interval'][0]:{sign}.3f} to {score['interval'][1]:{sign}.3f})"
            for score in scores
        ]
        table.add_row(label, *cells)
    Console(highlight=False).print(table)


class ClassifierProgress:
    """Display the events of a classifier's run in an open bar; `already` is True if the run was already finished."""

    def __init__(self, bar: ProgressBar) -> None:
        self.bar, self.already = bar, False

    def __call__(self, event: Event) -> None:
        """Show one event."""
        facts = event.facts
        if event.kind == "start":
            self._start(event)
        elif event.kind == "step":
            self.bar.advance_to(event.step)
        elif event.kind == "log":
            line = f"epoch {facts['epoch']:>3}  loss {facts['loss']:.4f}"
            if "validation_loss" in facts:
                line += f"  validation {facts['validation_loss']:.4f}, accuracy {facts['validation_accuracy']:.4f}, "
                line += f"macro-F1 {facts['validation_macro_f1']:.4f}{'  best' if facts['best'] else ''}"
            self.bar.line(f"{line}  {facts['seconds']:,.0f} s")
        elif event.kind == "score":
            self.bar.line(f"classify: scores {facts['rows']:,} test rows")
            self.bar.begin("scoring", 0)
        elif event.kind == "done":
            self.already = facts["already"]

    def _start(self, event: Event) -> None:
        facts = event.facts
        self.bar.line(
            f"classify {'continues after step ' + str(event.step) if event.step else 'begins'}: "
            f"{facts['train_rows']:,} rows to train on, {facts['validation_rows']:,} to validate on, "
            f"{facts['classes']} classes, {facts['parameters']:,} parameters, {event.steps:,} steps at most, "
            f"{facts['precision']} on {facts['device']}, {facts['threads']} threads"
        )
        if facts["cut"]:
            self.bar.line(f"classify: {facts['cut']:,} texts have at least --max-length tokens and may have been cut")
        self.bar.begin("training", event.steps)
        self.bar.advance_to(event.step)


classify = typer.Typer(
    name="classify",
    help="Train a text classifier, and label texts with it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (train, predict):
    classify.command()(with_options(command))
