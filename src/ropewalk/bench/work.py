"""What is timed: a case on several sets of buffers, and the contenders that turn it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ropewalk.bench.cases import Case
from ropewalk.bench.oracle import Array
from ropewalk.bench.timing import Call, Timed, last_level_cache

Tensors = tuple[Tensor, ...]
FEW = 128  # sets at most: the smallest cases would need thousands
WHOLE = 2**30  # bytes of a set that no cache comes near: one is enough


class Skip(Exception):
    """A peer cannot take part; the message says why."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work, on each set of buffers.

    `read` turns what a call returned into the rotated tensors, in the case's layout; None where nothing is rotated.
    `interleaved` is its pairing, where that is not the case's. `eps` and `own_angles` are the rounding that it is
    allowed, where it is not ours, and `before` what it does ahead of the rotation: see `gate.check`.
    """

    name: str
    calls: Sequence[Call]
    read: Callable[[Any], Tensors] | None = None
    eps: float = 0.0
    own_angles: bool = False
    before: Callable[[int, Array], Array] | None = None
    interleaved: bool | None = None
    inverse: bool = False

    def timed(self) -> Timed:
        """What the clock needs."""
        return Timed(self.name, self.calls)


@dataclass
class Work:
    """A case, laid out `sets` times, so that a round of all of them goes through several times the last-level cache.

    `inputs[i]` are queries and keys (or queries alone) of set i, `outs[i]` room for the result, shared by all who can
    write into it; `spare()` are copies for those who work in place. Tables are float32 `[seq, pairs]`.
    """

    case: Case
    device: str = "cpu"
    sets: int = 0
    inputs: list[Tensors] = field(init=False)
    outs: list[Tensors] = field(init=False)
    cos: Tensor = field(init=False)
    sin: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sets = self.sets or sets_for(self.case.bytes, self.device)
        first = self.case.tensors(self.device)
        self.inputs = [first, *(tuple(x.clone() for x in first) for _ in range(self.sets - 1))]
        self.outs = [tuple(torch.zeros_like(x) for x in first) for _ in range(self.sets)]
        self.cos, self.sin = self.case.cos_sin(self.device)

    @property
    def threads(self) -> int:
        """Threads that every contender may use."""
        return torch.get_num_threads()

    def spare(self) -> list[Tensors]:
        """Copies of the inputs."""
        return [tuple(x.clone() for x in tensors) for tensors in self.inputs]

    def each(self, make: Callable[[int], Call]) -> list[Call]:
        """`make(i)` for each set."""
        return [make(i) for i in range(self.sets)]


def sets_for(size: int, device: str = "cpu") -> int:
    """How many sets of `size` bytes in and as many out exceed the last-level cache four times."""
    if device != "cpu" or size >= WHOLE:
        return 1
    return max(2, min(FEW, -(-4 * last_level_cache() // (2 * size))))


def package(name: str, install: str | None = None) -> Any:
    """The imported peer; `Skip` with the way to install it where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Skip(f"cannot be imported ({error}); pip install {install or name}") from error
