"""Where a rotation can run on this machine: every backend, and the compiled one with every instruction set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

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


# --- memory


GUARD = 64  # elements before the first and after the last: more than any vector and any head of the tests


class Arena:
    """Memory full of 0xFF (NaN in every float dtype) and one tensor `x` in it, whose strides may leave gaps.

    - `order`: the dimensions but the last, innermost first; contiguous order if None.
    - `gaps`: elements left free between the entries of each of those dimensions; `step`: the stride of the last.
    - `offset`: elements by which it misses the alignment of the memory.
    - `expanded`: dimensions whose entries all lie in one place.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: str = "cpu", *, order: Sequence[int] | None = None,
        gaps: Sequence[int] = (0, 0, 0), step: int = 1, offset: int = 1, expanded: Sequence[int] = (),
    ) -> None:  # fmt: skip
        strides, reach = [0] * (len(shape) - 1) + [step], step * (shape[-1] - 1) + 1
        for dim in reversed(range(len(shape) - 1)) if order is None else order:
            if dim in expanded:
                continue
            strides[dim] = reach + gaps[dim]
            reach += strides[dim] * (shape[dim] - 1)
        size = (2 * GUARD + offset + reach) * dtype.itemsize
        self.memory = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
        self._place = (tuple(shape), tuple(strides), GUARD + offset)
        self.x: Tensor = self.memory.view(dtype).as_strided(*self._place)

    def holding(self, values: Tensor) -> Arena:
        """The same, with `x` filled; where it is expanded by the first entry of each such dimension."""
        here = tuple(slice(1) if stride == 0 else slice(None) for stride in self.x.stride())
        self.x[here].copy_(values[here])
        self.before = self.memory.clone()
        return self

    def around_is_untouched(self) -> bool:
        """Whether every byte that is not one of `x` is still 0xFF."""
        outside = torch.ones(self.memory.numel() // self.x.element_size(), dtype=torch.bool, device=self.memory.device)
        outside.as_strided(*self._place).fill_(False)
        return bool((self.memory.view(outside.numel(), -1)[outside] == 0xFF).all())

    def is_untouched(self) -> bool:
        """Whether every byte is as it was, `x` included."""
        return torch.equal(self.memory, self.before)
