"""`ropewalk train`: a decoder language model from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ropewalk.training import SIZES, Event, Housekeeping, TrainSettings
from ropewalk.training import train as run_training

_TEXTS, _SHAPE, _STEPS, _RUN = "Texts and tokenizer", "Shape of the model", "Optimisation", "The run"


def _option(help_: str, panel: str, **more: Any) -> Any:
    return typer.Option(help=help_, rich_help_panel=panel, **more)


def train(
    text: Annotated[list[Path], _option("UTF-8 text to train on; each file is one document.", _TEXTS)],
    out: Annotated[Path, _option("Folder of the run, and of the finished model.", _RUN)],
    validation: Annotated[list[Path] | None, _option("Text to validate on.", _TEXTS)] = None,
    validation_fraction: Annotated[
        float, _option("Else: the last part of each text, kept out of training; 0 for none.", _TEXTS)
    ] = 0.05,
    validation_windows: Annotated[int, _option("At most so many windows.", _TEXTS)] = 64,
    validation_length: Annotated[
        int | None, _option("Tokens of a validation window [default: --seq-len].", _TEXTS)
    ] = None,
    tokenizer: Annotated[str, _option('"bpe" (trained on the text), "bytes", or a tokenizer.json.', _TEXTS)] = "bpe",
    vocab_size: Annotated[int, _option("Tokens of the trained tokenizer.", _TEXTS)] = 4096,
    size: Annotated[str, _option(f"Preset: {', '.join(SIZES)}; the next five override it.", _SHAPE)] = "tiny",
    layers: Annotated[int | None, _option("Layers.", _SHAPE)] = None,
    hidden_size: Annotated[int | None, _option("Features of a token.", _SHAPE)] = None,
    heads: Annotated[int | None, _option("Query heads.", _SHAPE)] = None,
    kv_heads: Annotated[int | None, _option("Key and value heads [default with --heads: the same].", _SHAPE)] = None,
    intermediate_size: Annotated[int | None, _option("Features inside the feed-forward.", _SHAPE)] = None,
    theta: Annotated[float, _option("Rotary base.", _SHAPE)] = 10_000.0,
    seq_len: Annotated[int, _option("Tokens of a window: the trained length.", _SHAPE)] = 256,
    dropout: Annotated[float, _option("Of the residual branches.", _SHAPE)] = 0.0,
    batch_size: Annotated[int, _option("Windows at a time.", _STEPS)] = 16,
    accumulation: Annotated[int, _option("Batches summed for one update.", _STEPS)] = 1,
    steps: Annotated[int | None, _option("Updates.", _STEPS)] = None,
    epochs: Annotated[float | None, _option("Or: times over the text [default: 4].", _STEPS)] = None,
    lr: Annotated[float, _option("Peak learning rate.", _STEPS)] = 3e-3,
    final_lr: Annotated[float, _option("Last learning rate, as a part of the peak.", _STEPS)] = 0.1,
    warmup: Annotated[int | None, _option("Updates to the peak [default: a twentieth, at most 200].", _STEPS)] = None,
    weight_decay: Annotated[float, _option("AdamW's, on matrices only.", _STEPS)] = 0.1,
    beta1: Annotated[float, _option("AdamW's first.", _STEPS)] = 0.9,
    beta2: Annotated[float, _option("AdamW's second.", _STEPS)] = 0.95,
    clip: Annotated[float, _option("Largest norm of the gradient.", _STEPS)] = 1.0,
    precision: Annotated[str, _option("Of products: auto, float32, bfloat16.", _STEPS)] = "auto",
    device: Annotated[str, _option("auto, cpu, cuda.", _STEPS)] = "auto",
    seed: Annotated[int, _option("Of weights, order and dropout.", _STEPS)] = 0,
    resume: Annotated[bool, _option("Insist that --out holds a run to go on with.", _RUN)] = False,
    restart: Annotated[bool, _option("Throw away the run that --out holds.", _RUN)] = False,
    dtype: Annotated[str, _option("Of the finished weights: bfloat16, float32, float16.", _RUN)] = "bfloat16",
    log_every: Annotated[int, _option("Updates between lines of the log.", _RUN)] = 10,
    validate_every: Annotated[int | None, _option("Updates [default: a twentieth of the run].", _RUN)] = None,
    checkpoint_every: Annotated[int | None, _option("Updates [default: a twentieth of the run].", _RUN)] = None,
    keep: Annotated[int, _option("Checkpoints kept.", _RUN)] = 2,
) -> None:
    """Train a decoder language model from scratch.

    The same command goes on with a run that was stopped, from its last checkpoint. --out becomes a Hugging Face folder:
    `ropewalk generate OUT "..."`, ropewalk.load and transformers read it. The log is OUT/training-log.jsonl.
    """
    given = locals()
    settings = TrainSettings(
        **{name: given[name] for name in TrainSettings.names() if name not in ("text", "validation")},
        text=tuple(map(str, text)),
        validation=tuple(map(str, validation or ())),
    )
    housekeeping = Housekeeping(
        log_every=log_every, validate_every=validate_every, checkpoint_every=checkpoint_every, keep=keep
    )
    shown = _Shown()
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


class _Shown:
    """Events as a progress bar where there is a terminal, and one line per log entry anywhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("train", total=None, loss="-", speed="-")

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if event.kind == "start":
            self.bar.start()
            self.bar.update(self.task, total=event.steps, completed=event.step)
            begins = f"goes on after step {event.step}" if event.step else "begins"
            self._print(
                f"train {begins}: {facts['parameters']:,} parameters, a vocabulary of {facts['vocab_size']:,}, "
                f"{facts['train_tokens']:,} tokens of text, {event.steps:,} steps, "
                f"{facts['precision']} on {facts['device']}, {facts['threads']} threads"
            )
            if facts["began_with_threads"] != facts["threads"]:
                self._print(
                    f"train: the run began with {facts['began_with_threads']} threads; with another number sums round "
                    "otherwise, so it will not be the same bit for bit. Set OMP_NUM_THREADS to have it so."
                )
        elif event.kind == "step":
            self.bar.update(self.task, completed=event.step)
        elif event.kind == "log":
            self._log(event)
        elif event.kind == "done":
            self.close()
            self._print(f"train: {'finished before' if facts['already'] else 'wrote'} {facts['out']}")

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
