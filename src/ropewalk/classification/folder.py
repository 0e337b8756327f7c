"""A classifier's run on disk: the training room's folder, with checkpoints that also hold the best weights so far."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.models.classifier import TextClassifier
from ropewalk.models.extras import need
from ropewalk.models.files import read_json, whole_folder, write_json
from ropewalk.training.resume import (
    CHECKPOINTS,
    RunFolder,
    optimizer_tensors,
    random_states,
    restore_optimizer,
    restore_random,
)

RESULT = "result.json"
Weights = dict[str, Tensor]


class ClassifierFolder:
    """run.json, training-log.jsonl and checkpoints/step-*/ as `RunFolder` has them; result.json when it is scored."""

    def __init__(self, out: str | Path) -> None:
        self.run = RunFolder(out)
        self.path = self.run.path

    def clear(self) -> None:
        """Remove the run's files, the result with them."""
        self.run.clear()
        (self.path / RESULT).unlink(missing_ok=True)

    def result(self) -> dict[str, Any] | None:
        """What result.json says, or None where nothing was scored."""
        path = self.path / RESULT
        return read_json(path) if path.is_file() else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json, whole."""
        write_json(self.path / RESULT, dict(result))

    def write_checkpoint(
        self,
        step: int,
        model: TextClassifier,
        optimizer: torch.optim.Optimizer,
        best: Weights,
        carried: Mapping[str, Any],
        keep: int,
    ) -> None:
        """Write checkpoint `step`, then remove all but the newest `keep`. `carried` is the loop's own JSON state."""
        target = self.path / CHECKPOINTS / f"step-{step:08d}"
        if target.exists():
            return
        target.parent.mkdir(exist_ok=True)
        store = need("safetensors.torch").save_file
        with whole_folder(target, frozenset()) as staging:
            store(_held(model.state_dict()), staging / "model.safetensors")
            store({**optimizer_tensors(model, optimizer), **random_states()}, staging / "optimizer.safetensors")
            if best:
                store(best, staging / "best.safetensors")
            write_json(staging / "state.json", {"step": step, **carried})
        for old in self.run.checkpoints()[:-keep]:
            doomed = old.with_name(f".{old.name}.old")  # renamed first: a kill leaves no half checkpoint by its name
            os.replace(old, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def read_checkpoint(
        self, path: Path, model: TextClassifier, optimizer: torch.optim.Optimizer
    ) -> tuple[dict[str, Any], Weights]:
        """Put a checkpoint into model, optimizer and torch's generators; returns its state.json and best weights."""
        state = read_json(path / "state.json")
        read = need("safetensors.torch").load_file
        best: Weights = {}
        try:
            weights, tensors = read(path / "model.safetensors"), read(path / "optimizer.safetensors")
            if (path / "best.safetensors").is_file():
                best = read(path / "best.safetensors")
        except Exception as error:  # safetensors has its own exception, which is not importable when it is missing
            raise RopeError(
                "classify: a checkpoint cannot be read.",
                facts={"folder": str(path), "error": str(error)},
                cure="Remove this checkpoint's folder: the run goes on from the one before it.",
            ) from error
        model.load_state_dict(weights)
        restore_optimizer(model, optimizer, tensors)
        restore_random(tensors)
        return state, best

    def write_model(self, model: TextClassifier) -> None:
        """The finished model where the run is: config.json comes last, and makes it one."""
        staging = self.path / ".model.new"
        shutil.rmtree(staging, ignore_errors=True)
        model.save(staging)
        for file in sorted(staging.iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(file, self.path / file.name)
        staging.rmdir()


def snapshot(model: TextClassifier) -> Weights:
    """A copy of the weights as they are now."""
    return {name: tensor.clone() for name, tensor in _held(model.state_dict()).items()}


def _held(state: Mapping[str, Tensor]) -> Weights:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
