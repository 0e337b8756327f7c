"""`ropewalk classify`: train a text classifier from a CSV file, and label texts with it."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ropewalk.classification import ClassifySettings, train_classifier
from ropewalk.classification.settings import CLASS_WEIGHTS, SELECT
from ropewalk.training import Event
from ropewalk.training.settings import TEXT_ENCODINGS

classify = typer.Typer(
    name="classify",
    help="Train a text classifier, and label texts with it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@classify.command("train")
def train(
    data: Annotated[Path, typer.Option(help="CSV file (UTF-8, with a header) to train on.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="Folder of the run, the finished model and its scores.")],
    test: Annotated[Path | None, typer.Option(help="CSV file to score on, once, at the end.", metavar="FILE")] = None,
    baseline: Annotated[bool, typer.Option(help="Score TF-IDF and logistic regression beside it.")] = True,
    text_column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
    label_column: Annotated[str, typer.Option(help="Column of the labels.")] = "label",
    validation: Annotated[Path | None, typer.Option(help="CSV file to validate on.", metavar="FILE")] = None,
    validation_fraction: Annotated[float, typer.Option(help="Else: this part of each class; 0 for none.")] = 0.1,
    tokenizer: Annotated[str, typer.Option(help='"bpe" (trained on the texts), "bytes", or a tokenizer.json.')] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Tokens of the trained tokenizer.")] = 4096,
    lowercase: Annotated[bool, typer.Option(help="The trained tokenizer folds case.")] = True,
    max_length: Annotated[int, typer.Option(help="Tokens; longer texts are cut.")] = 256,
    layers: Annotated[int, typer.Option(help="Layers.")] = 2,
    hidden_size: Annotated[int, typer.Option(help="Features of a token.")] = 192,
    heads: Annotated[int, typer.Option(help="Heads.")] = 3,
    intermediate_size: Annotated[int, typer.Option(help="Features inside the feed-forward.")] = 512,
    encoding: Annotated[str, typer.Option(help=f"How positions are known: {', '.join(TEXT_ENCODINGS)}.")] = "rope",
    pooling: Annotated[str, typer.Option(help='"mean" of the tokens, or the "first".')] = "mean",
    initializer_range: Annotated[float, typer.Option(help="Standard deviation of the first matrices.")] = 0.04,
    embedding_range: Annotated[float, typer.Option(help="Standard deviation of the first embeddings.")] = 0.3,
    dropout: Annotated[float, typer.Option(help="Of embeddings, residual branches, pooled vector.")] = 0.2,
    attention_dropout: Annotated[float, typer.Option(help="Of attention's weights.")] = 0.0,
    token_dropout: Annotated[float, typer.Option(help="Whole tokens left out in training.")] = 0.1,
    label_smoothing: Annotated[float, typer.Option(help="Of the targets.")] = 0.1,
    class_weights: Annotated[str, typer.Option(help=f"{' or '.join(CLASS_WEIGHTS)}.")] = "none",
    batch_size: Annotated[int, typer.Option(help="Texts at a time.")] = 64,
    epochs: Annotated[int, typer.Option(help="Times over the texts, at most.")] = 16,
    patience: Annotated[int, typer.Option(help="Epochs without a better validation score, then it ends.")] = 8,
    select: Annotated[str, typer.Option(help=f"That score: {', '.join(SELECT)}.")] = "accuracy",
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    final_lr: Annotated[float, typer.Option(help="Last learning rate, as a part of the peak.")] = 0.01,
    warmup: Annotated[int | None, typer.Option(help="Updates to the peak [default: a twentieth, at most 200].")] = None,
    weight_decay: Annotated[float, typer.Option(help="AdamW's, on matrices only.")] = 0.1,
    beta1: Annotated[float, typer.Option(help="AdamW's first.")] = 0.9,
    beta2: Annotated[float, typer.Option(help="AdamW's second.")] = 0.98,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient.")] = 1.0,
    precision: Annotated[str, typer.Option(help="Of products: auto, float32, bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the split, weights, order and dropout.")] = 0,
    resume: Annotated[bool, typer.Option(help="Insist that --out holds a run to go on with.")] = False,
    restart: Annotated[bool, typer.Option(help="Throw away the run that --out holds.")] = False,
) -> None:
    """Train a bidirectional encoder from scratch on the texts of a CSV file.

    The same command goes on with a run that was stopped, from its last checkpoint. --out becomes the classifier's
    folder; with --test it also holds result.json (scores with intervals, each class's own, the baseline's) and
    confusion.png and .svg.
    """
    given = locals()
    settings = ClassifySettings(**{name: given[name] for name in ClassifySettings.names()})
    if baseline and test is not None:
        from ropewalk.models.extras import need

        need("sklearn", extra="classify")  # said now, not after the training
    shown = _Shown()
    try:
        result = train_classifier(
            settings, out, test=test, baseline=baseline, resume=resume, restart=restart, report=shown
        )
    except KeyboardInterrupt as stop:
        shown.close()
        typer.echo(f"classify: {stop or 'stopped'}. The same command goes on from the last checkpoint.", err=True)
        raise typer.Exit(130) from None
    finally:
        shown.close()
    if result is not None:
        _draw(result, out)
        _print_scores(result)
    if shown.already:
        typer.echo(f"classify: {out} held this finished run already; --restart trains it anew.", err=True)
    else:
        typer.echo(f"classify: wrote {out}", err=True)


@classify.command("predict")
def predict(
    model: Annotated[Path, typer.Argument(help="The --out of `classify train`.")],
    file: Annotated[Path, typer.Argument(help="CSV file (UTF-8, with a header) that has the texts.")],
    out: Annotated[Path | None, typer.Option(help="Write here [default: standard output].")] = None,
    text_column: Annotated[str, typer.Option(help="Column of the texts.")] = "text",
) -> None:
    """Label the texts of a CSV file: text, label and the label's probability, as CSV, in the order given."""
    from rich.console import Console
    from rich.progress import Progress

    from ropewalk.classification.dataset import read_rows
    from ropewalk.classification.predict import predict as label
    from ropewalk.context.output import check_writable, write_whole
    from ropewalk.models.classifier import TextClassifier

    if out is not None:
        check_writable(out)
    classifier = TextClassifier.load(model)
    rows = read_rows(file, text_column=text_column, label_column=None)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("label", total=len(rows))
        found = label(classifier, rows.texts, report=lambda done: bar.update(task, completed=done))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["text", "label", "probability"])
    writer.writerows([row, name, f"{share:.4f}"] for row, (name, share) in zip(rows.texts, found, strict=True))
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        write_whole(out, text.getvalue())
        typer.echo(f"classify: wrote {len(found):,} rows to {out}", err=True)


