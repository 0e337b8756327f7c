"""Checkpoints of a run on several processes: each writes what it holds, while training goes on.

torch.distributed.checkpoint plans, writes and reads them, in its safetensors storage. Its own format is not used: its
`.metadata` is a pickle, which torch 2.13 reads by `pickle.load`, and which whoever can write into the folder could fill
with code. Shapes and offsets stand in the safetensors headers instead, and the checkpoint is committed as one process's
is: by the rename of its folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from ropewalk.distributed.sharding import reshard
from ropewalk.errors import RopeError
from ropewalk.optional import need
from ropewalk.training.checkpoint import optimizer_tensors, random_states, restore_optimizer, restore_random
from ropewalk.training.run_folder import SHARDS, RunFolder

_CURE = "Remove this checkpoint's folder: the run continues from the one before it."


class ShardedCheckpoints:
    """Writes the checkpoints of one run, one at a time, in the background; every rank makes one and calls it alike.

    Each rank writes its shards into a temporary folder. When all of them are on the disk, rank 0 moves them into a
    checkpoint, which `RunFolder` renames into place: one that a kill tore is a temporary folder and nothing else.
    `part` is the part of a batch that this rank has; ranks of the same part (tensor parallelism) have the same random
    state.
    """

    def __init__(self, folder: RunFolder, part: int) -> None:
        self.folder, self.part = folder, part
        self.group = dist.new_group(backend="gloo")  # of its own: training's collectives go on beside a save's
        self._pending: tuple[int, Future[Any]] | None = None

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, keep: int
    ) -> None:
        """Copy what this rank holds and begin to write checkpoint `step`; the one before it is awaited first.

        `state` becomes state.json, as rank 0 gives it. The newest `keep` checkpoints stay.
        """
        self.wait()
        need("safetensors.torch")
        reshard(model)
        shards = self.folder.checkpoint(step).with_name(f".step-{step:08d}.shards")

        def commit(names: Collection[str]) -> None:
            sizes = {name: (shards / name).stat().st_size for name in sorted(names) if (shards / name).is_file()}
            if len(sizes) < len(names):
                raise RopeError(
                    "train: the processes do not write into one folder.",
                    facts={"folder": str(shards), "shards": len(names), "seen by rank 0": len(sizes)},
                    cure="Choose an --out that all machines share.",
                )
            self.folder.write_checkpoint(
                step, lambda staging: os.rename(shards, staging / SHARDS), {**state, "shards": sizes}, keep=keep
            )

        tensors = {**_trained(model), **optimizer_tensors(model, optimizer), **_random_of(self.part)}
        saving = async_save(tensors, storage_writer=_Writer(shards, commit), process_group=self.group)
        self._pending = step, cast("Future[Any]", saving)

    def wait(self) -> Path | None:
        """Wait until the save in hand is committed; its checkpoint, or None where there was none.

        Raises `RopeError` where a shard could not be written.
        """
        if self._pending is None:
            return None
        (step, saving), self._pending = self._pending, None
        try:
            saving.result()
        except CheckpointException as error:
            raise RopeError(
                "train: a checkpoint cannot be written.",
                facts={"step": step, **{f"rank {rank}": str(failed[0]) for rank, failed in error.failures.items()}},
                cure="The checkpoint before it is whole: when the cause is gone, the same command goes on from there.",
            ) from error
        return self.folder.checkpoint(step)


def read_sharded(
    checkpoint: Path,
    state: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    part: int = 0,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Restore model, optimizer and random generators, however many ranks wrote them and on whatever mesh.

    - `state`: the checkpoint's state.json. `group`: of the ranks that read together; None: this process reads alone.

    A part of a batch that the run that saved did not have keeps the random state that it was built with. Raises
    `RopeError` where a shard is missing or cut short, and where the checkpoint holds other tensors than the model
    trains.
    """
    folder = checkpoint / SHARDS
    _check_whole(folder, state.get("shards", {}))
    model_part = _trained(model)
    empty = {
        f"{kind}.{name.removeprefix(_MODEL)}": torch.zeros(()) if kind == "step" else torch.zeros_like(tensor)
        for name, tensor in model_part.items()
        for kind in ("step", "exp_avg", "exp_avg_sq")
    }
    reader = HuggingFaceStorageReader(str(folder))
    try:
        held = reader.read_metadata().state_dict_metadata
    except Exception as error:  # safetensors has its own exception, which is not importable when it is missing
        raise _unreadable(folder, error) from error
    stored = {name: tuple(cast(TensorStorageMetadata, of).size) for name, of in held.items()}
    random = {name: tensor for name, tensor in _random_of(part).items() if name in stored}
    tensors = {**model_part, **empty, **random}
    _check_same_tensors(folder, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, stored)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(cast("dict[str, Any]", tensors), storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointException as error:  # what some rank met in reading; a rank that is gone is another error
        raise _unreadable(folder, error) from error
    restore_optimizer(model, optimizer, tensors)
    if random:
        restore_random({name.rpartition(".")[0]: tensors[name] for name in random})


class _Writer(HuggingFaceStorageWriter):
    """torch's writer of safetensors shards, which says when the shards of all ranks are on the disk."""

    def __init__(self, folder: Path, commit: Callable[[Collection[str]], None]) -> None:
        super().__init__(path=str(folder), save_distributed=True)
        self.commit = commit

    def finish(self, metadata: Any, results: Any) -> None:
        """Called on rank 0 alone, after every rank has written and flushed its shards."""
        self.commit({each.storage_data.relative_path for of_rank in results for each in of_rank})


_MODEL = "model."


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """What is trained, by name: this rank's shards, as DTensors, where the model is sharded."""
    return {f"{_MODEL}{name}": part.detach() for name, part in model.named_parameters() if part.requires_grad}


def _random_of(part: int) -> dict[str, Tensor]:
    """The states of this process's generators, by their names in a checkpoint."""
    return {f"{name}.{part}": state for name, state in random_states().items()}


def _unreadable(folder: Path, error: BaseException) -> RopeError:
    facts = {"folder": str(folder), "error": str(error)}
    return RopeError("train: a checkpoint cannot be read.", facts=facts, cure=_CURE)


def _check_whole(folder: Path, shards: Mapping[str, int]) -> None:
    """Refuse a checkpoint that has lost a shard, or a part of one, since it was committed."""
    there = {file.name: file.stat().st_size for file in folder.iterdir()}
    damaged = {name: (size, there.get(name)) for name, size in shards.items() if there.get(name) != size}
    if damaged or not shards:
        raise RopeError(
            "train: a checkpoint cannot be read: shards of it are missing or cut short.",
            facts={
                "folder": str(folder),
                **{name: f"{size} bytes -> {found}" for name, (size, found) in damaged.items()},
            },
            cure=_CURE,
        )


def _check_same_tensors(folder: Path, wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model: what is missing, what is left over, what has another shape."""
    kept = {name: shape for name, shape in stored.items() if name in wanted or not name.startswith("random.")}
    if kept != wanted:
        differ = [name for name in sorted(kept.keys() | wanted.keys()) if kept.get(name) != wanted.get(name)]
        raise RopeError(
            "train: the checkpoint holds other tensors than the model trains.",
            facts={"folder": str(folder), **{name: f"{kept.get(name)} -> {wanted.get(name)}" for name in differ[:4]}},
            cure="Begin again (--restart), or continue with the settings that the run began with.",
        )
