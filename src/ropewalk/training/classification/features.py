"""Frozen features: the pooled states of some layers for every text, kept on disk part by part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.atomic_io import remove_folder, write_whole
from ropewalk.models.checkpoint_classifier import Body, pool
from ropewalk.optional import need
from ropewalk.training.checkpoint import read_tensors
from ropewalk.training.classification.batches import by_length, pad
from ropewalk.training.objective import autocast

Matrix = NDArray[np.float32]
FOLDER = "features"
PART = 256  # texts of one file: what an interrupt can cost
POOLED = ("mean", "last")


@dataclass(frozen=True)
class Features:
    """Of every text, the pooled states of some layers: `pooled[name]` is `[texts, layers, hidden]`, float16."""

    layers: tuple[int, ...]
    pooled: dict[str, Tensor]
    seconds: float
    cpu_seconds: float
    """What computing them took, all calls together."""

    def matrix(self, layer: int, pooling: str) -> Matrix:
        """float32 `[texts, features]`, as `pool` gives them."""
        place = self.layers.index(layer)
        parts = [self.pooled[name][:, place].float() for name in POOLED if name in pooling]
        found: Matrix = torch.cat(parts, -1).numpy()
        return found


def read_features(
    body: Body,
    ids: Sequence[Sequence[int]],
    layers: Sequence[int],
    folder: Path,
    *,
    batch_size: int,
    precision: str,
    device: torch.device,
    report: Callable[[int], None],
) -> Features:
    """Features of texts as token ids; parts that `folder` holds are not computed again.

    `folder` is named after everything that they depend on. Texts are read in the order of their length, `PART` of them
    to a file; `report` is called with the number done. float16: states are normalised, and far within its range.
    """
    lengths = [len(text) for text in ids]
    order = [index for [index] in by_length(lengths, 1)]
    files = [folder / f"part-{number:05d}.safetensors" for number in range(-(-len(order) // PART))]
    short = body.cut(max(layers))
    for number, path in enumerate(files):
        if not path.is_file():
            part = [ids[i] for i in order[number * PART : (number + 1) * PART]]
            tensors = _part(short, part, layers, batch_size, precision, device)
            write_whole(path, need("safetensors.torch").save(tensors))
        report(min(len(order), (number + 1) * PART))
    parts = [read_tensors(path) for path in files]
    back = torch.tensor(order).argsort()
    pooled = {name: torch.cat([part[name] for part in parts])[back] for name in POOLED}
    seconds, cpu_seconds = torch.stack([part["seconds"] for part in parts]).sum(0).tolist()
    return Features(tuple(layers), pooled, seconds, cpu_seconds)


@torch.inference_mode()
def _part(
    body: Body, ids: Sequence[Sequence[int]], layers: Sequence[int], batch_size: int, precision: str,
    device: torch.device,
) -> dict[str, Tensor]:  # fmt: skip
    """The tensors of one file: `mean` and `last` `[texts, layers, hidden]`, and `seconds` on two clocks."""
    started = _clocks()
    batches: dict[str, list[Tensor]] = {name: [] for name in POOLED}
    with autocast(precision, device):
        for begin in range(0, len(ids), batch_size):
            batch = ids[begin : begin + batch_size]
            padded, _ = pad(batch)
            lengths = torch.tensor([len(text) for text in batch], device=device)
            states = body.states(padded.to(device), lengths, layers)
            for name, found in batches.items():
                found.append(torch.stack([pool(of_layer, lengths, name) for of_layer in states], 1).half().cpu())
    seconds = torch.tensor([now - then for now, then in zip(_clocks(), started, strict=True)], dtype=torch.float64)
    return {name: torch.cat(found) for name, found in batches.items()} | {"seconds": seconds}


def _clocks() -> tuple[float, float]:
    """Seconds that pass, and seconds of this process on all cores."""
    return time.perf_counter(), time.process_time()


def forget_features(out: Path) -> None:
    """Remove what a run's folder holds of features: the run is finished, or is thrown away."""
    remove_folder(out / FOLDER)
