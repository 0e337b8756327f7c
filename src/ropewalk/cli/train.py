"""`ropewalk train`: a decoder language model from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.training import SIZES, Event, Housekeeping, TrainSettings
from ropewalk.training import train as run_training
from ropewalk.training.settings import TEXT_ENCODINGS


def train(
    text: Annotated[
        list[Path], typer.Option(help="UTF-8 text to train on; each file is one document.", metavar="FILE...")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run, and of the finished model.")],
    more: Annotated[list[Path] | None, typer.Argument(help="More texts: --text A B C.", metavar="FILE")] = None,
    validation: Annotated[list[Path] | None, typer.Option(help="Text to validate on.")] = None,
    validation_fraction: Annotated[
        float, typer.Option(help="Else: the last part of each text, kept out of training; 0 for none.")
    ] = 0.05,
    validation_windows: Annotated[int, typer.Option(help="At most so many windows.")] = 64,
    validation_length: Annotated[
        int | None, typer.Option(help="Tokens of a validation window [default: --seq-len].")
    ] = None,
    tokenizer: Annotated[str, typer.Option(help='"bpe" (trained on the text), "bytes", or a tokenizer.json.')] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Tokens of the trained tokenizer.")] = 4096,
    size: Annotated[str, typer.Option(help=f"Preset: {', '.join(SIZES)}; the next five override it.")] = "tiny",
    layers: Annotated[int | None, typer.Option(help="Layers.")] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Features of a token.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key and value heads [default with --heads: the same].")] = None,
    intermediate_size: Annotated[int | None, typer.Option(help="Features inside the feed-forward.")] = None,
    encoding: Annotated[str, typer.Option(help=f"How positions are known: {', '.join(TEXT_ENCODINGS)}.")] = "rope",
    theta: Annotated[float, typer.Option(help="Base of rope, xpos, sinusoidal, transformer_xl.")] = 10_000.0,
    seq_len: Annotated[int, typer.Option(help="Tokens of a window: the trained length.")] = 256,
    dropout: Annotated[float, typer.Option(help="Of the residual branches.")] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Windows at a time.")] = 16,
    accumulation: Annotated[int, typer.Option(help="Batches summed for one update.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Or: times over the text [default: 4].")] = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3,
    final_lr: Annotated[float, typer.Option(help="Last learning rate, as a part of the peak.")] = 0.1,
    warmup: Annotated[int | None, typer.Option(help="Updates to the peak [default: a twentieth, at most 200].")] = None,
    weight_decay: Annotated[float, typer.Option(help="AdamW's, on matrices only.")] = 0.1,
    beta1: Annotated[float, typer.Option(help="AdamW's first.")] = 0.9,
    beta2: Annotated[float, typer.Option(help="AdamW's second.")] = 0.95,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient.")] = 1.0,
    precision: Annotated[str, typer.Option(help="Of products: auto, float32, bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, order and dropout.")] = 0,
    resume: Annotated[bool, typer.Option(help="Insist that --out holds a run to go on with.")] = False,
    restart: Annotated[bool, typer.Option(help="Throw away the run that --out holds.")] = False,
    dtype: Annotated[str, typer.Option(help="Of the finished weights: bfloat16, float32, float16.")] = "bfloat16",
    log_every: Annotated[int, typer.Option(help="Updates between lines of the log.")] = 10,
    validate_every: Annotated[int | None, typer.Option(help="Updates [default: a twentieth of the run].")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Updates [default: a twentieth of the run].")] = None,
    keep: Annotated[int, typer.Option(help="Checkpoints kept.")] = 2,
) -> None:
    """Train a decoder language model from scratch.

    The same command goes on with a run that was stopped, from its last checkpoint. --out becomes a Hugging Face folder:
    `ropewalk generate OUT "..."`, ropewalk.load and transformers read it. The log is OUT/training-log.jsonl.
    """
    given = locals()
    settings = TrainSettings(
        **{name: given[name] for name in TrainSettings.names() if name not in ("text", "validation")},
        text=tuple(map(str, [*text, *(more or [])])),
        validation=tuple(map(str, validation or ())),
    )
    housekeeping = Housekeeping(
        log_every=log_every, validate_every=validate_every, checkpoint_every=checkpoint_every, keep=keep
    )
    shown = Shown()
    try:
        run_training(
            settings,
            out,
            resume=resume,
            restart=restart,
            dtype=dtype,
            housekeeping=housekeeping,
            report=shown,
        )
    except KeyboardInterrupt as stop:
        shown.close()
        typer.echo(f"train: {stop or 'stopped'}. The same command goes on from the last checkpoint.", err=True)
        raise typer.Exit(130) from None
    finally:
        shown.close()


class Shown:
    """Events as a progress bar where there is a terminal, and one line per log entry anywhere; `name` begins them."""

    def __init__(self, name: str = "train") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.name, self.console = name, Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn(name),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task(name, total=None, loss="-", speed="-")

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if event.kind == "start":
            self.bar.start()
            self.bar.update(self.task, total=event.steps, completed=event.step)
            begins = f"goes on after step {event.step}" if event.step else "begins"
            self._print(
                f"{self.name} {begins}: {facts['parameters']:,} parameters, a vocabulary of {facts['vocab_size']:,}, "
                f"{facts['train_tokens']:,} tokens of text, {event.steps:,} steps, "
                f"{facts['precision']} on {facts['device']}, {facts['threads']} threads"
            )
            if facts["began_with_threads"] != facts["threads"]:
                self._print(
                    f"{self.name}: the run began with {facts['began_with_threads']} threads; with another number sums "
                    "round otherwise, so it will not be the same bit for bit. Set OMP_NUM_THREADS to have it so."
                )
        elif event.kind == "step":
            self.bar.update(self.task, completed=event.step)
        elif event.kind == "log":
            self._log(event)
        elif event.kind == "done":
            self.close()
            self._print(f"{self.name}: {'finished before' if facts['already'] else 'wrote'} {facts['out']}")

    def _log(self, event: Event) -> None:
        facts = event.facts
        speed = f"{facts['tokens_per_second']:,.0f}"
        self.bar.update(self.task, loss=f"{facts['loss']:.3f}", speed=speed)
        if "validation_loss" not in facts and self.console.is_terminal:
            return
        line = f"step {event.step:>6}  loss {facts['loss']:.4f}  lr {facts['lr']:.2e}  {speed} tokens/s"
        if "validation_loss" in facts:
            blocks = "  ".join(f"{a}-{b}: {nats:.3f}" for a, b, nats in facts["validation_by_position"])
            line += f"  validation {facts['validation_loss']:.4f}  ({blocks})"
        self._print(line)

    def _print(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        self.bar.stop()
