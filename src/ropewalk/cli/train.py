"""`ropewalk train`: a decoder language model from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.training import Housekeeping, TrainSettings


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run, and of the finished model.")],
    settings: TrainSettings,
    housekeeping: Housekeeping,
    resume: Annotated[bool, typer.Option("--resume", help="Insist that --out holds a run to continue.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard the run that --out holds.")] = False,
    dtype: Annotated[str, typer.Option(help="Dtype of the finished weights: bfloat16, float32, float16.")] = "bfloat16",
) -> None:
    """Train a decoder language model from scratch.

    The same command continues a run that was stopped, from its last checkpoint. --out becomes a Hugging Face folder:
    `ropewalk generate OUT "..."`, ropewalk.load and transformers read it. The log is OUT/training-log.jsonl.
    """
    from ropewalk.cli.training_progress import TrainingProgress
    from ropewalk.progress import ProgressBar
    from ropewalk.training import train as run

    try:
        with ProgressBar("train", lines=False) as bar:
            run(
                settings,
                out,
                resume=resume,
                restart=restart,
                dtype=dtype,
                housekeeping=housekeeping,
                report=TrainingProgress("train", bar),
            )
    except KeyboardInterrupt as stop:
        typer.echo(f"train: {str(stop) or 'stopped'}. The same command continues from the last checkpoint.", err=True)
        raise typer.Exit(130) from None