def _draw(result: dict[str, Any], out: Path) -> None:
    """confusion.png and confusion.svg, where matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        typer.echo("classify: no figure: pip install 'ropewalk[figures]'", err=True)
        return
    from ropewalk.classification.score import counts_of
    from ropewalk.context.output import write_whole
    from ropewalk.figures.confusion import confusion
    from ropewalk.figures.style import render

    figure = confusion(counts_of(result), result["classes"])
    for kind in ("png", "svg"):
        write_whole(out / f"confusion.{kind}", render(figure, kind))


def _print_scores(result: dict[str, Any]) -> None:
    """Ours and the baseline's, with intervals, on standard output."""
    from rich.console import Console
    from rich.table import Table

    title = f"{result['data']['test_rows']:,} test rows, {len(result['classes'])} classes; 95 % bootstrap intervals"
    table = Table("", title=title, title_justify="left")
    for name in ("accuracy", "macro-F1"):
        table.add_column(name, justify="right")
    for who, key in (("classifier", "test"), ("TF-IDF + regression", "baseline"), ("difference", "difference")):
        if key in result:
            scores = [result[key][name] for name in ("accuracy", "macro_f1")]
            sign = "+" if key == "difference" else ""
            cells = [
                f"{score['value']:{sign}.3f} ({score['interval'][0]:{sign}.3f} to {score['interval'][1]:{sign}.3f})"
                for score in scores
            ]
            table.add_row(who, *cells)
    Console(highlight=False).print(table)


class _Shown:
    """Events as a progress bar where there is a terminal, and one line per epoch anywhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("classify"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("classify", total=None)
        self.already = False

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if event.kind == "start":
            self.bar.start()
            self.bar.update(self.task, total=event.steps, completed=event.step)
            self._print(
                f"classify {f'goes on after step {event.step}' if event.step else 'begins'}: "
                f"{facts['train_rows']:,} rows to train on, {facts['validation_rows']:,} to validate on, "
                f"{facts['classes']} classes, {facts['parameters']:,} parameters, {event.steps:,} steps at most, "
                f"{facts['precision']} on {facts['device']}, {facts['threads']} threads"
            )
            if facts["cut"]:
                self._print(f"classify: {facts['cut']:,} texts reach --max-length and may have been cut")
        elif event.kind == "step":
            self.bar.update(self.task, completed=event.step)
        elif event.kind == "log":
            line = f"epoch {facts['epoch']:>3}  loss {facts['loss']:.4f}"
            if "validation_loss" in facts:
                line += f"  validation {facts['validation_loss']:.4f}, accuracy {facts['validation_accuracy']:.4f}, "
                line += f"macro-F1 {facts['validation_macro_f1']:.4f}{'  best' if facts['best'] else ''}"
            self._print(f"{line}  {facts['seconds']:,.0f} s")
        elif event.kind == "score":
            self.close()
            self._print(f"classify: scores {facts['rows']:,} test rows")
        elif event.kind == "done":
            self.already = facts["already"]

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        self.bar.stop()
