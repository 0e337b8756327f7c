"""The work that is timed, and the packages that compete with ours: each as fast as its interface allows.

Nothing is converted inside a timed call: tables, layouts and dtypes are prepared as the peer expects them. All have the
same number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from timing import Call, Timed, last_level_cache
from torch import Tensor

from tests.rotation.backends.cases import Case

Tensors = tuple[Tensor, ...]
FEW = 128  # sets at most: the smallest cases would need thousands
WHOLE = 2**30  # bytes of a set that exceeds every cache: one set is enough
EPS = 4.0  # of the dtype: most peers round tables, two products and a sum to the model's dtype


class Skip(Exception):
    """A peer cannot take part; the message gives the reason."""


@dataclass(frozen=True)
class Contender(Timed):
    """One way to do the work on each set of buffers.

    - `read`: makes the rotated tensors, in the case's layout, of what a call returned; None if nothing is rotated.
    - `interleaved`: its pairing, if it is not the case's.
    - `eps`: the rounding that it is allowed, if it is not ours; see `rotation.check`.
    - `before`: what it does to tensor number n before the rotation, in float64.
    """

    read: Callable[[Any], Tensors] | None = None
    eps: float = 0.0
    before: Callable[[int, np.ndarray], np.ndarray] | None = None
    interleaved: bool | None = None
    inverse: bool = False


@dataclass
class Work:
    """A case in `sets` copies, so that a round of all of them exceeds the last-level cache several times.

    `inputs[i]` are queries and keys (or only queries) of set i, `outs[i]` memory for the result, shared by all who can
    write into it; `spare()` returns copies for those who work in place. Tables are float32 `[seq, pairs]`.
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
        """Return the threads that every contender may use."""
        return torch.get_num_threads()

    def spare(self) -> list[Tensors]:
        """Return copies of the inputs."""
        return [tuple(x.clone() for x in tensors) for tensors in self.inputs]

    def each(self, make: Callable[[int], Call]) -> list[Call]:
        """Return `make(i)` for each set."""
        return [make(i) for i in range(self.sets)]


def sets_for(size: int, device: str = "cpu") -> int:
    """Return how many sets of `size` bytes in and as many out exceed the last-level cache four times."""
    if device != "cpu" or size >= WHOLE:
        return 1
    return max(2, min(FEW, -(-4 * last_level_cache() // (2 * size))))


def package(name: str, install: str | None = None) -> Any:
    """Import the peer; raise `Skip` with the way to install it if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Skip(f"cannot be imported ({error}); pip install {install or name}") from error


def transformers(work: Work, name: str = "transformers", wrap: Callable[[Any], Any] = lambda made: made) -> Contender:
    """Call transformers' eager function of Llama; `wrap` may compile it.

    Tables have the dtype of the model, as its rotary embedding makes them.
    """
    function = wrap(package("transformers.models.llama.modeling_llama", "transformers").apply_rotary_pos_emb)
    cos, sin = whole_tables(work)

    def make(i: int) -> Call:
        q, *rest = (x.transpose(1, 2) for x in work.inputs[i])
        k = rest[0] if rest else q[:, :0]  # it takes both: keys of no heads cost it next to nothing
        return lambda: function(q, k, cos, sin)

    def read(returned: Any) -> Tensors:
        return tuple(x.transpose(1, 2) for x in returned[: len(work.inputs[0])])

    return Contender(name, work.each(make), read, eps=EPS)


def whole_tables(work: Work) -> Tensors:
    """Return cos and sin `[1, seq, head_dim]` in the model's dtype, for halves; raise `Skip` for the other pairing."""
    if work.case.interleaved:
        raise Skip("half-split only")
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))
    return cos, sin


def compiled(work: Work) -> Contender:
    """Compile transformers' function for the shape that is timed: static shapes, one graph.

    Earlier compiled code is dropped, so that no limit on recompiling is reached.
    """
    torch.compiler.reset()
    return transformers(work, "torch.compile", lambda made: torch.compile(made, dynamic=False, fullgraph=True))


Build = Callable[[Work], Contender]
PEERS: dict[str, Build] = {"transformers": transformers, "torch.compile": compiled}
