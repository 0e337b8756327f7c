"""Where a rotation can run on this machine: every backend, and the compiled one with every instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ropewalk import compiled
from ropewalk.rotation.backends import BACKENDS


@dataclass(frozen=True)
class Place:
    """A backend's name, a device it runs on, and the instruction set that it is held to, if it has several."""

    backend: str
    device: str = "cpu"
    instructions: str | None = None

    def __str__(self) -> str:
        return self.instructions or (self.backend if self.device == "cpu" else f"{self.backend} on {self.device}")

    @property
    def interpreted(self) -> bool:
        """Triton's kernels without a GPU: correct, and slow."""
        return self.backend == "triton" and self.device == "cpu"

    @contextmanager
    def held(self) -> Iterator[Place]:
        """Run with this instruction set; the one before comes back afterwards."""
        if self.instructions is None:
            yield self
            return
        before = compiled.kernels.instruction_set()
        compiled.kernels.use_instruction_set(self.instructions)
        try:
            yield self
        finally:
            compiled.kernels.use_instruction_set(before)


def _places() -> Iterator[Place]:
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        for module in BACKENDS:
            if module.reasons_not_to(torch.zeros(1, device=device)):
                continue
            if module.name == "cpu":
                for instructions in compiled.kernels.instruction_sets():
                    yield Place("cpu", device, instructions)
            else:
                yield Place(module.name, device)


PLACES = tuple(_places())
KERNELS = tuple(place for place in PLACES if place.backend != "reference")
