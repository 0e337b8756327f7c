"""`ropewalk train`: a decoder language model from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ropewalk.training.settings import DTYPES, Housekeeping, TrainSettings, in_file


@dataclass(frozen=True)
class Weights:
    """The form of the finished weights."""

    dtype: str = in_file(f"Dtype of the finished weights: {', '.join(DTYPES)}.", "bfloat16")


def train(
    *,
    settings: TrainSettings,
    out: Annotated[Path, typer.Option(help="Folder of the run, and of the finished model.", rich_help_panel="Run")],
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the run in --out and start over.", rich_help_panel="Run")
    ] = False,
    housekeeping: Housekeeping,
    weights: Weights,
) -> None:
    """Train a decoder language model from scratch.

    To resume a stopped run from its last checkpoint, rerun the command. --out becomes a Hugging Face folder for
    `ropewalk generate OUT "..."`, ropewalk.load and transformers. The log is OUT/training-log.jsonl.
    """
    from ropewalk.cli.training_progress import TrainingProgress
    from ropewalk.progress import ProgressBar
    from ropewalk.training import train as run

    try:
        with ProgressBar("train", lines=False) as bar:
            run(
                settings,
                out,
                restart=restart,
                dtype=weights.dtype,
                housekeeping=housekeeping,
                report=TrainingProgress("train", bar),
            )
    except KeyboardInterrupt as stop:
        typer.echo(f"train: {str(stop) or 'stopped'}. To resume, rerun the command.", err=True)
        raise typer.Exit(130) from None
