"""Small texts and small runs."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from ropewalk.training import Housekeeping, TrainSettings
from ropewalk.training.data import Batch

SENTENCE = "the rope was laid along a walk of three hundred yards and every strand had its own turn to keep"


def prose(words: int, seed: int = 0) -> str:
    """Words in a random order, in lines of twelve."""
    chosen = random.Random(seed).choices(SENTENCE.split(), k=words)
    return "\n".join(" ".join(chosen[i : i + 12]) for i in range(0, words, 12)) + "\n"


def small(text: str, **changes: Any) -> TrainSettings:
    """Settings of a run that takes a tenth of a second."""
    settings: dict[str, Any] = {
        "tokenizer": "bytes",
        "layers": 2,
        "hidden_size": 16,
        "heads": 2,
        "kv_heads": 1,
        "intermediate_size": 32,
        "seq_len": 16,
        "batch_size": 4,
        "steps": 12,
        "dropout": 0.1,
        "precision": "float32",
        "device": "cpu",
        "validation_windows": 4,
    }
    return TrainSettings(text=(text,), **(settings | changes))


EVERY = Housekeeping(log_every=2, validate_every=4, checkpoint_every=3)


def own_positions(batch: Batch) -> Tensor:
    """Where a batch's tokens stand: as it says, or from 0 on in each document; a window that wraps around holds two."""
    if batch.position_ids is not None:
        return batch.position_ids
    documents = torch.zeros_like(batch.inputs) if batch.document_ids is None else batch.document_ids
    return torch.tensor([[int((row[:i] == row[i]).sum()) for i in range(len(row))] for row in documents])
