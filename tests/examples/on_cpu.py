"""Run examples/tune.py with its arguments, sharded by FSDP on a CPU, where accelerate would replicate the model."""

from __future__ import annotations

from typing import Any

from accelerate import DistributedType, PartialState
from torch.distributed.tensor import DTensor
from transformers import Trainer

from tests.examples.loading import example

make, save = Trainer.create_accelerator_and_postprocess, Trainer.save_model


def made(self: Any) -> None:
    """Let accelerate apply its FSDP plugin."""
    PartialState().distributed_type = DistributedType.MULTI_GPU
    make(self)


def saved(self: Any, *arguments: Any, **options: Any) -> None:
    """Check that every process has only a part of the weights."""
    assert all(isinstance(weight, DTensor) for weight in self.model_wrapped.parameters())
    save(self, *arguments, **options)


if __name__ == "__main__":
    Trainer.create_accelerator_and_postprocess, Trainer.save_model = made, saved
    example("tune").main()
